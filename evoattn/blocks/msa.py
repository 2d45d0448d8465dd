"""Updates of the MSA representation. Every block maps its input to a residual delta."""

from collections.abc import Sequence

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.blocks.pair_input import PairInputBlock
from evoattn.config import PairAs, PairMode
from evoattn.ops import hide_nonfinite
from evoattn.primitives import GatedAttention, GlobalGatedAttention, Transition
from evoattn.shapes import MSA, MSAMask, check_features, check_mask


class MSARowAttention(PairInputBlock):
    """Row-wise gated self-attention with pair bias: each sequence attends along its residues (AlphaFold 2 supplement, algorithm 7).

    The bias of head h from residue j on residue i is a projection of z_ij, the same for all rows.

    Args:
        c_m, c_z: channels of the MSA and pair representation. heads: attention heads of width c_m / heads.
        pair_as: how z_ij enters: any mix of "bias", "keys" and "values"; published systems use ("bias",).
        pair_mode: "relative" or "appended", see :class:`evoattn.primitives.MultiHeadAttention`.
    """

    def __init__(self, c_m: int, c_z: int, heads: int, *, pair_as: Sequence[PairAs] = ("bias",), pair_mode: PairMode = "relative") -> None:
        super().__init__(c_z, heads, pair_as, bias_init="normal")
        self.c_m = c_m
        self.norm = nn.LayerNorm(c_m)
        self.attn = GatedAttention(c_m, heads, c_pair=c_z, pair_as=pair_as, pair_mode=pair_mode)

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
        biases, pair = self.pair_inputs(z, pair_mask)
        keys = None if msa_mask is None else rearrange(msa_mask, "... s k -> ... s 1 1 k")
        return self.attn(self.norm(hide_nonfinite(m, msa_mask)), biases=biases, mask=keys, pair=pair)


class MSAColumnAttention(nn.Module):
    """Column-wise gated self-attention: each residue attends along the sequences (AlphaFold 2 supplement, algorithm 8)."""

    def __init__(self, c_m: int, heads: int) -> None:
        super().__init__()
        self.c_m = c_m
        self.norm = nn.LayerNorm(c_m)
        self.attn = GatedAttention(c_m, heads)

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        columns, mask = _columns("MSAColumnAttention", m, msa_mask, self.c_m)
        keys = None if mask is None else rearrange(mask, "... n s -> ... n 1 1 s")
        return rearrange(self.attn(self.norm(columns), mask=keys), "... n s c -> ... s n c")


class MSAGlobalColumnAttention(nn.Module):
    """Column-wise global attention: one query per column, the mean over its sequences (AlphaFold 2 supplement, algorithm 19)."""

    def __init__(self, c_m: int, heads: int) -> None:
        super().__init__()
        self.c_m = c_m
        self.norm = nn.LayerNorm(c_m)
        self.attn = GlobalGatedAttention(c_m, heads)

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        columns, mask = _columns("MSAGlobalColumnAttention", m, msa_mask, self.c_m)
        return rearrange(self.attn(self.norm(columns), mask), "... n s c -> ... s n c")


class MSATransition(Transition):
    """Two-layer network on every entry of the MSA representation (AlphaFold 2 supplement, algorithm 9)."""

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        """delta of m. The mask only keeps non-finite entries at masked places out, as AlphaFold 2 uses none here."""
        check_features("MSATransition", "m", m, ["N_seq", "N_res", "c_m"], self.norm.normalized_shape[0])
        check_mask("MSATransition", "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        return super().forward(m, msa_mask)


def _columns(owner: str, m: MSA, msa_mask: MSAMask | None, c_m: int) -> tuple[Tensor, Tensor | None]:
    """m and its mask with the sequences as the axis to attend along: [*batch, N_res, N_seq, c_m], [*batch, N_res, N_seq]."""
    check_features(owner, "m", m, ["N_seq", "N_res", "c_m"], c_m)
    check_mask(owner, "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
    mask = None if msa_mask is None else rearrange(msa_mask, "... s n -> ... n s")
    return rearrange(hide_nonfinite(m, msa_mask), "... s n c -> ... n s c"), mask
