"""Updates that ESM's models have of their own. Every block maps its input to a residual delta."""

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, cat, nn

from evoattn.ops import hide_nonfinite
from evoattn.primitives import LayerNorm, TiedAttention, final, linear
from evoattn.shapes import check_features, check_mask
from evoattn.updates import positions_per_slice, take_part


class TiedRowAttention(nn.Module):
    """Self-attention along the residues with one map for all sequences (Rao et al. 2021; ``RowSelfAttention`` of its code).

    As in the MSA Transformer masked entries add nothing to the map, which leaves out the residues that are masked in the first row, the
    query; and rows of padding count in its scale, N_seq^-1/2: an alignment padded to more rows gives other numbers than by itself.

    Args:
        c_m: channels of the MSA representation. heads: attention heads of width c_m / heads.
    """

    def __init__(self, c_m: int, heads: int) -> None:
        super().__init__()
        self.c_m = c_m
        self.norm = LayerNorm(c_m)
        self.attn = TiedAttention(c_m, heads)

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch s n c_m"]:
        return self.attn(self._normed(m, msa_mask), counted=msa_mask, mask=_keys(msa_mask))

    def weights(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch h n n"]:
        """The map [*batch, h, query, key] that :meth:`forward` averages with; differentiable."""
        return self.attn.weights(self._normed(m, msa_mask), counted=msa_mask, mask=_keys(msa_mask))

    def _normed(self, m: Tensor, msa_mask: Tensor | None) -> Tensor:
        check_features("TiedRowAttention", "m", m, ["N_seq", "N_res", "c_m"], self.c_m)
        check_mask("TiedRowAttention", "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        return self.norm(hide_nonfinite(m, msa_mask))


def _keys(msa_mask: Tensor | None) -> Tensor | None:
    """The residues that the query has, as keys of the one map."""
    return None if msa_mask is None else rearrange(msa_mask[..., :1, :], "... 1 k -> ... 1 1 k")


class SequenceToPair(nn.Module):
    """z_ij += projection of (q_j * k_i, q_j - k_i), with q and k projections of s (Lin et al. 2023; ESMFold's ``SequenceToPair``).

    Args:
        c_s, c_z: channels of the sequence and pair representation. c_hidden: channels of q and of k; c_z / 2 by default.
    """

    reads_x = False  # it updates z, and reads s
    slices = -3

    def __init__(self, c_s: int, c_z: int, c_hidden: int | None = None) -> None:
        super().__init__()
        self.c_s, self.c_hidden = c_s, c_hidden or c_z // 2
        self.norm = LayerNorm(c_s)
        self.proj = linear(c_s, 2 * self.c_hidden)
        self.out = linear(2 * self.c_hidden, c_z, init="final")

    def forward(self, s: Float[Tensor, "*batch n c_s"], mask: Bool[Tensor, "*batch n"] | None = None) -> Float[Tensor, "*batch n n c_z"]:
        """delta of z. The mask only keeps non-finite entries of s at masked places out: ESMFold uses none here."""
        check_features("SequenceToPair", "s", s, ["N_res", "c_s"], self.c_s)
        check_mask("SequenceToPair", "mask", mask, s.shape[:-1], ["N_res"])
        return self._pairs(*self._projected(s, mask))

    def prepare(self, z: Tensor, s: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """q and k; z is what will be updated, and is not read."""
        return self._projected(s, mask)

    def delta(self, z: Tensor, part: slice, context: tuple[Tensor, Tensor]) -> Tensor:
        q, k = context
        return self._pairs(q, take_part(k, part, -2))

    def slice_bytes(self, z: Tensor, itemsize: int) -> int:
        return positions_per_slice(z, self.slices) * (4 * self.c_hidden + z.shape[-1]) * itemsize

    def _projected(self, s: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k = self.proj(self.norm(hide_nonfinite(s, mask))).chunk(2, dim=-1)
        return q, k

    def _pairs(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = rearrange(q, "... j c -> ... 1 j c"), rearrange(k, "... i c -> ... i 1 c")
        return final(self.out, cat([q * k, q - k], dim=-1))
