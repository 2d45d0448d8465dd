"""Small modules, each a shell round one op: multi-head attention, transition, shared dropout, initialisers."""

from evoattn.primitives.attention import GatedAttention, GatedAveraging, GlobalGatedAttention, MultiHeadAttention, TiedAttention
from evoattn.primitives.capture import capture_attention
from evoattn.primitives.dropout import SharedDropout
from evoattn.primitives.final import final
from evoattn.primitives.init import linear, redraw_
from evoattn.primitives.norm import LayerNorm
from evoattn.primitives.transition import Transition

__all__ = [
    "GatedAttention",
    "GatedAveraging",
    "GlobalGatedAttention",
    "LayerNorm",
    "MultiHeadAttention",
    "SharedDropout",
    "TiedAttention",
    "Transition",
    "capture_attention",
    "final",
    "linear",
    "redraw_",
]
