"""Stacks: residual wiring, dropout and checkpointing round the blocks."""

from evoattn.stacks.evoformer import EvoformerBlock, EvoformerStack, ExtraMSAStack
from evoattn.stacks.msa_module import MSAModule, MSAModuleBlock
from evoattn.stacks.pairformer import PairformerBlock, PairformerStack

__all__ = ["EvoformerBlock", "EvoformerStack", "ExtraMSAStack", "MSAModule", "MSAModuleBlock", "PairformerBlock", "PairformerStack"]
