"""Residual updates x + block(x): whole, in place slice by slice, or recomputed in the backward pass.

What a stack is written in. The three ways give the same numbers; they differ in the memory they take.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from evoattn.ops.kept import Results, keeping, taking, unread
from evoattn.ops.layers import lowered
from evoattn.ops.tiles import spans

SLICE = 2**25  # bytes of temporaries of one slice of an update: 32 MiB. Its backward pass takes about three times as much.


@runtime_checkable
class SlicedBlock(Protocol):
    """A block that can also be run slice by slice: what :func:`update_` needs.

    A block that updates x without reading it, as the outer product mean does, says ``reads_x = False``, and is called without it. One that
    reads the whole of something for each slice says from which length on that is quick: ``quick_from``.
    """

    slices: int
    """Axis of x along which slices do not depend on each other, once prepared: -3 or -2."""

    def prepare(self, x: Tensor, *inputs: Any) -> Any:
        """What every slice needs of the whole inputs, before anything is updated."""

    def delta(self, x: Tensor, part: slice, context: Any) -> Tensor:
        """The update of `x`, which is the slice `part` of the whole.

        A layer that it ends in may be :func:`evoattn.primitives.final`; nothing that has to know the value may then follow.
        """

    def slice_bytes(self, x: Tensor, itemsize: int) -> int:
        """Temporary memory that :meth:`delta` takes per unit of the sliced axis, if a number in a matrix product takes `itemsize` bytes."""


@runtime_checkable
class Drop(Protocol):
    """Dropout of updates."""

    def __call__(self, delta: Tensor) -> Tensor: ...

    def factor(self, x: Tensor) -> Tensor | None:
        """What an update of `x` is multiplied with, drawn anew; it broadcasts to x. None where nothing is dropped."""


Update = Callable[..., Tensor]
"""How a stack applies a block: :func:`update`, :func:`recomputed`, or :func:`update_` with a length of slices."""


def positions_per_slice(x: Tensor, axis: int) -> int:
    """Positions (entries without the channels, the last axis) in a slice of length 1 along `axis`, which is negative."""
    return prod(size for place, size in enumerate(x.shape, start=-x.dim()) if place not in (axis, -1))


def update(x: Tensor, block: Callable[..., Tensor], *inputs: Any, drop: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """x + drop(block(x, *inputs)): the residual update that every stack is written in."""
    delta = block(x, *inputs) if getattr(block, "reads_x", True) else block(*inputs)
    return x + (delta if drop is None else drop(delta))


def update_(x: Tensor, block: SlicedBlock, *inputs: Any, drop: Drop | None = None, memory: int | None = None) -> Tensor:
    """:func:`update` in place, slice by slice, with temporaries of about `memory` bytes; returns x. No slice sees a half-updated x."""
    context = block.prepare(x, *inputs)
    factor = None if drop is None else drop.factor(x)
    for part in slices_of(x, block, memory):
        piece = take_part(x, part, block.slices)
        delta = delta_of(block, piece, part, x, context)
        piece += delta if factor is None else delta * take_shared(factor, part, block.slices)
    return x


def recomputed(x: Tensor, block: Callable[..., Tensor], *inputs: Any, drop: Drop | None = None, memory: int | None = None) -> Tensor:
    """:func:`update` for training in little memory: what is inside it is computed again in the backward pass, slice by slice.

    Kept are x, `inputs`, and the results of attentions (:mod:`evoattn.ops.kept`). Nothing random may be inside; dropout is drawn once.
    """
    parameters = [p for p in block.parameters() if p.requires_grad] if isinstance(block, nn.Module) else []
    if not isinstance(block, SlicedBlock) or out_of_autograd_only(parameters) or torch.compiler.is_compiling():
        return update(x, _CheckpointedWhole(block), *inputs, drop=drop)
    factor = None if drop is None else drop.factor(x)
    work = _Work(block, slices_of(x, block, memory), len(inputs), parameters)
    # Their gradients come all at once. Views of them are reached one by one, in an order that is the same in every process of a group,
    # whatever its sample looks like; DeepSpeed relies on that.
    return _Recomputed.apply(work, factor, x, *inputs, *(p.view_as(p) for p in parameters))


def out_of_autograd_only(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether parameters are there only while autograd itself uses them: under DeepSpeed's ZeRO-3."""
    return any(hasattr(p, "ds_id") for p in parameters)


def sum_bytes(x: Tensor, itemsize: int) -> int:
    """Bytes of a number in a product that sums over the length, which float16 would overflow in; see :mod:`evoattn.ops.pairwise`."""
    return torch.float32.itemsize if x.dtype == torch.float16 else itemsize


def quick_slice(x: Tensor, block: SlicedBlock, itemsize: int) -> int:
    """Bytes of temporaries of a slice, where memory is not short."""
    return max(SLICE, getattr(block, "quick_from", 1) * block.slice_bytes(x, itemsize))


def slices_of(x: Tensor, block: SlicedBlock, memory: int | None) -> list[slice]:
    """Consecutive slices of x that take about `memory` bytes each, by default as many as are quick.

    An empty x has an empty one, so that its parameters get gradients of 0.
    """
    itemsize = lowered(x[..., :0]).element_size()
    memory = quick_slice(x, block, itemsize) if memory is None else memory
    return list(spans(x.shape[block.slices], max(1, memory // max(1, block.slice_bytes(x, itemsize))))) or [slice(0, 0)]


def take_part(x: Tensor, part: slice, axis: int) -> Tensor:
    """The slice `part` of `x` along `axis`, a view."""
    return x.narrow(axis, part.start, part.stop - part.start)


def take_shared(x: Tensor, part: slice, axis: int) -> Tensor:
    """:func:`take_part`; all of what is shared along that axis."""
    return x if x.shape[axis] == 1 else take_part(x, part, axis)


def delta_of(block: Any, piece: Tensor, part: slice, whole: Tensor, context: Any) -> Tensor:
    """block.delta; who captures attention in the block is told which part of how many rows it sees."""
    looks = [module.look for module in block.modules() if getattr(module, "look", None) is not None]
    for look in looks:
        look.seen = part.start, whole.shape[block.slices]
    try:
        return block.delta(piece, part, context)
    finally:
        for look in looks:
            look.seen = None


class _CheckpointedWhole:
    """A block that keeps nothing but its inputs for the backward pass."""

    def __init__(self, block: Callable[..., Tensor]) -> None:
        self.block, self.reads_x = block, getattr(block, "reads_x", True)

    def __call__(self, *inputs: Any) -> Tensor:
        delta: Tensor = checkpoint(self.block, *inputs, use_reentrant=False, preserve_rng_state=False)
        return delta


@dataclass(frozen=True)
class _Work:
    """One recomputed update: its block, the slices of x, how many inputs follow x, and the parameters that want gradients."""

    block: Any
    parts: list[slice]
    n_inputs: int
    parameters: list[nn.Parameter]

    def delta(self, piece: Tensor, part: slice, whole: Tensor, context: Any) -> Tensor:
        return delta_of(self.block, piece, part, whole, context)

    def take(self, x: Tensor, part: slice) -> Tensor:
        return take_shared(x, part, self.block.slices)


class _Recomputed(torch.autograd.Function):
    """x + factor * block(x, *inputs).

    Autograd would keep every slice, join and add up whole gradients of what slices share; here each slice adds to one sum in place.
    """

    @staticmethod
    def forward(ctx: Any, work: _Work, factor: Tensor | None, x: Tensor, *others: Any) -> Tensor:
        inputs = others[: work.n_inputs]
        results: list[Results] = []
        out = None
        ctx.work, ctx.products = work, present_products(x.device.type)
        ctx.versions = [p._version for p in work.parameters]
        with keeping(results), ctx.products():
            context = work.block.prepare(x, *inputs)
            for part in work.parts:
                piece = work.take(x, part)
                delta = work.delta(piece, part, x, context)
                delta = delta if factor is None else delta * work.take(factor, part)
                if out is None:
                    out = torch.empty_like(x, dtype=torch.result_type(piece, delta))
                torch.add(piece, delta, out=work.take(out, part))
        ctx.lengths = [len(result) for result in results]
        ctx.save_for_backward(x, factor, *inputs, *(tensor for result in results for tensor in result))
        assert out is not None
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        work: _Work = ctx.work
        refuse_changed(work.block, work.parameters, ctx.versions)
        x, factor, *saved = ctx.saved_tensors
        kept = iter(saved[work.n_inputs :])
        results: list[Results] = [tuple(islice(kept, length)) for length in ctx.lengths]
        _, _, x_wanted, *wanted = ctx.needs_input_grad
        inputs = [leaf(y, want) for y, want in zip(saved[: work.n_inputs], wanted, strict=False)]
        whole, parameters = leaf(x, x_wanted), work.parameters
        grad_x = grad  # where x itself is not read
        with torch.enable_grad(), ctx.products(), taking(results):
            prepared = work.block.prepare(whole, *inputs)
            flat, structure = tree_flatten(prepared)
            leaves = [leaf(y, isinstance(y, Tensor) and y.requires_grad) for y in flat]
            context = tree_unflatten(leaves, structure)
            sums = [_Sum() for _ in (*leaves, *parameters)]
            for part in work.parts:
                piece = leaf(work.take(x, part), x_wanted)
                with unread():
                    delta = work.delta(piece, part, x, context)
                grad_out = work.take(grad, part)
                grad_delta = grad_out if factor is None else grad_out * work.take(factor, part)
                grad_piece, *found = gradients([delta], [piece, *leaves, *parameters], [grad_delta])
                if grad_piece is not None:
                    grad_x = torch.empty_like(x) if grad_x is grad else grad_x
                    torch.add(grad_out, grad_piece, out=work.take(grad_x, part))
                for total, more in zip(sums, found, strict=True):
                    total.add(more)
                del delta, grad_piece, found
            in_context, of_parameters = sums[: len(leaves)], sums[len(leaves) :]
            reached = [(y, total.value) for y, total in zip(flat, in_context, strict=True) if total.value is not None]
            of_context = gradients([y for y, _ in reached], [whole, *inputs, *parameters], [value for _, value in reached])
        more_x, of_inputs, rest = of_context[0], of_context[1 : 1 + work.n_inputs], of_context[1 + work.n_inputs :]
        if more_x is not None:
            grad_x = grad_x + more_x if grad_x is grad else grad_x.add_(more_x)
        for total, again in zip(of_parameters, rest, strict=True):
            total.add(again)
        return None, None, grad_x if x_wanted else None, *of_inputs, *(total.value for total in of_parameters)


class _Sum:
    """A sum of gradients. What autograd gives may be shared with other gradients, so that only a sum of our own is added to in place."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self.ours = False

    def add(self, more: Tensor | None) -> None:
        if more is None:
            return
        if self.value is None:
            self.value = more
        elif self.ours:
            self.value += more
        else:
            self.value, self.ours = self.value + more, True


def refuse_changed(block: Any, parameters: Sequence[nn.Parameter], versions: Sequence[int]) -> None:
    """Raise if a parameter is not what it was when it had that version."""
    if [p._version for p in parameters] != list(versions):
        raise RuntimeError(
            f"{type(block).__name__}: a parameter was changed in place between the forward and the backward pass, which computes the block "
            "again; make the optimiser's step after the backward pass."
        )


def leaf(x: Any, wanted: bool) -> Any:
    """A tensor cut off from what it comes from; other things as they are."""
    return x.detach().requires_grad_(wanted) if isinstance(x, Tensor) else x


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Any], grads: Sequence[Tensor]) -> list[Tensor | None]:
    """Of each of `inputs`, None where it is no tensor, wants none, or is not reached."""
    known = [(y, g.to(y.dtype)) for y, g in zip(outputs, grads, strict=True) if y.requires_grad]
    places = [place for place, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    result: list[Tensor | None] = [None] * len(inputs)
    if known and places:
        found = torch.autograd.grad([y for y, _ in known], [inputs[place] for place in places], [g for _, g in known], allow_unused=True)
        for place, x in zip(places, found, strict=True):
            result[place] = x
    return result


def present_products(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """What enters autocast as it is now. Without its cache, which confuses casts that are recorded with those that are not."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    on, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return partial(torch.autocast, device, dtype, enabled=on, cache_enabled=False)
