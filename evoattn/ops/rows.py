"""Attention as foreign kernels take it: rows that share a pair bias.

They know two batch axes [B, N]: the N rows of one entry share its pair bias [B, 1, h, q, k], and each row has its keys' bias or mask
[B, N, 1, 1, k]. Here any call is brought to this form, without expanding a bias over rows, or told why it has not got it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """q [B, N, q, h, d], k and v [B, N, k, h, d], the sum of pair biases, the sum of biases of keys, and the mask of keys."""

    q: Tensor
    k: Tensor
    v: Tensor
    pair: Tensor | None
    keys: Tensor | None
    mask: Tensor | None

    def restore(self, out: Tensor, like: Tensor) -> Tensor:
        """[B, N, q, h, dv] with the batch axes of `like`."""
        return out.reshape(*like.shape[:-1], out.shape[-1])


def why_no_rows(spec: Any) -> list[str]:
    """What keeps a call from being rows that share a pair bias; [] when it is."""
    reasons = []
    pairs = [shape for shape in spec.bias_shapes if not of_keys(shape)]
    outer = range(_outer_axes(spec.batch, pairs))
    listed = ", ".join(str(list(shape)) for shape in pairs)
    if any(spec.batch[axis] > 1 and all(shape[axis] == 1 for shape in pairs) for axis in outer):
        reasons.append(f"wants pair biases shared along the last of the batch axes {list(spec.batch)} and none before, got {listed}")
    if pairs and prod(torch.broadcast_shapes(*pairs)) > max(map(prod, pairs)):
        reasons.append(f"adds up the pair biases, and the sum of {listed} is larger than each")
    if spec.mask_shape is not None and not of_keys(spec.mask_shape):
        reasons.append(f"takes masks of keys, [..., 1, 1, k], got {list(spec.mask_shape)}")
    if spec.kv_heads != spec.heads:
        reasons.append(f"needs as many key heads as query heads, got {spec.kv_heads} and {spec.heads}")
    return reasons


def as_rows(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None) -> Rows:
    """The call in that form: views of q, k and v where their strides allow it.

    A row without any allowed key attends all of them: kernels that put a large negative number in place of masked logits would lose their
    precision there, and :func:`evoattn.attention` zeroes such rows.
    """
    batch, heads = q.shape[:-3], q.shape[-2]
    pairs = [bias for bias in biases if not of_keys(bias.shape)]
    outer = _outer_axes(batch, [bias.shape for bias in pairs])

    def fold(x: Tensor) -> Tensor:
        return x.reshape(prod(x.shape[:outer]), prod(x.shape[outer:-3]), *x.shape[-3:])

    def per_row(x: Tensor) -> Tensor:
        return fold(x.expand(*batch, 1, 1, k.shape[-3]))

    pair = reduce(torch.add, pairs).expand(*[-1] * len(batch), heads, q.shape[-3], k.shape[-3]) if pairs else None
    of_key = [bias for bias in biases if of_keys(bias.shape)]
    if mask is not None:
        mask = per_row(mask | ~mask.any(-1, keepdim=True))
    return Rows(
        fold(q), fold(k), fold(v), None if pair is None else fold(pair), per_row(reduce(torch.add, of_key)) if of_key else None, mask,
    )  # fmt: skip


def of_keys(shape: Sequence[int]) -> bool:
    """Whether a bias or mask [*#batch, #h, #q, #k] depends on the key alone, beside the batch."""
    return shape[-3] == 1 and shape[-2] == 1


def _outer_axes(batch: Sequence[int], pairs: Sequence[Sequence[int]]) -> int:
    """How many of the batch axes come before the rows: up to the last along which a pair bias varies."""
    varying = [axis for axis in range(len(batch)) if any(shape[axis] > 1 for shape in pairs)]
    return varying[-1] + 1 if varying else 0
