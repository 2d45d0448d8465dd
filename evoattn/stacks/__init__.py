"""Stacks: residual wiring, dropout and checkpointing round the blocks."""

from evoattn.stacks.evoformer import EvoformerBlock, EvoformerStack, ExtraMSAStack

__all__ = ["EvoformerBlock", "EvoformerStack", "ExtraMSAStack"]
