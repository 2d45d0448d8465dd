"""One residual update of a paper each: x -> delta. The stacks add them up."""

from evoattn.blocks.esm import SequenceToPair, TiedRowAttention
from evoattn.blocks.msa import MSAColumnAttention, MSAGlobalColumnAttention, MSARowAttention, MSATransition
from evoattn.blocks.outer_product import OuterProductMean
from evoattn.blocks.pair import PairTransition, TriangleAttention, TriangleMultiplication
from evoattn.blocks.pair_weighted import PairWeightedAveraging
from evoattn.blocks.relative import RelativePosition
from evoattn.blocks.single import AttentionPairBias
from evoattn.blocks.template import TemplatePointwiseAttention

__all__ = [
    "AttentionPairBias",
    "MSAColumnAttention",
    "MSAGlobalColumnAttention",
    "MSARowAttention",
    "MSATransition",
    "OuterProductMean",
    "PairTransition",
    "PairWeightedAveraging",
    "RelativePosition",
    "SequenceToPair",
    "TemplatePointwiseAttention",
    "TiedRowAttention",
    "TriangleAttention",
    "TriangleMultiplication",
]
