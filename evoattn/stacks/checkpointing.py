"""A block that keeps nothing but its inputs for the backward pass, which computes it again (Chen et al. 2016, arXiv 1604.06174).

In the forward pass the block works in place, slice by slice, on copies of its inputs, which become its outputs. So the little that outlives
it is allocated before its temporaries, not between them: a C library cannot give back, nor use again for anything as large, what is left
between tensors that stay. (Of eight blocks with whole temporaries 7.5 GiB were seen where 2.0 GiB were in use.)
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evoattn.execution import Block
from evoattn.updates import (
    Drop,
    SlicedBlock,
    gradients,
    leaf,
    out_of_autograd_only,
    present_products,
    recomputed,
    refuse_changed,
    update,
    update_,
)


def checkpointed(block: Block, states: tuple[Tensor, ...], *inputs: Tensor | None) -> Any:
    """block(*states, *inputs), where the states are what it updates and returns. Gradients are those of an ordinary call."""
    if not torch.is_grad_enabled():
        return block(*states, *inputs)
    parameters = [p for p in block.parameters() if p.requires_grad]
    if out_of_autograd_only(parameters) or torch.compiler.is_compiling():
        return checkpoint(block, *states, *inputs, use_reentrant=False)
    out = _Checkpointed.apply(block, parameters, len(states), *states, *inputs, *(p.view_as(p) for p in parameters))
    return out if len(states) > 1 else out[0]


class _Drawn:
    """Dropout that has been drawn already."""

    def __init__(self, factor: Tensor | None) -> None:
        self.drawn = factor

    def __call__(self, delta: Tensor) -> Tensor:
        return delta if self.drawn is None else delta * self.drawn

    def factor(self, x: Tensor) -> Tensor | None:
        return self.drawn


class _Checkpointed(torch.autograd.Function):
    """Dropout is drawn in the forward pass, and kept: what is drawn is shared by whole rows or columns, and small."""

    @staticmethod
    def forward(ctx: Any, block: Block, parameters: list[nn.Parameter], n_states: int, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        inputs = tensors[: len(tensors) - len(parameters)]
        ctx.block, ctx.parameters, ctx.versions = block, parameters, [p._version for p in parameters]
        factors: list[Tensor | None] = []

        def in_place(x: Tensor, part: Any, *more: Any, drop: Drop | None = None) -> Tensor:
            factors.append(None if drop is None else drop.factor(x))
            way = update_ if isinstance(part, SlicedBlock) else update
            return way(x, part, *more, drop=_Drawn(factors[-1]))

        states = [x.clone() for x in inputs[:n_states] if x is not None]
        ctx.products = present_products(states[0].device.type)
        with ctx.products(), block.updating(in_place, whole=True):
            out = block(*states, *inputs[n_states:])
        ctx.n_inputs = len(inputs)
        ctx.save_for_backward(*inputs, *factors)
        ctx.set_materialize_grads(False)
        return out if isinstance(out, tuple) else (out,)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        block: Block = ctx.block
        refuse_changed(block, ctx.parameters, ctx.versions)
        saved = ctx.saved_tensors
        inputs = [leaf(x, want) for x, want in zip(saved[: ctx.n_inputs], ctx.needs_input_grad[3:], strict=False)]
        factors: Iterator[Tensor | None] = iter(saved[ctx.n_inputs :])
        way = recomputed if block.execution.recomputes_updates else update

        def again(x: Tensor, part: Any, *more: Any, drop: Drop | None = None) -> Tensor:
            return way(x, part, *more, drop=_Drawn(next(factors)))

        with torch.enable_grad(), ctx.products(), block.updating(again, whole=True):
            out = block(*inputs)
        outputs = out if isinstance(out, tuple) else (out,)
        known = [(y, grad) for y, grad in zip(outputs, grads, strict=True) if grad is not None]
        found = gradients([y for y, _ in known], [*inputs, *ctx.parameters], [grad for _, grad in known])
        del out, outputs, known, inputs
        return None, None, None, *(None if x is None else x.clone() for x in found)  # to where the temporaries were
