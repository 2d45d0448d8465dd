"""Updates of the pair representation from itself, through triangles of residues. Every block maps its input to a residual delta."""

from collections.abc import Sequence
from typing import Literal

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.blocks.slices import by_rows
from evoattn.config import PairAs, PairMode
from evoattn.errors import ConfigError
from evoattn.execution import Executable
from evoattn.ops import hide_nonfinite
from evoattn.ops.layers import Linear, Norm
from evoattn.ops.triangle_update import Steps, TriangleWeights, divisor, steps_for, triangle_update
from evoattn.primitives import GatedAttention, LayerNorm, Transition, linear
from evoattn.shapes import Pair, PairMask, check_features, check_mask
from evoattn.updates import positions_per_slice, sum_bytes, take_part

THIRD_EDGES = {"ki": "1 h i k", "ik": "1 h i k", "jk": "j h 1 k"}
"""Third edge around the ending node, for query edge ij and key edge kj -> the bias as the attention of column j takes it."""


class TriangleMultiplication(Executable):
    """Triangle multiplicative update (AlphaFold 2 supplement, algorithms 11 and 12).

    With a and b gated projections of z: outgoing edges, o_ij = sum_k a_ik b_jk; incoming edges, o_ij = sum_k a_ki b_kj. `proj` and `gate`
    hold both projections, a first. (AlphaFold 2's own files exchange a and b for incoming edges; its weight table puts them right.)

    Args:
        c_z: channels of the pair representation. c_hidden: channels of the product. direction: of the edges.
        bias: whether the layers have biases (AlphaFold 3: no).
        scale: the product is a sum over k, or the mean over the residues that the mask leaves (RosettaFold 3). A norm follows, so that only
            its eps tells the two apart.
    """

    def __init__(
        self, c_z: int, c_hidden: int, *, direction: Literal["outgoing", "incoming"], bias: bool = True,
        scale: Literal["sum", "mean"] = "sum",
    ) -> None:  # fmt: skip
        super().__init__()
        self.quick_from = 32  # each slice multiplies its own operand with the other one whole, which has to be read again
        if direction not in ("outgoing", "incoming"):
            raise ConfigError(f"TriangleMultiplication: direction is {direction!r}; allowed are 'outgoing' and 'incoming'.")
        if scale not in ("sum", "mean"):
            raise ConfigError(f"TriangleMultiplication: scale is {scale!r}; allowed are 'sum' and 'mean'.")
        self.c_z, self.direction, self.scale = c_z, direction, scale
        self.norm_in = LayerNorm(c_z)
        self.proj = linear(c_z, 2 * c_hidden, bias=bias, init="linear")
        self.gate = linear(c_z, 2 * c_hidden, bias=bias, init="gating")
        self.norm_out = LayerNorm(c_hidden)
        self.out = linear(c_hidden, c_z, bias=bias, init="final")
        self.out_gate = linear(c_z, c_z, bias=bias, init="gating")

    @property
    def weights(self) -> TriangleWeights:
        """The parameters, as the op takes them."""
        norm_in, norm_out = (Norm(norm.weight, norm.bias, norm.eps) for norm in (self.norm_in, self.norm_out))
        proj, gate, out, out_gate = (Linear(layer.weight, layer.bias) for layer in (self.proj, self.gate, self.out, self.out_gate))
        return TriangleWeights(norm_in, proj, gate, norm_out, out, out_gate)

    @property
    def incoming(self) -> bool:
        return self.direction == "incoming"

    @property
    def slices(self) -> int:
        """Outgoing edges: rows i, each from its own a_i. and all of b. Incoming: columns j, each from its own b_.j and all of a."""
        return -2 if self.incoming else -3

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        _check(self, z, pair_mask)
        return triangle_update(
            z, self.weights, incoming=self.incoming, mask=pair_mask, mean=self.scale == "mean", backend=self.execution.triangle_update
        )

    def prepare(self, z: Tensor, pair_mask: Tensor | None) -> tuple[Steps | None, Tensor, Tensor | None, Tensor | None]:
        """The steps; the operand that every slice needs whole, [*batch, c, n, n]; the mask; and what the product is divided by.

        For a backend without steps: None and the update itself, of which the slices are taken.
        """
        z, mean = _entry(self, z, pair_mask), self.scale == "mean"
        steps, weights = steps_for(z, self.weights, mean=mean, backend=self.execution.triangle_update), self.weights
        if steps is None:
            return None, self(z, pair_mask), None, None

        def operand(rows: Tensor, part: slice) -> Tensor:
            mask = None if pair_mask is None else take_part(pair_mask, part, -2)
            return steps.operand(rows, weights, mask, 0 if self.incoming else 1)

        return steps, by_rows(operand, z, out_axis=-2), pair_mask, divisor(z, pair_mask) if mean else None

    def delta(self, z: Tensor, part: slice, context: tuple[Steps | None, Tensor, Tensor | None, Tensor | None]) -> Tensor:
        steps, whole, pair_mask, divide_by = context
        if steps is None:
            return take_part(whole, part, self.slices)
        mask = None if pair_mask is None else take_part(pair_mask, part, self.slices + 1)
        return steps.delta(hide_nonfinite(z, mask), whole, self.weights, mask, self.incoming, divide_by)

    def slice_bytes(self, z: Tensor, itemsize: int) -> int:
        hidden = self.norm_out.normalized_shape[0]
        return positions_per_slice(z, self.slices) * (3 * z.shape[-1] * itemsize + hidden * (2 * itemsize + 3 * sum_bytes(z, itemsize)))


class TriangleAttention(nn.Module):
    """Triangle self-attention around the starting or the ending node (AlphaFold 2 supplement, algorithms 13 and 14).

    Starting: edge ij attends over the edges ik that start at the same node, with a bias from the third edge jk. Ending: over the edges kj
    that end at the same node, with a bias from ki: the starting form on the transposed pair representation.

    Args:
        c_z: channels of the pair representation. heads: attention heads of width c_z / heads, or `d_head`. node: which one edges share.
        bias: whether gate and output have biases (AlphaFold 3: no).
        ending_bias: the third edge around the ending node: "ki" (the paper), "ik" (AlphaFold 3's code) or "jk" (RoseTTAFold All-Atom).
        starting_mask: whether ik or ki of the pair mask hides edge ik around the starting node. "ki" is AlphaFold 3's code.
        pair_as: how the third edge enters: any mix of "bias", "keys" and "values"; published systems use ("bias",).
        pair_mode: "relative" or "appended", see :class:`evoattn.primitives.MultiHeadAttention`.
    """

    def __init__(
        self, c_z: int, heads: int, *, node: Literal["starting", "ending"], d_head: int | None = None, bias: bool = True,
        ending_bias: Literal["ki", "ik", "jk"] = "ki", starting_mask: Literal["ik", "ki"] = "ik",
        pair_as: Sequence[PairAs] = ("bias",), pair_mode: PairMode = "relative",
    ) -> None:  # fmt: skip
        super().__init__()
        if node not in ("starting", "ending"):
            raise ConfigError(f"TriangleAttention: node is {node!r}; allowed are 'starting' and 'ending'.")
        if ending_bias not in THIRD_EDGES or starting_mask not in ("ik", "ki"):
            raise ConfigError(
                f"TriangleAttention: ending_bias is {ending_bias!r} and starting_mask {starting_mask!r}; allowed are 'ki', 'ik' and 'jk', "
                "and 'ik' and 'ki'."
            )
        if ending_bias == "jk" and set(pair_as) - {"bias"}:
            raise ConfigError(f"TriangleAttention: pair_as is {tuple(pair_as)} with ending_bias 'jk', which goes with ('bias',) alone.")
        self.c_z, self.node = c_z, node
        self.third = "jk" if node == "starting" else ending_bias
        self.mask_transposed = node == "starting" and starting_mask == "ki"
        self.slices = -3 if node == "starting" else -2
        self.norm = LayerNorm(c_z)
        self.pair_bias = linear(c_z, heads, bias=False, init="normal") if "bias" in pair_as else None
        self.attn = GatedAttention(
            c_z, heads, d_head=d_head, out_bias=bias, gate_bias=bias, axis=-2 if node == "starting" else -3, c_pair=c_z, pair_as=pair_as,
            pair_mode=pair_mode,
        )  # fmt: skip

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        x = self.norm(_entry(self, z, pair_mask))
        return self._attend(x, None if self.pair_bias is None else self._third(self.pair_bias(x)), x, self._keys(pair_mask))

    def prepare(self, z: Tensor, pair_mask: Tensor | None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The bias as the attention takes it, the normed pair features if they are keys or values, and the mask."""
        z = _entry(self, z, pair_mask)
        bias = self.pair_bias
        if self.attn.takes_pair:
            x = self.norm(z)
            return None if bias is None else self._third(bias(x)), x, pair_mask
        # heads first and contiguous, since each slice would copy it so
        return None if bias is None else self._third(by_rows(lambda rows, _: bias(self.norm(rows)), z)).contiguous(), None, pair_mask

    def delta(self, z: Tensor, part: slice, context: tuple[Tensor | None, Tensor | None, Tensor | None]) -> Tensor:
        bias, pair, pair_mask = context
        mask, keys = (None if x is None else take_part(x, part, self.slices + 1) for x in (pair_mask, self._keys(pair_mask)))
        if self.third == "jk" and self.node == "ending" and bias is not None:
            bias = take_part(bias, part, -4)
        return self._attend(self.norm(hide_nonfinite(z, mask)), bias, pair, keys)

    def slice_bytes(self, z: Tensor, itemsize: int) -> int:
        return positions_per_slice(z, self.slices) * self.attn.bytes_per_position(itemsize)

    def _keys(self, pair_mask: Tensor | None) -> Tensor | None:
        """The mask as it hides keys."""
        return pair_mask.mT if pair_mask is not None and self.mask_transposed else pair_mask

    def _attend(self, x: Tensor, bias: Tensor | None, pair: Tensor | None, mask: Tensor | None) -> Tensor:
        """`x` and `mask` may be slices; bias and pair are of the whole (but bias jk of the ending node, of the slice)."""
        starting = self.node == "starting"
        third = " ".join(self.third)
        keys = None if mask is None else rearrange(mask, "... i k -> ... i 1 1 k" if starting else "... k j -> ... j 1 1 k")
        pair = (
            rearrange(pair, f"... {third} c -> ... 1 {'j k' if starting else 'i k'} c")
            if pair is not None and self.attn.takes_pair
            else None
        )
        return self.attn(x, biases=[] if bias is None else [bias], mask=keys, pair=pair)

    def _third(self, bias: Float[Tensor, "*batch n n h"]) -> Float[Tensor, "*batch #n h #n n"]:
        """The bias of the third edge, for the queries and keys of every row, or column, that is attended along."""
        return rearrange(bias, f"... {' '.join(self.third)} h -> ... {'1 h j k' if self.node == 'starting' else THIRD_EDGES[self.third]}")


class PairTransition(Transition):
    """Two-layer network on every entry of the pair representation (AlphaFold 2 supplement, algorithm 15)."""

    slices = -3

    def forward(
        self, z: Float[Tensor, "*batch n n c_z"], pair_mask: Bool[Tensor, "*batch n n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        """delta of z. Unless `zero_masked`, the mask only keeps non-finite entries at masked places out: AlphaFold 2 uses none here."""
        check_features("PairTransition", "z", z, ["N_res", "N_res", "c_z"], self.norm.normalized_shape[0])
        check_mask("PairTransition", "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
        return super().forward(z, pair_mask)


def _entry(block: TriangleMultiplication | TriangleAttention, z: Pair, pair_mask: PairMask | None) -> Tensor:
    """Check z and its mask, and hide what is non-finite at masked places."""
    _check(block, z, pair_mask)
    return hide_nonfinite(z, pair_mask)


def _check(block: TriangleMultiplication | TriangleAttention, z: Pair, pair_mask: PairMask | None) -> None:
    owner = type(block).__name__
    check_features(owner, "z", z, ["N_res", "N_res", "c_z"], block.c_z)
    check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
