"""Where residues are relative to each other in the sequence, for the pair representation."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from evoattn.primitives import linear


class RelativePosition(nn.Module):
    """Encoding of the residue offset i - j, clipped to +-max_relative (AlphaFold 2 supplement, algorithms 4 and 5).

    With `max_chain` also of chains, as in AlphaFold-Multimer (Evans et al. 2021, algorithm 5 of its supplement): residues of different
    chains share one encoding of the offset; a feature for the same entity (chains of one sequence); and between chains of one entity the
    difference of their numbers, clipped to +-max_chain. `tokens` adds AlphaFold 3's offset of tokens within a residue (its algorithm 3).

    Args:
        c_z: channels of the pair representation. bias: AlphaFold 3 has none.
    """

    def __init__(self, c_z: int, max_relative: int, max_chain: int | None = None, *, tokens: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.max_relative, self.max_chain, self.tokens = max_relative, max_chain, tokens
        offsets = 2 * max_relative + 1
        width = offsets if max_chain is None else (1 + tokens) * (offsets + 1) + 1 + (2 * max_chain + 2)
        self.linear = linear(width, c_z, bias=bias)

    def forward(
        self,
        residue_index: Int[Tensor, "*batch n"],
        asym_id: Int[Tensor, "*batch n"] | None = None,
        entity_id: Int[Tensor, "*batch n"] | None = None,
        sym_id: Int[Tensor, "*batch n"] | None = None,
        token_index: Int[Tensor, "*batch n"] | None = None,
        *,
        rows: slice = slice(None),
    ) -> Float[Tensor, "*batch rows n c_z"]:
        """Chains by their number, the number of their sequence, and their number among its copies; all residues one chain by default.

        Of the residues i only `rows` are encoded, all of them by default.
        """
        offset = _clipped(residue_index, self.max_relative, rows)
        if self.max_chain is None:
            return self._look_up(offset)
        one_chain = torch.zeros_like(residue_index)
        asym_id, entity_id, sym_id = (one_chain if x is None else x for x in (asym_id, entity_id, sym_id))
        same_chain, same_entity = _same(asym_id, rows), _same(entity_id, rows)
        other = 2 * self.max_relative + 1
        bins = [torch.where(same_chain, offset, other)]
        start = other + 1
        if self.tokens:
            token_index = one_chain if token_index is None else token_index
            same_residue = same_chain & _same(residue_index, rows)
            bins.append(start + torch.where(same_residue, _clipped(token_index, self.max_relative, rows), other))
            start += other + 1
        bins.append(start + 1 + torch.where(same_entity, _clipped(sym_id, self.max_chain, rows), 2 * self.max_chain + 1))
        encoding = self._look_up(bins[0])
        for more in bins[1:]:
            encoding = encoding + nn.functional.embedding(more, self.linear.weight.mT)
        return encoding + same_entity.unsqueeze(-1) * self.linear.weight[:, start]

    def _look_up(self, bins: Tensor) -> Tensor:
        # a one-hot times a matrix is a look-up of its columns; the bias comes along
        table = self.linear.weight.mT
        return nn.functional.embedding(bins, table if self.linear.bias is None else table + self.linear.bias)


def _clipped(index: Tensor, most: int, rows: slice) -> Tensor:
    """i - j from -most to most, counted from 0."""
    return (index[..., rows].unsqueeze(-1) - index.unsqueeze(-2) + most).clamp(0, 2 * most)


def _same(index: Tensor, rows: slice) -> Tensor:
    return index[..., rows].unsqueeze(-1) == index.unsqueeze(-2)
