"""Initialisers of the published systems, and a linear layer that carries one.

Names follow AlphaFold 2's code: "linear" is LeCun's, "relu" is He's, both truncated normals; "glorot" is uniform; "gating" starts a gate at
sigmoid(1); "final" starts a residual branch at 0.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

TRUNCATED_STD = 0.87962566103423978  # standard deviation of a unit normal cut at +-2, which the drawn scale is corrected by


def lecun_(weight: Tensor, gain: float = 1.0) -> None:
    """Truncated normal with variance gain / fan_in."""
    std = math.sqrt(gain / weight.shape[1]) / TRUNCATED_STD
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def normal_(weight: Tensor) -> None:
    """Normal with variance 1 / fan_in, untruncated: AlphaFold 2's projection of the pair bias."""
    nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


WEIGHTS: dict[str, Callable[[Tensor], object]] = {
    "linear": lecun_,
    "relu": lambda weight: lecun_(weight, gain=2.0),
    "glorot": nn.init.xavier_uniform_,
    "normal": normal_,
    "gating": nn.init.zeros_,
    "final": nn.init.zeros_,
}


def linear(c_in: int, c_out: int, *, bias: bool = True, init: str = "linear") -> nn.Linear:
    """A linear layer initialised by the name `init`; its bias starts at 0, or at 1 for a gate."""
    layer = nn.Linear(c_in, c_out, bias=bias)
    with torch.no_grad():
        WEIGHTS[init](layer.weight)
        if bias:
            layer.bias.fill_(1.0 if init == "gating" else 0.0)
    return layer


def redraw_(model: nn.Module, seed: int) -> nn.Module:
    """Draw every parameter of `model` anew, zeros and ones included, so that no branch is silent; returns the model.

    Matrices N(0, 1 / fan_in), biases N(0, 0.3^2), scales of norms 1 + N(0, 0.3^2). For tests, and to look at an untrained model: as
    initialised for training its residual branches all end in zeros.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * parameter.shape[1] ** -0.5)
            else:
                parameter.copy_(0.3 * noise + (1.0 if name.endswith("weight") else 0.0))
    return model
