"""The flash-attn package (Dao 2023, arXiv 2307.08691), for attention without bias and mask: columns of an alignment without padding."""

from collections.abc import Sequence
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor

from evoattn.ops.devices import against_card, current_device_of
from evoattn.ops.packages import missing_package
from evoattn.ops.registry import Backend


def missing() -> str | None:
    return missing_package(("flash_attn",), "flash-attn")


def why_not(spec: Any) -> list[str]:
    reasons = against_card(spec, (8, 0))
    if spec.dtype not in (torch.bfloat16, torch.float16):
        reasons.append(f"serves bfloat16 and float16, not {spec.dtype}")
    if spec.bias_shapes:
        reasons.append("takes no bias")
    if spec.mask_shape is not None:
        reasons.append("takes no mask")
    if spec.d != spec.dv or spec.d % 8 or not 0 < spec.d <= 256:
        reasons.append(f"needs queries and values of one width, 8 to 256 in steps of 8, got d {spec.d} and dv {spec.dv}")
    if spec.return_lse:
        reasons.append("does not give a log-sum-exp with gradients")
    return reasons


def run(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, None]:
    """Attention [*batch, q, h, d]."""
    kernel = import_module("flash_attn").flash_attn_func
    folded = (x.reshape(prod(x.shape[:-3]), *x.shape[-3:]) for x in (q, k, v))
    with current_device_of(q):
        out = kernel(*folded, softmax_scale=scale)
    return out.reshape(q.shape), None


FLASH_ATTN = Backend("flash_attn", run, why_not, missing, package="flash-attn", needs_check=True)
