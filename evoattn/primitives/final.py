"""The last layer of a residual branch."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.ops.kept import is_unread, nothing
from evoattn.ops.layers import lowered


def final(layer: nn.Module, x: Float[Tensor, "*axes c_in"]) -> Float[Tensor, "*axes c_out"]:
    """layer(x), of which a recomputed branch (:mod:`evoattn.ops.kept`) needs the gradient alone: its product is not computed again.

    What is not an ordinary linear layer, an adapter say that has taken its place, is called as ever, and so is one with hooks.
    """
    if not is_unread() or type(layer) is not nn.Linear or hooked(layer):
        return layer(x)
    x = lowered(x)
    out: Tensor = _GradientOnly.apply(x, *(None if p is None else p.to(x.dtype) for p in (layer.weight, layer.bias)))
    return out


def hooked(layer: nn.Module) -> bool:
    """Whether somebody is told of the calls of `layer`."""
    return any((layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks))


class _GradientOnly(torch.autograd.Function):
    """The gradients of a linear layer without its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return nothing(x, *x.shape[:-1], weight.shape[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        x_wanted, weight_wanted, bias_wanted = ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        return (
            grad @ weight if x_wanted else None,
            flat.mT @ x.flatten(0, -2) if weight_wanted else None,
            flat.sum(0) if bias_wanted else None,
        )
