"""Initial values: their spread, what starts at 0 or 1, and drawing everything anew."""

import math

import pytest
import torch
from torch import nn

from evoattn.primitives import GatedAttention, Transition, linear, redraw_

C_IN, C_OUT = 300, 400


@pytest.mark.parametrize(
    ("init", "std", "cut"),
    [
        ("linear", (1 / C_IN) ** 0.5, 2 / 0.87962566 * (1 / C_IN) ** 0.5),  # LeCun, cut at two deviations of the uncut normal
        ("relu", (2 / C_IN) ** 0.5, 2 / 0.87962566 * (2 / C_IN) ** 0.5),  # He
        ("glorot", (2 / (C_IN + C_OUT)) ** 0.5, (6 / (C_IN + C_OUT)) ** 0.5),  # uniform
        ("normal", (1 / C_IN) ** 0.5, math.inf),
    ],
)
def test_spread(init: str, std: float, cut: float) -> None:
    """Of 120,000 weights: mean and standard deviation to 2 %, nothing beyond the cut, something close to it."""
    layer = linear(C_IN, C_OUT, init=init)
    assert layer.weight.shape == (C_OUT, C_IN)
    assert abs(layer.weight.mean().item()) < 0.02 * std
    assert layer.weight.std().item() == pytest.approx(std, rel=0.02)
    assert layer.weight.abs().max() > (3.5 * std if cut == math.inf else 0.98 * cut)
    assert layer.weight.abs().max() <= cut * (1 + 1e-6)
    assert not layer.bias.any()


@pytest.mark.parametrize(("init", "bias"), [("gating", 1.0), ("final", 0.0)])
def test_zero_weights(init: str, bias: float) -> None:
    layer = linear(5, 6, init=init)
    assert not layer.weight.any() and torch.equal(layer.bias, torch.full((6,), bias))
    assert linear(5, 6, init=init, bias=False).bias is None


def test_a_new_attention_is_silent_and_its_gate_open() -> None:
    module = GatedAttention(8, 2)
    assert not module(torch.randn(3, 8)).any()
    assert torch.equal(torch.sigmoid(module.gate(torch.randn(3, 8))), torch.full((3, 8), torch.sigmoid(torch.tensor(1.0)).item()))


def test_redraw() -> None:
    model = nn.ModuleList([GatedAttention(64, 2), Transition(64)])
    assert redraw_(model, seed=5) is model
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert all((parameter != 0).all() for parameter in first.values())
    torch.rand(3)  # whatever else is drawn
    redraw_(model, seed=5)
    assert all(torch.equal(parameter, first[name]) for name, parameter in model.named_parameters())
    redraw_(model, seed=6)
    assert not any(torch.equal(parameter, first[name]) for name, parameter in model.named_parameters())
    assert first["1.down.weight"].std().item() == pytest.approx(256**-0.5, rel=0.05)
    assert first["1.up.bias"].std().item() == pytest.approx(0.3, rel=0.15)
    assert first["1.norm.weight"].mean().item() == pytest.approx(1.0, abs=0.15)
