"""The two-layer network that follows an attention."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from evoattn.errors import ConfigError
from evoattn.ops import hide_nonfinite
from evoattn.primitives.final import final
from evoattn.primitives.init import linear
from evoattn.primitives.norm import LayerNorm
from evoattn.shapes import check_features
from evoattn.updates import positions_per_slice

Activation = Literal["relu", "gelu", "swiglu"]


class Transition(nn.Module):
    """Norm, widen by `n`, non-linearity, and back: x -> delta.

    ``"relu"``: down(relu(up(x))), with biases (AlphaFold 2 supplement, algorithms 9 and 15); ``"gelu"``: the same with GELU (MSA
    Transformer). ``"swiglu"``: down(silu(gate(x)) * up(x)), without biases (AlphaFold 3 supplement, algorithm 11).

    Args:
        c: channels. n: how many times wider the hidden layer is. activation: "relu", "gelu" or "swiglu".
        zero_masked: the delta is 0 at masked positions, as in OpenFold3; AlphaFold ignores the mask here.
        c_hidden: width of the hidden layer, if not n times c.

    Raises:
        ConfigError: the activation is none of them. ShapeError: the input has another width.
    """

    def __init__(
        self, c: int, n: int = 4, activation: Activation = "relu", *, zero_masked: bool = False, c_hidden: int | None = None
    ) -> None:
        super().__init__()
        if activation not in get_args(Activation):
            raise ConfigError(f"Transition: activation is {activation!r}; allowed are {', '.join(map(repr, get_args(Activation)))}.")
        bias, hidden = activation != "swiglu", c_hidden or n * c
        self.activation, self.zero_masked = activation, zero_masked
        self.norm = LayerNorm(c)
        self.gate = linear(c, hidden, bias=False, init="relu") if activation == "swiglu" else None
        self.up = linear(c, hidden, bias=bias, init="relu")
        self.down = linear(hidden, c, bias=bias, init="final")

    def forward(self, x: Float[Tensor, "*axes c"], mask: Bool[Tensor, "*axes"] | None = None) -> Float[Tensor, "*axes c"]:
        """Unless `zero_masked`, the mask only keeps NaN at padded positions from spreading through gradients."""
        check_features(type(self).__name__, "input", x, ["c"], self.norm.normalized_shape[0])
        x = self.norm(hide_nonfinite(x, mask))
        if self.gate is None:
            hidden = gelu(self.up(x)) if self.activation == "gelu" else relu(self.up(x), inplace=True)
        elif torch.is_grad_enabled():
            hidden = silu(self.gate(x)) * self.up(x)
        else:
            hidden = silu(self.gate(x), inplace=True).mul_(self.up(x))
        delta = final(self.down, hidden)
        return delta.masked_fill(~mask.unsqueeze(-1), 0.0) if self.zero_masked and mask is not None else delta

    def prepare(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """Positions do not depend on each other: there is only the mask to hand on."""
        return mask

    def delta(self, x: Tensor, part: slice, mask: Tensor | None) -> Tensor:
        return Transition.forward(self, x, None if mask is None else mask[..., part, :])

    def slice_bytes(self, x: Tensor, itemsize: int) -> int:
        branches = 2 if self.gate is None else 3
        return positions_per_slice(x, -3) * (2 * x.shape[-1] + branches * self.up.weight.shape[0]) * itemsize
