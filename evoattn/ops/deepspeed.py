"""DeepSpeed4Science's EvoformerAttention (Song et al. 2023, arXiv 2310.04610): a CUTLASS kernel with the gradients of both biases.

Its own limits, as of DeepSpeed 0.19, are in :func:`why_not`. It adds up the gradients of biases by atomic additions, so they differ from
run to run in the last bits. The kernel is compiled at its first call, which takes minutes.
"""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor

from evoattn.ops.devices import against_card, current_device_of
from evoattn.ops.packages import missing_package
from evoattn.ops.registry import Backend
from evoattn.ops.rows import as_rows, why_no_rows

MODULES = ("deepspeed.ops.deepspeed4science", "deepspeed.ops.op_builder")
GRID = 65535  # blocks along the axes of a CUDA grid that hold heads and rows
HIDDEN = -1e4  # a masked logit: far below any other, and such that rounding it does not drown them


@cache
def missing() -> str | None:
    """What DeepSpeed lacks here; where there is a card, DeepSpeed itself is asked whether it can build its kernel."""
    absent = missing_package(MODULES, "evoattn[deepspeed]")
    if absent or not torch.cuda.is_available():
        return absent
    if not import_module("deepspeed.ops.op_builder").EvoformerAttnBuilder().is_compatible():
        return "DeepSpeed cannot build its kernel evoformer_attn here: that takes nvcc and CUTLASS (pip install nvidia-cutlass)"
    return None


def why_not(spec: Any) -> list[str]:
    reasons = against_card(spec, (8, 0) if spec.dtype == torch.bfloat16 else (7, 0)) + why_no_rows(spec)
    if spec.dtype not in (torch.bfloat16, torch.float16):
        reasons.append(f"serves bfloat16 and float16, not {spec.dtype}")
    if any(dtype != spec.dtype for dtype in spec.bias_dtypes):
        reasons.append(f"takes biases of the dtype of the queries, {spec.dtype}, got {', '.join(map(str, spec.bias_dtypes))}")
    if spec.q_len != spec.k_len:
        reasons.append(f"needs as many keys as queries, got {spec.k_len} and {spec.q_len}")
    if spec.q_len <= 16:
        reasons.append(f"needs more than 16 positions, got {spec.q_len}")
    if spec.d != spec.dv or spec.d % 8 or not 0 < spec.d <= 64:
        reasons.append(f"needs queries and values of one width, 8 to 64 in steps of 8, got d {spec.d} and dv {spec.dv}")
    if max(prod(spec.batch), spec.heads) > GRID:
        reasons.append(f"serves at most {GRID} rows and heads, got {prod(spec.batch)} and {spec.heads}")
    if spec.return_lse:
        reasons.append("does not give the log-sum-exp")
    if spec.side_stream:
        reasons.append("works on the device's default stream only, and another one is current")
    return reasons


def run(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, None]:
    """Attention [*batch, q, h, d]."""
    kernel = import_module(MODULES[0]).DS4Sci_EvoformerAttention
    factor = scale * q.shape[-1] ** 0.5  # on top of the kernel's own d^-0.5
    rows = as_rows(q if factor == 1.0 else q * factor, k, v, biases, mask)
    keys = rows.keys
    if rows.mask is not None:
        keys = (q.new_zeros(()) if keys is None else keys).expand(rows.mask.shape).masked_fill(~rows.mask, HIDDEN)
    with current_device_of(q):
        out = kernel(rows.q, rows.k, rows.v, [keys, rows.pair])  # a list of its own: the kernel appends to it
    if out.requires_grad:
        out.register_hook(Tensor.contiguous)  # the kernel reads the incoming gradient as if it were
    return rows.restore(out, q), None


DEEPSPEED = Backend("deepspeed", run, why_not, missing, package="deepspeed", needs_check=True)
