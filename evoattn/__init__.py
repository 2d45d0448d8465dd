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
    PairWeightedAveraging,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.config import (
    MSA_MODULES,
    PAIRFORMERS,
    PRESETS,
    PROFILES,
    ESMFoldConfig,
    EvoformerConfig,
    MSAModuleConfig,
    MSATransformerConfig,
    PairformerConfig,
    Profile,
    TrunkConfig,
    preset,
    profile,
)  # fmt: skip
from evoattn.errors import BackendError, ConfigError, EvoattnError, MSAError, ShapeError, WeightsError
from evoattn.execution import Execution, set_execution
from evoattn.io import MSA, esm_tokens, make_features, read_msa, read_sequences, write_msa
from evoattn.model import EvoformerTrunk, Recycled, Representations
from evoattn.ops import Backend, attention, attention_weights, causal_mask, explain, mask_from_additive, pair_attention
from evoattn.primitives import GatedAttention, GatedAveraging, GlobalGatedAttention, MultiHeadAttention, SharedDropout, Transition
from evoattn.primitives.capture import capture_attention
from evoattn.primitives.init import redraw_
from evoattn.stacks import EvoformerBlock, EvoformerStack, ExtraMSAStack, MSAModule, MSAModuleBlock, PairformerBlock, PairformerStack
from evoattn.stacks.esmfold import ESMFoldTrunk
from evoattn.stacks.msa_transformer import MSATransformer
from evoattn.weights import identify, load_weights

__version__ = "0.1.0"

__all__ = [
    "MSA", "MSA_MODULES", "PAIRFORMERS", "PRESETS", "PROFILES", "AttentionPairBias", "Backend", "BackendError", "ConfigError",
    "ESMFoldConfig", "ESMFoldTrunk", "EvoattnError", "EvoformerBlock", "EvoformerConfig", "EvoformerStack", "EvoformerTrunk", "Execution",
    "ExtraMSAStack", "GatedAttention", "GatedAveraging", "GlobalGatedAttention", "MSAColumnAttention", "MSAError",
    "MSAGlobalColumnAttention", "MSAModule", "MSAModuleBlock", "MSAModuleConfig", "MSARowAttention", "MSATransformer",
    "MSATransformerConfig", "MSATransition", "MultiHeadAttention", "OuterProductMean", "PairTransition", "PairWeightedAveraging",
    "PairformerBlock", "PairformerConfig", "PairformerStack", "Profile", "Recycled", "Representations", "ShapeError", "SharedDropout",
    "Transition", "TriangleAttention", "TriangleMultiplication", "TrunkConfig", "WeightsError", "attention", "attention_weights",
    "capture_attention", "causal_mask", "esm_tokens", "explain", "identify", "load_weights", "make_features", "mask_from_additive",
    "pair_attention", "preset", "profile", "read_msa", "read_sequences", "redraw_", "set_execution", "write_msa",
]  # fmt: skip
