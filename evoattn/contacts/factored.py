"""Couplings between the columns of an alignment as one layer of attention."""

from collections.abc import Iterator
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.contacts.score import average_product_correction, zero_sum_gauge
from evoattn.ops import attention_weights

AMINO_ACIDS: Final = 20

BLOCK: Final = 16
"""Residues whose couplings are made at a time: 16 x N_res x 400 numbers stay in the processor's cache, and bound the memory."""


class FactoredAttention(nn.Module):
    """A Potts model whose couplings are attention: W_ij(a, b) = sum_h A^h_ij V^h(a, b), made symmetric.

    Bhattacharya et al. 2020, "Single layers of attention suffice to predict protein contacts" (doi:10.1101/2020.12.21.423882). The
    logits of letter a at residue i are bias_i(a) + sum_j W_ij(a, x_j). Queries and keys belong to positions, not to letters, so that one
    map per head serves all sequences. A position does not attend itself.

    Deviation: W_ij(a, b) is the mean of the above and of its mirror W_ji(b, a), as couplings are; the paper does so for the score only.

    Args:
        n_res: N_res, columns of the alignment. heads, d_head: of the attention.
        generator: of the initial parameters; queries and keys are N(0, 0.4^2), so that the attention starts diffuse, values N(0, 0.1^2).
    """

    def __init__(self, n_res: int, heads: int, d_head: int, generator: torch.Generator) -> None:
        super().__init__()
        self.queries = nn.Parameter(0.4 * torch.randn(n_res, heads, d_head, generator=generator))
        self.keys = nn.Parameter(0.4 * torch.randn(n_res, heads, d_head, generator=generator))
        self.values = nn.Parameter(0.1 * torch.randn(heads, AMINO_ACIDS, AMINO_ACIDS, generator=generator))
        self.bias = nn.Parameter(torch.zeros(n_res, AMINO_ACIDS))

    def maps(self) -> Float[Tensor, "h n n"]:
        """The attention of each head, A^h_ij; its diagonal is 0."""
        others = ~torch.eye(len(self.bias), dtype=torch.bool)
        return attention_weights(self.queries, self.keys, mask=others[None])

    @torch.no_grad()
    def scores(self) -> Float[Tensor, "n n"]:
        """Frobenius norm of W_ij in the zero-sum gauge, with average product correction; larger for likelier contacts."""
        maps, values = self.maps(), both_ways(zero_sum_gauge(self.values)) / 2
        norms = [couplings(of_rows, values).norm(dim=-1) for _, of_rows in blocks(both_ways(maps))]
        return average_product_correction(torch.cat(norms).double())


def both_ways(x: Float[Tensor, "h a b"]) -> Float[Tensor, "two_h a b"]:
    """Matrices, and then their mirror images: the sum over 2 h heads of maps and halved values is symmetric."""
    return torch.cat([x, x.transpose(1, 2)])


def blocks(maps: Float[Tensor, "h n n"]) -> Iterator[tuple[slice, Float[Tensor, "h r n"]]]:
    """The rows of the maps, some at a time."""
    for start in range(0, maps.shape[1], BLOCK):
        rows = slice(start, min(start + BLOCK, maps.shape[1]))
        yield rows, maps[:, rows]


def couplings(maps: Float[Tensor, "h r n"], values: Float[Tensor, "h a b"]) -> Float[Tensor, "r n ab"]:
    """sum_h A^h_ij V^h(a, b), one matrix product."""
    heads, rows, n_res = maps.shape
    return (maps.reshape(heads, rows * n_res).T @ values.reshape(heads, -1)).view(rows, n_res, -1)
