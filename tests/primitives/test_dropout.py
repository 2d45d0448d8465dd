"""Dropout with one mask for all rows, or for all columns."""

import pytest
import torch

from evoattn.errors import ConfigError
from evoattn.primitives import SharedDropout


@pytest.mark.parametrize(("over", "axis"), [("rows", -3), ("columns", -2)])
def test_what_shares_a_mask(over: str, axis: int) -> None:
    out = SharedDropout(0.5, over)(torch.ones(2, 6, 7, 8))
    assert set(out.unique().tolist()) == {0.0, 2.0}  # dropped, or scaled by 1 / (1 - rate)
    assert torch.equal(out, out.narrow(axis, 0, 1).expand_as(out))
    other = -5 - axis  # the other one of rows and columns
    assert not torch.equal(out, out.narrow(other, 0, 1).expand_as(out))
    assert not torch.equal(out[0], out[1])  # each batch entry draws its own
    assert not torch.equal(out, out[..., :1].expand_as(out))


def test_nothing_shared() -> None:
    out = SharedDropout(0.5, "entries")(torch.ones(2, 6, 7, 8))
    assert all(not torch.equal(out, out.narrow(axis, 0, 1).expand_as(out)) for axis in range(4))


def test_factor_is_what_is_multiplied_with() -> None:
    """As wide as what is not shared, so that a slice of the update can take its slice of it."""
    drop = SharedDropout(0.5, "rows")
    torch.manual_seed(3)
    expected = drop(torch.ones(2, 6, 7, 8))
    torch.manual_seed(3)
    factor = drop.factor(torch.ones(2, 6, 7, 8))
    assert factor is not None and factor.shape == (2, 1, 7, 8) and torch.equal(factor.expand_as(expected), expected)
    assert drop.eval().factor(torch.ones(2, 6, 7, 8)) is None


@pytest.mark.parametrize("rate", [0.15, 0.25])
def test_how_many_are_dropped(rate: float) -> None:
    """40,000 draws: the share lies within five standard deviations, and the mean is kept as well."""
    out = SharedDropout(rate, "rows")(torch.ones(1, 200, 200))
    deviation = (rate * (1 - rate) / 40_000) ** 0.5
    assert abs((out == 0).double().mean().item() - rate) < 5 * deviation
    assert abs(out.mean().item() - 1) < 5 * deviation / (1 - rate)


def test_off() -> None:
    x = torch.randn(3, 4, 5)
    assert SharedDropout(0.5, "rows").eval()(x) is x
    assert SharedDropout(0.0, "columns")(x) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_and_gradient(dtype: torch.dtype) -> None:
    x = torch.ones(4, 5, 6, dtype=dtype, requires_grad=True)
    out = SharedDropout(0.3, "rows")(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert out.dtype == dtype and torch.equal(grad, out)
    assert out.max() == torch.tensor(1 / 0.7, dtype=dtype)


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_bad_rate(rate: float) -> None:
    with pytest.raises(ConfigError, match=f"SharedDropout: rate is {rate}; it must be at least 0 and below 1"):
        SharedDropout(rate, "rows")


def test_bad_axis() -> None:
    with pytest.raises(ConfigError, match="over is 'row'; allowed are 'entries', 'rows', 'columns', 'rows and channels', 'columns and ch"):
        SharedDropout(0.1, "row")
