"""Layers as functions, and their parameters as ops of several layers take them."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class Norm(NamedTuple):
    """A layer norm: weight and bias [c], or None for 1 and 0."""

    weight: Tensor | None
    bias: Tensor | None
    eps: float = 1e-5


class Linear(NamedTuple):
    """A linear layer: weight [c_out, c_in], and bias [c_out] or None."""

    weight: Tensor
    bias: Tensor | None


def layer_norm(
    x: Float[Tensor, "*axes c"], weight: Float[Tensor, "c"] | None, bias: Float[Tensor, "c"] | None, eps: float = 1e-5
) -> Float[Tensor, "*axes c"]:
    """Layer norm over the channels, computed in float32 or wider whatever comes in (Ba et al. 2016).

    It stands in front of projections, so its result is in the dtype that matrix products take at the moment (that of ``torch.autocast``,
    where it is on): several projections of it then do not each convert it.
    """
    weight, bias = (None if w is None else w.to(torch.promote_types(x.dtype, w.dtype)) for w in (weight, bias))
    return lowered(functional.layer_norm(x, x.shape[-1:], weight, bias, eps))


def lowered(x: Tensor) -> Tensor:
    """`x` in the dtype that autocast would convert it to in front of a matrix product; `x` itself where autocast is off."""
    device = x.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return x.to(torch.get_autocast_dtype(device)) if on and x.dtype != torch.float64 else x  # as autocast, which leaves float64 alone
