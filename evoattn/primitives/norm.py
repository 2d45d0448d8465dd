"""The layer norm in front of every projection."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels, computed in float32 or wider whatever comes in (Ba et al. 2016).

    Its output is in the dtype that matrix products take at the moment (that of ``torch.autocast``, where it is on), so that several
    projections of it do not each convert it.
    """

    def forward(self, x: Float[Tensor, "*axes c"]) -> Float[Tensor, "*axes c"]:
        wide = torch.promote_types(x.dtype, self.weight.dtype)  # a wider input widens the parameters; a narrower one is read as it is
        return lowered(layer_norm(x, self.normalized_shape, self.weight.to(wide), self.bias.to(wide), self.eps))


def lowered(x: Tensor) -> Tensor:
    """`x` in the dtype that autocast would convert it to in front of a matrix product; `x` itself where autocast is off."""
    device = x.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return x.to(torch.get_autocast_dtype(device)) if on and x.dtype != torch.float64 else x  # as autocast, which leaves float64 alone
