"""No tensor of the size of the logits comes into being, forward or backward: every tensor that torch makes is looked at."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evoattn.ops import attention, attention_weights, outer_product_mean, pair_attention, pairwise, tiles


class Largest(TorchDispatchMode):
    """Notes the elements of the largest storage behind any tensor that an operation returns; a view that is only expanded costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor):
                self.elements = max(self.elements, x.untyped_storage().nbytes() // x.element_size())
        return result


def largest(op: Callable[[], Tensor], *wanted: Tensor) -> int:
    """Of the forward pass and, when gradients are `wanted`, of the backward pass."""
    with Largest() as seen:
        out = op()
        if wanted:
            torch.autograd.grad(out.square().sum(), wanted)
    return seen.elements


S, N, H, D = 8, 48, 4, 8
LOGITS = S * H * N * N


@pytest.mark.parametrize("masks", ["none", "one per row of the alignment", "rows x columns"])
@pytest.mark.parametrize("backend", ["sdpa", "streaming"])
def test_attention(backend: str, masks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row attention of an alignment: nothing is larger than the inputs and one tile, with the gradient of the pair bias, too."""
    monkeypatch.setattr(tiles, "TILE", 8192)
    q, k, v = (torch.randn(S, N, H, D, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, H, N, N, requires_grad=True)
    mask = None if masks == "none" else torch.rand(S, 1, 1, N) < 0.8
    if masks == "rows x columns":
        mask = (torch.rand(S, 1, 1, 1) < 0.8) & (torch.rand(1, 1, 1, N) < 0.8)

    def op(backend: str = backend) -> Tensor:
        return attention(q, k, v, biases=[bias], mask=mask, backend=backend)

    allowed = max(q.numel(), bias.numel(), 8192)
    assert largest(op, q, k, v, bias) <= allowed < LOGITS / 4
    assert largest(lambda: op("reference")) >= LOGITS  # what is looked for would be seen


@pytest.mark.parametrize("masked", [False, True])
def test_pair_attention(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the logits nor one key per pair and head, [N, N, h, d]."""
    monkeypatch.setattr(tiles, "TILE", 8192)
    q, k, v = (torch.randn(S, N, H, D, requires_grad=True) for _ in range(3))
    pair, pair_queries = torch.randn(1, N, N, 6, requires_grad=True), torch.randn(S, N, H, 6, requires_grad=True)
    mask = torch.rand(S, 1, 1, N) < 0.8 if masked else None

    def op(backend: str = "auto") -> Tensor:
        out, pair_out = pair_attention(q, k, v, pair, pair_queries=pair_queries, mask=mask, backend=backend)
        return out.sum() + pair_out.sum()

    allowed = max(q.numel(), pair.numel())
    assert largest(op, q, k, v, pair, pair_queries) <= allowed < min(LOGITS, N * N * H * D) / 4
    assert largest(lambda: op("reference")) >= LOGITS


def test_attention_weights() -> None:
    """Only the heads and rows that were asked for."""
    q, k, bias = torch.randn(S, N, H, D), torch.randn(S, N, H, D), torch.randn(1, H, N, N)
    allowed = max(q.numel(), bias.numel())
    assert largest(lambda: attention_weights(q, k, biases=[bias], heads=[1], rows=[0, 5])) <= allowed < LOGITS / 4
    assert largest(lambda: attention_weights(q, k, biases=[bias])) >= LOGITS


def test_outer_product_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairwise, "OUTER_TILE", 4 * N * 64)
    a, b = (torch.randn(5, N, 8, requires_grad=True) for _ in range(2))
    weight, bias = torch.randn(4, 64, requires_grad=True), torch.randn(4, requires_grad=True)

    def op() -> Tensor:
        return outer_product_mean(a, b, weight, bias, torch.full((N, N), 5.0))

    assert largest(op, a, b, weight, bias) <= 4 * N * 64 < N * N * 64 / 4
    monkeypatch.setattr(pairwise, "OUTER_TILE", 2**30)
    assert largest(op) >= N * N * 64
