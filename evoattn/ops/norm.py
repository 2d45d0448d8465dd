"""The layer norm in front of every projection."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


def layer_norm(
    x: Float[Tensor, "*axes c"], weight: Float[Tensor, "c"] | None, bias: Float[Tensor, "c"] | None, eps: float = 1e-5
) -> Float[Tensor, "*axes c"]:
    """Layer norm over the channels, computed in float32 or wider whatever comes in (Ba et al. 2016).

    The result is in the dtype that matrix products take at the moment (that of ``torch.autocast``, where it is on), so that several
    projections of it do not each convert it.
    """
    weight, bias = (None if w is None else w.to(torch.promote_types(x.dtype, w.dtype)) for w in (weight, bias))
    return lowered(functional.layer_norm(x, x.shape[-1:], weight, bias, eps))


def lowered(x: Tensor) -> Tensor:
    """`x` in the dtype that autocast would convert it to in front of a matrix product; `x` itself where autocast is off."""
    device = x.device.type
    if x.dtype == torch.float64 or not torch.is_autocast_enabled(device):  # autocast leaves float64 alone
        return x
    return x.to(torch.get_autocast_dtype(device))
