"""Stacks: residual wiring, dropout and checkpointing round the blocks."""

from evoattn.stacks.esmfold import ESMFoldBlock, ESMFoldRecycled, ESMFoldTrunk
from evoattn.stacks.evoformer import EvoformerBlock, EvoformerStack, ExtraMSAStack
from evoattn.stacks.msa_module import MSAModule, MSAModuleBlock
from evoattn.stacks.msa_transformer import (
    ContactHead,
    MSATransformer,
    MSATransformerBlock,
    MSATransformerEncoder,
    MSATransformerOutput,
)
from evoattn.stacks.pairformer import PairformerBlock, PairformerStack
from evoattn.stacks.template import AveragedTemplates, PointwiseTemplates, TemplatePairBlock, TemplatePairStack, Templates

__all__ = [
    "AveragedTemplates",
    "ContactHead",
    "ESMFoldBlock",
    "ESMFoldRecycled",
    "ESMFoldTrunk",
    "EvoformerBlock",
    "EvoformerStack",
    "ExtraMSAStack",
    "MSAModule",
    "MSAModuleBlock",
    "MSATransformer",
    "MSATransformerBlock",
    "MSATransformerEncoder",
    "MSATransformerOutput",
    "PairformerBlock",
    "PairformerStack",
    "PointwiseTemplates",
    "TemplatePairBlock",
    "TemplatePairStack",
    "Templates",
]
