"""Memory that blocks take while they are run slice by slice: the cost of each op in bytes, from the shapes it comes from.

How much a slice takes stands in each block (``slice_bytes``). Here is what a block keeps for all of its slices, and needs to make that.
"""

from dataclasses import dataclass
from functools import singledispatch
from math import prod
from typing import Any

import torch
from torch import Tensor

from evoattn.blocks.outer_product import OuterProductMean
from evoattn.blocks.pair import TriangleAttention, TriangleMultiplication
from evoattn.blocks.pair_input import PairInputBlock
from evoattn.blocks.slices import AT_ONCE
from evoattn.updates import SlicedBlock, quick_slice

OVERHEAD = 9 * 2**24
"""Bytes that kernels take inside, and the allocator does not give back at once, whatever the sizes: 144 MiB (benchmarks/memory.py)."""


@dataclass(frozen=True)
class UpdateCost:
    """Bytes of one update in place.

    Attributes:
        name: of the block that makes it.
        representations: the two that a stack updates.
        context: what all slices share, from before the first to the end of the last.
        making: temporaries while that is made.
        per_position: temporaries of a slice, for each of the `length` positions along the sliced axis.
        quick: what a slice may take where memory is not short.
    """

    name: str
    representations: tuple[int, int]
    context: int
    making: int
    per_position: int
    length: int
    quick: int = 0

    def slice_length(self, budget: int | None = None) -> int:
        """Positions per slice: as many as are fast, and fewer where `budget` bytes leave no room for these; at least one."""
        return max(1, min(self.length, self.slice_memory(budget) // max(1, self.per_position)))

    def slice_memory(self, budget: int | None = None) -> int:
        """What a slice may take under `budget`."""
        return self.quick if budget is None else min(self.quick, budget - OVERHEAD - sum(self.representations) - self.context)

    def peak(self, budget: int | None = None) -> int:
        """Under `budget`, if it is at least the floor; without one, in slices that are fast."""
        return OVERHEAD + sum(self.representations) + self.context + self.working(budget)

    def working(self, budget: int | None = None) -> int:
        """Temporaries: of a slice, or while its context is made."""
        return max(self.making, self.slice_length(budget) * self.per_position)

    @property
    def floor(self) -> int:
        """The peak with slices of one position: it cannot be done in less."""
        return self.peak(0)


def update_cost(name: str, block: SlicedBlock, representations: tuple[int, int], itemsize: int, x: Tensor, *inputs: Any) -> UpdateCost:
    """What `block` takes to update `x` from `inputs`, which may be without data (on the device "meta"); products are `itemsize` bytes."""
    context, making = shared_bytes(block, itemsize, x, *inputs)
    per_position, length = block.slice_bytes(x, itemsize), x.shape[block.slices]
    return UpdateCost(name, representations, context, making, per_position, length, quick_slice(x, block, itemsize))


@singledispatch
def shared_bytes(block: Any, itemsize: int, x: Tensor, *inputs: Any) -> tuple[int, int]:
    """Bytes of what `block` prepares for all slices, and of the temporaries meanwhile.

    By default none: transitions and attention along columns look at their slice alone.
    """
    return 0, 0


@shared_bytes.register
def _(block: TriangleMultiplication, itemsize: int, z: Tensor, *masks: Tensor | None) -> tuple[int, int]:
    """One operand of the product whole; rows of z normed, projected and gated while it is made."""
    hidden = block.norm_out.normalized_shape[0]
    return _positions(z) * hidden * itemsize, _rows(z) * (2 * z.shape[-1] * z.element_size() + 2 * hidden * itemsize)


@shared_bytes.register
def _(block: TriangleAttention, itemsize: int, z: Tensor, *masks: Tensor | None) -> tuple[int, int]:
    """The bias of every pair, first as it is projected and then as it is used, and the normed pair features if they are keys or values."""
    context, making = _of_pair(z, itemsize, block.attn.heads, takes_pair=block.attn.takes_pair)
    return context, making + _positions(z) * block.attn.heads * itemsize


@shared_bytes.register
def _(block: PairInputBlock, itemsize: int, x: Tensor, z: Tensor, *masks: Tensor | None) -> tuple[int, int]:
    """As triangle attention takes its third edge."""
    return _of_pair(z, itemsize, block.attn.heads, takes_pair=block.attn.takes_pair)


@shared_bytes.register
def _(block: OuterProductMean, itemsize: int, z: Tensor, m: Tensor, *masks: Tensor | None) -> tuple[int, int]:
    """Both projections of all sequences, one of them a second time as the product takes it, and the number of sequences of every pair."""
    hidden, wide = block.left.weight.shape[0], torch.promote_types(m.dtype, torch.float32).itemsize
    making = _rows(m) * (2 * m.shape[-1] * m.element_size() + 4 * hidden * itemsize)
    return _positions(m) * 3 * hidden * itemsize + _positions(z) * wide, making


def _of_pair(z: Tensor, itemsize: int, heads: int, *, takes_pair: bool) -> tuple[int, int]:
    bias = _positions(z) * heads * itemsize
    if takes_pair:
        return bias + z.numel() * itemsize, z.numel() * z.element_size()
    return bias, _rows(z) * (2 * z.shape[-1] * z.element_size() + heads * itemsize)


def _positions(x: Tensor) -> int:
    return prod(x.shape[:-1])


def _rows(x: Tensor) -> int:
    """Positions of the rows that :func:`evoattn.blocks.slices.by_rows` works on at a time."""
    of_row = prod(x.shape[:-3]) * x.shape[-2]
    return min(_positions(x), max(of_row, AT_ONCE // x.shape[-1]))
