"""The layer norm in front of every projection."""

from jaxtyping import Float
from torch import Tensor, nn

from evoattn.ops.layers import layer_norm


class LayerNorm(nn.LayerNorm):
    """Layer norm over the channels, computed in float32 or wider: :func:`evoattn.ops.layers.layer_norm` with its parameters."""

    def forward(self, x: Float[Tensor, "*axes c"]) -> Float[Tensor, "*axes c"]:
        return layer_norm(x, self.weight, self.bias, self.eps)
