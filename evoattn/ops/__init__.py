"""Pure functions on tensors: the attention every block is made of, its backends, and the products over the pair representation."""

from evoattn.ops.attention import attention, attention_weights, explain
from evoattn.ops.dispatch import ATTENTION
from evoattn.ops.gate import gate
from evoattn.ops.masks import causal_mask, hide_nonfinite, hide_nonfinite_, mask_from_additive
from evoattn.ops.pair_attention import merge_attention, pair_attention
from evoattn.ops.pairwise import channels_first, outer_product_mean, triangle_product
from evoattn.ops.registry import Backend, Explanation, Registry
from evoattn.ops.spec import AttentionSpec

__all__ = [
    "ATTENTION",
    "AttentionSpec",
    "Backend",
    "Explanation",
    "Registry",
    "attention",
    "attention_weights",
    "causal_mask",
    "channels_first",
    "explain",
    "gate",
    "hide_nonfinite",
    "hide_nonfinite_",
    "mask_from_additive",
    "merge_attention",
    "outer_product_mean",
    "pair_attention",
    "triangle_product",
]
