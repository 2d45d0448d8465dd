"""Updates of the pair representation from itself, through triangles of residues. Every block maps its input to a residual delta."""

from collections.abc import Sequence
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.config import PairAs, PairMode
from evoattn.errors import ConfigError
from evoattn.ops import hide_nonfinite, triangle_product
from evoattn.primitives import GatedAttention, Transition, linear
from evoattn.shapes import Pair, PairMask, check_features, check_mask


class TriangleMultiplication(nn.Module):
    """Triangle multiplicative update (AlphaFold 2 supplement, algorithms 11 and 12).

    With a and b gated projections of z: outgoing edges, o_ij = sum_k a_ik b_jk; incoming edges, o_ij = sum_k a_ki b_kj. `proj` and `gate`
    hold both projections, a first. (AlphaFold 2's own files exchange a and b for incoming edges; its weight table puts them right.)

    Args:
        c_z: channels of the pair representation. c_hidden: channels of the product. direction: of the edges.
    """

    def __init__(self, c_z: int, c_hidden: int, *, direction: Literal["outgoing", "incoming"]) -> None:
        super().__init__()
        if direction not in ("outgoing", "incoming"):
            raise ConfigError(f"TriangleMultiplication: direction is {direction!r}; allowed are 'outgoing' and 'incoming'.")
        self.c_z, self.direction = c_z, direction
        self.norm_in = nn.LayerNorm(c_z)
        self.proj = linear(c_z, 2 * c_hidden, init="linear")
        self.gate = linear(c_z, 2 * c_hidden, init="gating")
        self.norm_out = nn.LayerNorm(c_hidden)
        self.out = linear(c_hidden, c_z, init="final")
        self.out_gate = linear(c_z, c_z, init="gating")

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        x = self.norm_in(_entry(self, z, pair_mask))
        ab = torch.sigmoid(self.gate(x)) * self.proj(x)
        if pair_mask is not None:
            ab = ab.masked_fill(~pair_mask.unsqueeze(-1), 0.0)
        a, b = rearrange(ab, "... i j (two c) -> two ... c i j", two=2)
        product = rearrange(triangle_product(a, b, incoming=self.direction == "incoming"), "... c i j -> ... i j c")
        # the norm comes before the cast: undivided sums over k overflow float16, normalised ones do not
        normed = nn.functional.layer_norm(product, self.norm_out.normalized_shape, *_like(product, self.norm_out), self.norm_out.eps)
        return torch.sigmoid(self.out_gate(x)) * self.out(normed.to(ab.dtype))


class TriangleAttention(nn.Module):
    """Triangle self-attention around the starting or the ending node (AlphaFold 2 supplement, algorithms 13 and 14).

    Starting: edge ij attends over the edges ik that start at the same node, with a bias from the third edge jk. Ending: over the edges kj
    that end at the same node, with a bias from ki: the starting form on the transposed pair representation.

    Args:
        c_z: channels of the pair representation. heads: attention heads of width c_z / heads. node: which one edges share.
        pair_as: how the third edge enters: any mix of "bias", "keys" and "values"; published systems use ("bias",).
        pair_mode: "relative" or "appended", see :class:`evoattn.primitives.MultiHeadAttention`.
    """

    def __init__(
        self, c_z: int, heads: int, *, node: Literal["starting", "ending"], pair_as: Sequence[PairAs] = ("bias",),
        pair_mode: PairMode = "relative",
    ) -> None:  # fmt: skip
        super().__init__()
        if node not in ("starting", "ending"):
            raise ConfigError(f"TriangleAttention: node is {node!r}; allowed are 'starting' and 'ending'.")
        self.c_z, self.node = c_z, node
        self.norm = nn.LayerNorm(c_z)
        self.pair_bias = linear(c_z, heads, bias=False, init="normal") if "bias" in pair_as else None
        self.attn = GatedAttention(c_z, heads, c_pair=c_z, pair_as=pair_as, pair_mode=pair_mode)

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        x = _entry(self, z, pair_mask)
        if self.node == "ending":
            x = rearrange(x, "... i j c -> ... j i c")
            pair_mask = None if pair_mask is None else rearrange(pair_mask, "... i j -> ... j i")
        x = self.norm(x)
        biases = [] if self.pair_bias is None else [rearrange(self.pair_bias(x), "... j k h -> ... 1 h j k")]
        keys = None if pair_mask is None else rearrange(pair_mask, "... i k -> ... i 1 1 k")
        delta = self.attn(x, biases=biases, mask=keys, pair=rearrange(x, "... j k c -> ... 1 j k c"))
        return rearrange(delta, "... j i c -> ... i j c") if self.node == "ending" else delta


class PairTransition(Transition):
    """Two-layer network on every entry of the pair representation (AlphaFold 2 supplement, algorithm 15)."""

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        """delta of z. The mask only keeps non-finite entries at masked places out, as AlphaFold 2 uses none here."""
        check_features("PairTransition", "z", z, ["N_res", "N_res", "c_z"], self.norm.normalized_shape[0])
        check_mask("PairTransition", "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
        return super().forward(z, pair_mask)


def _entry(block: TriangleMultiplication | TriangleAttention, z: Pair, pair_mask: PairMask | None) -> Tensor:
    """Check z and its mask, and hide what is non-finite at masked places."""
    owner = type(block).__name__
    check_features(owner, "z", z, ["N_res", "N_res", "c_z"], block.c_z)
    check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
    return hide_nonfinite(z, pair_mask)


def _like(x: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return norm.weight.to(x.dtype), norm.bias.to(x.dtype)
