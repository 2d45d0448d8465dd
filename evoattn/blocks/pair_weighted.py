"""Pair-weighted averaging: the update of the MSA representation in AlphaFold 3."""

from typing import Literal

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.blocks.pair_input import PairInputBlock
from evoattn.errors import ConfigError
from evoattn.ops import hide_nonfinite
from evoattn.primitives import GatedAveraging, LayerNorm
from evoattn.shapes import check_features, check_mask
from evoattn.updates import positions_per_slice, take_part

Context = tuple[list[Tensor], Tensor | None, Tensor | None]


class PairWeightedAveraging(PairInputBlock):
    """Each row of m averaged along its residues, with weights from z, the same for all rows (AlphaFold 3 supplement, algorithm 10).

    w_ij = softmax_j of a projection of z_ij; m_si += gated sum_j w_ij v_sj.

    Args:
        c_m, c_z: channels of the MSA and pair representation. heads: of width c_m / heads, or `d_head`.
        mask: what hides residue j from residue i: that no sequence has it ("residues", AlphaFold 3), or the pair mask ("pair", Boltz and
            OpenFold3).

    Raises:
        ConfigError: heads do not divide c_m, or mask is neither.
    """

    slices = -3
    attn: GatedAveraging

    def __init__(
        self, c_m: int, c_z: int, heads: int, *, d_head: int | None = None, mask: Literal["residues", "pair"] = "residues"
    ) -> None:
        super().__init__(c_z, heads, ("bias",), bias_init="linear")
        if mask not in ("residues", "pair"):
            raise ConfigError(f"PairWeightedAveraging: mask is {mask!r}; allowed are 'residues' and 'pair'.")
        self.c_m, self.mask = c_m, mask
        self.norm = LayerNorm(c_m)
        self.attn = GatedAveraging(c_m, heads, d_head=d_head)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch s n c_m"]:
        """delta of m. Which mask hides residues is up to `mask`; the other one only keeps non-finite entries at masked places out."""
        check_features("PairWeightedAveraging", "m", m, ["N_seq", "N_res", "c_m"], self.c_m)
        check_mask("PairWeightedAveraging", "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        self.check_pair(z, pair_mask, "m", m, batch=m.shape[:-3])
        return self.delta(m, slice(0, m.shape[-3]), self._context(self.pair_inputs(z, pair_mask)[0], msa_mask, pair_mask))

    def prepare(self, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> Context:
        """What every row needs: the bias, which residues it hides, and the mask of the MSA."""
        return self._context(self.pair_inputs(z, pair_mask, sliced=True)[0], msa_mask, pair_mask)

    def _context(self, biases: list[Tensor], msa_mask: Tensor | None, pair_mask: Tensor | None) -> Context:
        if self.mask == "pair":
            keys = None if pair_mask is None else rearrange(pair_mask, "... q k -> ... 1 1 q k")
        else:
            keys = None if msa_mask is None else rearrange(msa_mask.any(-2), "... k -> ... 1 1 1 k")
        return biases, keys, msa_mask

    def delta(self, m: Tensor, part: slice, context: Context) -> Tensor:
        biases, keys, msa_mask = context
        x = self.norm(hide_nonfinite(m, None if msa_mask is None else take_part(msa_mask, part, -2)))
        return self.attn(x, biases=biases, mask=keys)

    def slice_bytes(self, m: Tensor, itemsize: int) -> int:
        return positions_per_slice(m, self.slices) * self.attn.bytes_per_position(itemsize)
