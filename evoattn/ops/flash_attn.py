"""The flash-attn package (Dao 2023, arXiv 2307.08691), for attention without bias: columns of an alignment.

Its kernels take no mask, but sequences of different lengths, packed. So the keys that a mask leaves are packed, which copies them.
"""

from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from evoattn.ops.devices import against_card, current_device_of
from evoattn.ops.packages import missing_package
from evoattn.ops.registry import Backend

POSITIONS = 2**31 - 1  # of all packed sequences together: the kernel numbers them in 32 bits


def missing() -> str | None:
    return missing_package(("flash_attn",), "flash-attn")


def why_not(spec: Any) -> list[str]:
    reasons = against_card(spec, (8, 0))
    if spec.dtype not in (torch.bfloat16, torch.float16):
        reasons.append(f"serves bfloat16 and float16, not {spec.dtype}")
    if spec.bias_shapes:
        reasons.append("takes no bias")
    if spec.mask_shape is not None and spec.mask_shape[-3:-1] != (1, 1):
        reasons.append(f"takes masks of keys, [..., 1, 1, k], got {list(spec.mask_shape)}")
    positions = prod(spec.batch) * max(spec.q_len, spec.k_len)
    if spec.mask_shape is not None and positions > POSITIONS:
        reasons.append(f"packs at most {POSITIONS} positions under a mask, got {positions}")
    if spec.d != spec.dv or spec.d % 8 or not 0 < spec.d <= 256:
        reasons.append(f"needs queries and values of one width, 8 to 256 in steps of 8, got d {spec.d} and dv {spec.dv}")
    if spec.return_lse:
        reasons.append("does not give a log-sum-exp with gradients")
    return reasons


def run(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, None]:
    """Attention [*batch, q, h, d]."""
    package = import_module("flash_attn")
    queries, keys, values = (x.reshape(prod(x.shape[:-3]), *x.shape[-3:]) for x in (q, k, v))
    with current_device_of(q):
        if mask is None:
            out = package.flash_attn_func(queries, keys, values, softmax_scale=scale)
        else:
            kept = mask.expand(*q.shape[:-3], 1, 1, k.shape[-3]).reshape(keys.shape[:2])
            out = _packed(package.flash_attn_varlen_func, queries, keys, values, kept, scale)
    return out.reshape(q.shape), None


def _packed(kernel: Any, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, scale: float) -> Tensor:
    """Attention of [entries, length, h, d] to the keys that are kept, [entries, length]."""
    first = torch.arange(k.shape[1], device=k.device) == 0
    kept = kept | (first & ~kept.any(-1, keepdim=True))  # no sequence is empty; what comes of one that was is for the caller to zero
    lengths = pad(kept.sum(-1).cumsum(0), (1, 0)).to(torch.int32)
    queries = torch.arange(0, (q.shape[0] + 1) * q.shape[1], q.shape[1], dtype=torch.int32, device=q.device)
    out: Tensor = kernel(q.flatten(0, 1), k[kept], v[kept], queries, lengths, q.shape[1], k.shape[1], softmax_scale=scale)
    return out


FLASH_ATTN = Backend("flash_attn", run, why_not, missing, package="flash-attn", needs_check=True)
