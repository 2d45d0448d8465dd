"""Updates of the MSA representation. Every block maps its input to a residual delta."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.blocks.pair_input import PairInputBlock
from evoattn.config import PairAs, PairMode
from evoattn.ops import hide_nonfinite
from evoattn.primitives import GatedAttention, GlobalGatedAttention, LayerNorm, MultiHeadAttention, Transition
from evoattn.shapes import check_features, check_mask
from evoattn.updates import positions_per_slice, take_part


class MSARowAttention(PairInputBlock):
    """Row-wise gated self-attention with pair bias: each sequence attends along its residues (AlphaFold 2 supplement, algorithm 7).

    The bias of head h from residue j on residue i is a projection of z_ij, the same for all rows.

    Args:
        c_m, c_z: channels of the MSA and pair representation. heads: attention heads of width c_m / heads, or `d_head`.
        bias: whether gate and output have biases (OpenFold3's block of AlphaFold 2's kind: no).
        pair_as: how z_ij enters: any mix of "bias", "keys" and "values"; published systems use ("bias",).
        pair_mode: "relative" or "appended", see :class:`evoattn.primitives.MultiHeadAttention`.
    """

    attn: GatedAttention

    def __init__(
        self, c_m: int, c_z: int, heads: int, *, d_head: int | None = None, bias: bool = True, pair_as: Sequence[PairAs] = ("bias",),
        pair_mode: PairMode = "relative",
    ) -> None:  # fmt: skip
        super().__init__(c_z, heads, pair_as, bias_init="normal")
        self.slices = -3
        self.c_m = c_m
        self.norm = LayerNorm(c_m)
        pair = {"c_pair": c_z, "pair_as": pair_as, "pair_mode": pair_mode}
        self.attn = GatedAttention(c_m, heads, d_head=d_head, out_bias=bias, gate_bias=bias, **pair)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch s n c_m"]:
        """delta of m. The MSA mask hides keys; the pair mask only keeps non-finite entries of z at masked places out."""
        check_features("MSARowAttention", "m", m, ["N_seq", "N_res", "c_m"], self.c_m)
        check_mask("MSARowAttention", "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        self.check_pair(z, pair_mask, "m", m, batch=m.shape[:-3])
        return self._attend(m, *self.pair_inputs(z, pair_mask), msa_mask)

    def prepare(
        self, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None
    ) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        """What every row needs: the biases and the pair features, and the mask."""
        return *self.pair_inputs(z, pair_mask, sliced=True), msa_mask

    def delta(self, m: Tensor, part: slice, context: tuple[list[Tensor], Tensor | None, Tensor | None]) -> Tensor:
        biases, pair, msa_mask = context
        return self._attend(m, biases, pair, None if msa_mask is None else take_part(msa_mask, part, -2))

    def slice_bytes(self, m: Tensor, itemsize: int) -> int:
        return positions_per_slice(m, self.slices) * self.attn.bytes_per_position(itemsize)

    def _attend(self, m: Tensor, biases: list[Tensor], pair: Tensor | None, msa_mask: Tensor | None) -> Tensor:
        """`m` and its mask may be some of the rows."""
        keys = None if msa_mask is None else rearrange(msa_mask, "... s k -> ... s 1 1 k")
        return self.attn(self.norm(hide_nonfinite(m, msa_mask)), biases=biases, mask=keys, pair=pair)


class ColumnBlock(nn.Module, ABC):
    """A block that works on each column of the alignment by itself."""

    slices = -2
    attn: MultiHeadAttention | GlobalGatedAttention

    def __init__(self, c_m: int) -> None:
        super().__init__()
        self.c_m = c_m
        self.norm = LayerNorm(c_m)

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        owner = type(self).__name__
        check_features(owner, "m", m, ["N_seq", "N_res", "c_m"], self.c_m)
        check_mask(owner, "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        return self._attend(self.norm(hide_nonfinite(m, msa_mask)), msa_mask)

    def prepare(self, m: Tensor, msa_mask: Tensor | None) -> Tensor | None:
        return msa_mask

    def delta(self, m: Tensor, part: slice, msa_mask: Tensor | None) -> Tensor:
        mask = None if msa_mask is None else take_part(msa_mask, part, -1)
        return self._attend(self.norm(hide_nonfinite(m, mask)), mask)

    def slice_bytes(self, m: Tensor, itemsize: int) -> int:
        return positions_per_slice(m, self.slices) * self.attn.bytes_per_position(itemsize)

    @abstractmethod
    def _attend(self, m: Tensor, msa_mask: Tensor | None) -> Tensor:
        """The attention along the sequences of the normed m, all of its columns or some."""


class MSAColumnAttention(ColumnBlock):
    """Column-wise gated self-attention: each residue attends along the sequences (AlphaFold 2 supplement, algorithm 8).

    Args:
        c_m: channels of the MSA representation. heads: attention heads of width c_m / heads, or `d_head`.
        gated: whether there is a gate. qkv_bias: whether the projections to q, k and v have biases (MSA Transformer: no gate, biases).
        bias: whether gate and output have biases (OpenFold3's block of AlphaFold 2's kind: no).
    """

    def __init__(
        self, c_m: int, heads: int, *, d_head: int | None = None, gated: bool = True, qkv_bias: bool = False, bias: bool = True
    ) -> None:
        super().__init__(c_m)
        kind = GatedAttention if gated else MultiHeadAttention
        self.attn = kind(c_m, heads, d_head=d_head, q_bias=qkv_bias, kv_bias=qkv_bias, out_bias=bias, gate_bias=bias, axis=-3)

    def _attend(self, m: Tensor, msa_mask: Tensor | None) -> Tensor:
        return self.attn(m, mask=None if msa_mask is None else rearrange(msa_mask, "... s n -> ... n 1 1 s"))


class MSAGlobalColumnAttention(ColumnBlock):
    """Column-wise global attention: one query per column, the mean over its sequences (AlphaFold 2 supplement, algorithm 19).

    Args as of :class:`MSAColumnAttention`.
    """

    def __init__(self, c_m: int, heads: int, *, d_head: int | None = None, bias: bool = True) -> None:
        super().__init__(c_m)
        self.attn = GlobalGatedAttention(c_m, heads, d_head=d_head, bias=bias)

    def _attend(self, m: Tensor, msa_mask: Tensor | None) -> Tensor:
        columns, mask = rearrange(m, "... s n c -> ... n s c"), None if msa_mask is None else rearrange(msa_mask, "... s n -> ... n s")
        return rearrange(self.attn(columns, mask), "... n s c -> ... s n c")


class MSATransition(Transition):
    """Two-layer network on every entry of the MSA representation (AlphaFold 2 supplement, algorithm 9)."""

    slices = -3

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        """delta of m. Unless `zero_masked`, the mask only keeps non-finite entries at masked places out: AlphaFold 2 uses none here."""
        check_features("MSATransition", "m", m, ["N_seq", "N_res", "c_m"], self.norm.normalized_shape[0])
        check_mask("MSATransition", "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        return super().forward(m, msa_mask)
