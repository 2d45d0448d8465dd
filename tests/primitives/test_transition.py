"""The two-layer network: against the formulas, and what its mask does."""

import pytest
import torch

from evoattn.errors import ConfigError, ShapeError
from evoattn.primitives import Transition, redraw_


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_formula(activation: str) -> None:
    module = redraw_(Transition(6, n=3, activation=activation), seed=2).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    normed = (x - mean) / (variance + 1e-5).sqrt() * module.norm.weight + module.norm.bias
    up = normed @ module.up.weight.T
    if activation == "relu":
        expected = (up + module.up.bias).clamp(min=0) @ module.down.weight.T + module.down.bias
    else:
        gate = normed @ module.gate.weight.T
        expected = (gate * torch.sigmoid(gate) * up) @ module.down.weight.T
        assert module.up.bias is None and module.down.bias is None
    torch.testing.assert_close(module(x), expected)
    assert module.up.weight.shape == (18, 6)


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_a_new_one_is_silent(activation: str) -> None:
    assert not Transition(6, activation=activation)(torch.randn(4, 6)).any()


def test_nan_behind_the_mask_reaches_no_gradient() -> None:
    module = redraw_(Transition(6), seed=2)
    x, mask = torch.randn(4, 6), torch.tensor([True, True, False, True])

    def gradients(padding: float) -> list[torch.Tensor]:
        padded = x.masked_fill(~mask[:, None], padding)
        return list(torch.autograd.grad(module(padded, mask)[mask].sum(), list(module.parameters())))

    assert all(torch.equal(got, clean) for got, clean in zip(gradients(torch.nan), gradients(0.0), strict=True))
    assert torch.equal(module(x, mask), module(x))  # finite values stay, masked or not


def test_bad_input(no_type_checks: None) -> None:
    with pytest.raises(ConfigError, match="Transition: activation is 'tanh'; allowed are 'relu', 'gelu', 'swiglu'"):
        Transition(6, activation="tanh")
    with pytest.raises(ShapeError, match=r"Transition: input has shape \(4, 5\); expected \[\*batch, c\] with c = 6"):
        Transition(6)(torch.zeros(4, 5))
