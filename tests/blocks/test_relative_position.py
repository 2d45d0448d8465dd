"""Relative positions of AlphaFold-Multimer and AlphaFold 3, against one-hot features by hand."""

import numpy as np
import pytest
import torch

from evoattn import redraw_
from evoattn.blocks import RelativePosition

RESIDUE = [0, 1, 2, 40, 0, 1, 2, 3, 0, 0, 7]
CHAIN = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3]
ENTITY = [5, 5, 5, 5, 5, 5, 5, 5, 8, 8, 8]
COPY = [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 9]
TOKEN = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def one_hot(value: int, most: int, same: bool) -> list[float]:
    """Clipped to +-most; one more class where it does not apply."""
    out = [0.0] * (2 * most + 2)
    out[min(max(value + most, 0), 2 * most) if same else 2 * most + 1] = 1.0
    return out


@pytest.mark.parametrize("tokens", [False, True])
def test_chains(tokens: bool) -> None:
    """AlphaFold-Multimer's 66 + 1 + 6 channels; AlphaFold 3 has 66 more, of tokens within a residue, before the entity (no bias)."""
    embed = redraw_(RelativePosition(4, 32, 2, tokens=tokens, bias=not tokens).double(), seed=1)
    assert embed.linear.in_features == (139 if tokens else 73)
    n = len(RESIDUE)
    features = np.zeros((n, n, embed.linear.in_features))
    for i in range(n):
        for j in range(n):
            chain, entity = CHAIN[i] == CHAIN[j], ENTITY[i] == ENTITY[j]
            row = one_hot(RESIDUE[i] - RESIDUE[j], 32, chain)
            if tokens:
                row += one_hot(TOKEN[i] - TOKEN[j], 32, chain and RESIDUE[i] == RESIDUE[j])
            features[i, j] = [*row, float(entity), *one_hot(COPY[i] - COPY[j], 2, entity)]
    given = [torch.tensor(x) for x in (RESIDUE, CHAIN, ENTITY, COPY, TOKEN)]
    out = embed(*(given if tokens else given[:4]))
    torch.testing.assert_close(out, embed.linear(torch.from_numpy(features)), rtol=0, atol=1e-12)


def test_without_ids_all_is_one_chain() -> None:
    embed, index = redraw_(RelativePosition(4, 32, 2), seed=1), torch.tensor([[3, 4, 90]])
    zeros = torch.zeros_like(index)
    torch.testing.assert_close(embed(index), embed(index, zeros, zeros, zeros), rtol=0, atol=0)
    (out := embed(index)).sum().backward()
    assert embed.linear.weight.grad is not None and embed.linear.weight.grad.isfinite().all() and out.shape == (1, 3, 3, 4)
