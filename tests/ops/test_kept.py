"""Results taken over from a forward pass by its repetition."""

import pytest
import torch

from evoattn import attention
from evoattn.ops.kept import Results, keeping, once, recording, taking


def test_computed_once() -> None:
    calls: list[int] = []

    def compute(x: torch.Tensor) -> Results:
        calls.append(1)
        return 2 * x, None

    results: list[Results] = []
    x = torch.ones(3)
    with keeping(results):
        assert recording()
        first = once(compute, x)
    assert not recording() and len(calls) == 1
    with taking(results):
        again = once(compute, 5 * x)
    assert len(calls) == 1 and again[0] is not None and first[0] is not None
    assert torch.equal(again[0], first[0]) and again[1] is None
    once(compute, x)
    assert len(calls) == 2


def test_a_failure_ends_it() -> None:
    with pytest.raises(ZeroDivisionError), keeping([]):
        _ = 1 / 0
    assert not recording()


@pytest.mark.parametrize("backend", ["sdpa", "streaming"])
def test_gradients_from_kept_results(backend: str) -> None:
    q, k, v = (torch.randn(2, 5, 2, 8, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(attention(q, k, v, biases=[bias], backend=backend).square().sum(), [q, k, v, bias])
    results: list[Results] = []
    with keeping(results), torch.no_grad():
        attention(q, k, v, biases=[bias], backend=backend)
    with taking(results):
        out = attention(q, k, v, biases=[bias], backend=backend)
    assert len(results) == 1
    for got, wanted in zip(torch.autograd.grad(out.square().sum(), [q, k, v, bias]), expected, strict=True):
        torch.testing.assert_close(got, wanted)
    assert not any(x is not None and x.requires_grad for x in results[0])
