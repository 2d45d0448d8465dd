"""The update of the pair representation from the MSA representation."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.blocks.slices import by_rows
from evoattn.errors import ConfigError
from evoattn.execution import Executable
from evoattn.ops import hide_nonfinite, outer_product_mean
from evoattn.primitives import LayerNorm, linear
from evoattn.shapes import check_features, check_mask
from evoattn.updates import positions_per_slice, sum_bytes, take_part

Norm = Literal["sum and bias", "sum"]


class OuterProductMean(Executable):
    """z_ij += mean over sequences of a_si outer b_sj, projected (AlphaFold 2 supplement, algorithm 10).

    As in AlphaFold 2 the projected sum and its bias are divided by eps + the number of sequences that have both residues: a pair that no
    sequence covers gets bias / eps, a thousand times the bias. With ``norm="sum"`` the sum alone is divided, by at least 1, and such a pair
    gets the bias (Boltz, RosettaFold 3).

    Args:
        c_m, c_z: channels of the MSA and pair representation. c_hidden: channels of a and b, so c_hidden^2 of their outer product.
        eps: added to the number of sequences.
        norm: what is divided: "sum and bias" or "sum". proj_bias: whether the projections to a and b have biases (AlphaFold 3: no).

    Raises:
        ConfigError: norm is neither.
    """

    reads_x = False  # it updates z, and reads m
    slices = -3

    def __init__(
        self, c_m: int, c_z: int, c_hidden: int, *, eps: float = 1e-3, norm: Norm = "sum and bias", proj_bias: bool = True
    ) -> None:
        super().__init__()
        if norm not in ("sum and bias", "sum"):
            raise ConfigError(f"OuterProductMean: norm is {norm!r}; allowed are 'sum and bias' and 'sum'.")
        self.c_m, self.eps, self.divides_bias = c_m, eps, norm == "sum and bias"
        self.norm = LayerNorm(c_m)
        self.left = linear(c_m, c_hidden, bias=proj_bias)
        self.right = linear(c_m, c_hidden, bias=proj_bias)
        self.out = linear(c_hidden * c_hidden, c_z, init="final")

    def forward(
        self, m: Float[Tensor, "*batch s n c_m"], msa_mask: Bool[Tensor, "*batch s n"] | None = None
    ) -> Float[Tensor, "*batch n n c_z"]:
        check_features("OuterProductMean", "m", m, ["N_seq", "N_res", "c_m"], self.c_m)
        check_mask("OuterProductMean", "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        a, b = self._operands(m, msa_mask)
        return self._mean(a, b, self._count(m, msa_mask))

    def prepare(self, z: Tensor, m: Tensor, msa_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """a, b and the count; z is what will be updated, and is not read."""

        def operands(rows: Tensor, part: slice) -> Tensor:
            return torch.cat(self._operands(rows, None if msa_mask is None else take_part(msa_mask, part, -2)), dim=-1)

        a, b = by_rows(operands, m).chunk(2, dim=-1)
        return a, b, self._count(m, msa_mask)

    def delta(self, z: Tensor, part: slice, context: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        a, b, count = context
        return self._mean(take_part(a, part, -2), b, take_part(count, part, -2))

    def slice_bytes(self, z: Tensor, itemsize: int) -> int:
        return positions_per_slice(z, self.slices) * (2 * self.out.weight.shape[1] + 2 * z.shape[-1]) * sum_bytes(z, itemsize)

    def _operands(self, m: Tensor, msa_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The two projections of all sequences or some, [*batch, s, n, c], 0 where masked."""
        x = self.norm(hide_nonfinite(m, msa_mask))
        a, b = self.left(x), self.right(x)
        return (a, b) if msa_mask is None else (a.masked_fill(~msa_mask.unsqueeze(-1), 0.0), b.masked_fill(~msa_mask.unsqueeze(-1), 0.0))

    def _count(self, m: Tensor, msa_mask: Tensor | None) -> Tensor:
        """What to divide by, [*batch, n, n]: made of the number of sequences that have both residues."""
        accumulate = torch.promote_types(m.dtype, torch.float32)
        if msa_mask is None:
            *batch, n_seq, n_res, _ = m.shape
            count = torch.full((), n_seq, dtype=accumulate, device=m.device).expand(*batch, n_res, n_res)
        else:
            present = msa_mask.to(accumulate)
            count = present.mT @ present
        return count + self.eps if self.divides_bias else count.clamp(min=1)

    def _mean(self, a: Tensor, b: Tensor, count: Tensor) -> Tensor:
        backend = self.execution.outer_product_mean
        if self.divides_bias:
            return outer_product_mean(a, b, self.out.weight, self.out.bias, count, backend=backend)
        mean = outer_product_mean(a, b, self.out.weight, None, count, backend=backend)
        return mean + self.out.bias.to(mean.dtype)
