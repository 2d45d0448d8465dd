"""Updates of the pair representation from itself, through triangles of residues. Every block maps its input to a residual delta."""

from collections.abc import Sequence
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.blocks.slices import by_rows, take_part
from evoattn.config import PairAs, PairMode
from evoattn.errors import ConfigError
from evoattn.execution import positions_per_slice
from evoattn.ops import channels_first, gate, hide_nonfinite, triangle_product
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

    @property
    def slices(self) -> int:
        """Outgoing edges: rows i, each from its own a_i. and all of b. Incoming: columns j, each from its own b_.j and all of a."""
        return -3 if self.direction == "outgoing" else -2

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        x = self.norm_in(_entry(self, z, pair_mask))
        return self._finish(x, *self._operands(x, pair_mask, slice(None)).chunk(2, dim=-3))

    def prepare(self, z: Tensor, pair_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The operand that every slice needs whole, [*batch, c, n, n], and the mask."""
        z, half = _entry(self, z, pair_mask), self._half(1 if self.direction == "outgoing" else 0)

        def operands(rows: Tensor, part: slice) -> Tensor:
            return self._operands(self.norm_in(rows), None if pair_mask is None else take_part(pair_mask, part, -2), half)

        return by_rows(operands, z, out_axis=-2), pair_mask

    def delta(self, z: Tensor, part: slice, context: tuple[Tensor, Tensor | None]) -> Tensor:
        whole, pair_mask = context
        mask = None if pair_mask is None else take_part(pair_mask, part, self.slices + 1)
        x = self.norm_in(hide_nonfinite(z, mask))
        if self.direction == "outgoing":
            return self._finish(x, self._operands(x, mask, self._half(0)), whole)
        return self._finish(x, whole, self._operands(x, mask, self._half(1)))

    def slice_bytes(self, z: Tensor) -> int:
        hidden, wide = self.norm_out.normalized_shape[0], torch.promote_types(z.dtype, torch.float32).itemsize
        return positions_per_slice(z, self.slices) * (3 * z.shape[-1] * z.element_size() + hidden * (2 * z.element_size() + 3 * wide))

    def _half(self, which: int) -> slice:
        """The channels of a (0) or of b (1) in `proj` and `gate`."""
        c = self.norm_out.normalized_shape[0]
        return slice(which * c, (which + 1) * c)

    def _operands(self, x: Tensor, pair_mask: Tensor | None, channels: slice) -> Tensor:
        """Gated projections of the normed x, channels first: the layout of the product, written by the projection itself."""
        projected = channels_first(x, self.proj.weight[channels], self.proj.bias[channels])
        operands = gate(projected, channels_first(x, self.gate.weight[channels], self.gate.bias[channels]))
        return operands if pair_mask is None else operands.masked_fill(~pair_mask.unsqueeze(-3), 0.0)

    def _finish(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Product, norm, projection and gate. The norm comes before the cast: sums over k overflow float16, normalised ones do not."""
        product = rearrange(triangle_product(a, b, incoming=self.direction == "incoming"), "... c i j -> ... i j c")
        normed = nn.functional.layer_norm(product, self.norm_out.normalized_shape, *_like(product, self.norm_out), self.norm_out.eps)
        return gate(self.out(normed.to(a.dtype)), self.out_gate(x))


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
        self.slices = -3 if node == "starting" else -2
        self.norm = nn.LayerNorm(c_z)
        self.pair_bias = linear(c_z, heads, bias=False, init="normal") if "bias" in pair_as else None
        self.attn = GatedAttention(c_z, heads, axis=-2 if node == "starting" else -3, c_pair=c_z, pair_as=pair_as, pair_mode=pair_mode)

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        x = self.norm(_entry(self, z, pair_mask))
        return self._attend(x, None if self.pair_bias is None else self.pair_bias(x), x, pair_mask)

    def prepare(self, z: Tensor, pair_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The bias of every pair, the normed pair features if they are keys or values, and the mask."""
        z = _entry(self, z, pair_mask)
        if self.attn.takes_pair:
            x = self.norm(z)
            return None if self.pair_bias is None else self.pair_bias(x), x, pair_mask
        bias = self.pair_bias
        return None if bias is None else by_rows(lambda rows, _: bias(self.norm(rows)), z), None, pair_mask

    def delta(self, z: Tensor, part: slice, context: tuple[Tensor | None, Tensor | None, Tensor | None]) -> Tensor:
        bias, pair, pair_mask = context
        mask = None if pair_mask is None else take_part(pair_mask, part, self.slices + 1)
        return self._attend(self.norm(hide_nonfinite(z, mask)), bias, pair, mask)

    def slice_bytes(self, z: Tensor) -> int:
        return positions_per_slice(z, self.slices) * self.attn.bytes_per_position(z.element_size())

    def _attend(self, x: Tensor, bias: Tensor | None, pair: Tensor | None, mask: Tensor | None) -> Tensor:
        """`x` may be a slice; bias [*batch, n, n, h] and pair are of the whole. Around the ending node the third edge is ki, not jk."""
        third, key = ("j k", "i k -> ... i") if self.node == "starting" else ("k i", "k j -> ... j")
        queries_keys = "j k" if self.node == "starting" else "i k"
        biases = [] if bias is None else [rearrange(bias, f"... {third} h -> ... 1 h {queries_keys}")]
        keys = None if mask is None else rearrange(mask, f"... {key} 1 1 k")
        pair = None if pair is None else rearrange(pair, f"... {third} c -> ... 1 {queries_keys} c")
        return self.attn(x, biases=biases, mask=keys, pair=pair)


class PairTransition(Transition):
    """Two-layer network on every entry of the pair representation (AlphaFold 2 supplement, algorithm 15)."""

    slices = -3

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
