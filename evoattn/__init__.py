"""Evoformer-style attention blocks over one attention op with swappable backends.

Start with :class:`EvoformerStack` and :class:`EvoformerConfig`, or :func:`attention` and :func:`explain`; ``evoattn run family.a3m`` on the
command line.
"""

from evoattn.blocks import (
    AttentionPairBias,
    MSAColumnAttention,
    MSAGlobalColumnAttention,
    MSARowAttention,
    MSATransition,
    OuterProductMean,
    PairTransition,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.config import PRESETS, EvoformerConfig, TrunkConfig, preset
from evoattn.errors import BackendError, ConfigError, EvoattnError, MSAError, ShapeError, WeightsError
from evoattn.execution import Execution, set_execution
from evoattn.io import MSA, make_features, read_msa
from evoattn.model import EvoformerTrunk, Recycled, Representations
from evoattn.ops import Backend, attention, attention_weights, causal_mask, explain, mask_from_additive, pair_attention
from evoattn.primitives import GatedAttention, GlobalGatedAttention, MultiHeadAttention, SharedDropout, Transition, capture_attention
from evoattn.stacks import EvoformerBlock, EvoformerStack, ExtraMSAStack
from evoattn.weights import load_weights

__version__ = "0.1.0"

__all__ = [name for name in dir() if not name.startswith("_")]
