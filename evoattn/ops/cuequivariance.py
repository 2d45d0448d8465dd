"""NVIDIA's cuEquivariance: triangle attention, and the triangle multiplicative update.

Triangle attention serves any rows that share one pair bias; single attention is one row. (Its function ``attention_pair_bias`` is a whole
block with its projections, not this op.)

The limits, as of 0.13, are in :func:`why_not` and :func:`update_why_not`. Where its kernels do not serve a call, cuEquivariance runs plain
torch, which materialises the logits; those calls are refused here.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from evoattn.ops.devices import against_card, compute_capability, current_device_of
from evoattn.ops.packages import missing_package
from evoattn.ops.registry import Backend
from evoattn.ops.rows import as_rows, of_keys, why_no_rows

MODULES = ("cuequivariance_torch", "cuequivariance_ops_torch")


def missing() -> str | None:
    return missing_package(MODULES, "evoattn[cuequivariance]")


def why_not(spec: Any) -> list[str]:
    reasons = against_card(spec, (8, 0)) + why_no_rows(spec)
    pairs = [dtype for shape, dtype in zip(spec.bias_shapes, spec.bias_dtypes, strict=True) if not of_keys(shape)]
    if not pairs:
        reasons.append("needs a pair bias")
    if len(pairs) < len(spec.bias_shapes):
        reasons.append("takes no bias of keys alone, only a boolean mask of them")
    rounds = (compute_capability(spec.arch) or (0, 0))[0] in (10, 12) and spec.dtype != torch.float32
    taken = (spec.dtype,) if rounds else (spec.dtype, torch.float32)
    if any(dtype not in taken for dtype in pairs):
        reasons.append(f"takes pair biases of {' or '.join(dict.fromkeys(map(str, taken)))} here, got {', '.join(map(str, pairs))}")
    width, step = {torch.bfloat16: (128, 8), torch.float16: (128, 8), torch.float32: (32, 4)}.get(spec.dtype, (0, 1))
    if not width:
        reasons.append(f"serves bfloat16, float16 and float32, not {spec.dtype}")
    elif spec.d != spec.dv or spec.d % step or not 0 < spec.d <= width:
        reasons.append(
            f"needs queries and values of one width, {step} to {width} in steps of {step} for {spec.dtype}, got d {spec.d} and dv {spec.dv}"
        )
    shortest = 200 if spec.d < 32 else 100
    if min(spec.q_len, spec.k_len) <= shortest:
        reasons.append(f"runs plain torch up to {shortest} positions at this width, got {min(spec.q_len, spec.k_len)}")
    if spec.return_lse:
        reasons.append("does not give a log-sum-exp with gradients")
    return reasons


def run(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, None]:
    """Attention [*batch, q, h, d]."""
    kernel = import_module(MODULES[0]).triangle_attention
    rows = as_rows(q, k, v, biases, mask)
    with current_device_of(q):
        out = kernel(*(x.transpose(2, 3) for x in (rows.q, rows.k, rows.v)), bias=rows.pair, mask=rows.mask, scale=scale)
    return rows.restore(out.transpose(2, 3), q), None


CUEQUIVARIANCE = Backend("cuequivariance", run, why_not, missing, package="cuequivariance-torch", needs_check=True)


def update_why_not(spec: Any) -> list[str]:
    """For a :class:`evoattn.ops.triangle_update.TriangleSpec`."""
    reasons = against_card(spec, (8, 0))
    if spec.dtype not in (torch.bfloat16, torch.float32):
        reasons.append(f"serves bfloat16 and float32, not {spec.dtype}; it keeps the product, which overflows float16, in the dtype of z")
    if spec.product_dtype != spec.dtype or spec.weight_dtypes != {spec.dtype}:
        reasons.append(f"computes in one dtype, that of z, {spec.dtype}, for products ({spec.product_dtype}) and parameters too")
    if spec.c_z % 32 or spec.c % 32:
        reasons.append(f"needs channels in steps of 32, got {spec.c_z} and {spec.c} of the product")
    if spec.eps[0] != spec.eps[1]:
        reasons.append(f"takes one eps for both norms, got {spec.eps[0]:g} and {spec.eps[1]:g}")
    if spec.mean:
        reasons.append("sums over the third residue, and does not average")
    if spec.n <= 100:
        reasons.append(f"runs plain torch up to 100 residues, got {spec.n}")
    return reasons


def update(z: Tensor, weights: Any, mask: Tensor | None, incoming: bool, divide_by: None) -> Tensor:
    """The update of z [*batch, n, n, c_z]; `weights` are :class:`evoattn.ops.triangle_update.TriangleWeights`."""
    kernel = import_module(MODULES[0]).triangle_multiplicative_update
    layers = {
        "norm_in": weights.norm_in, "p_in": weights.proj, "g_in": weights.gate,
        "norm_out": weights.norm_out, "p_out": weights.out, "g_out": weights.out_gate,
    }  # fmt: skip
    named = {f"{name}_{part}": getattr(layer, part) for name, layer in layers.items() for part in ("weight", "bias")}
    folded = z.reshape(-1, *z.shape[-3:])
    rows = None if mask is None else mask.reshape(folded.shape[:-1]).to(z.dtype)
    with current_device_of(z):
        out = kernel(folded, "incoming" if incoming else "outgoing", mask=rows, **named, eps=weights.norm_in.eps)
    updated: Tensor = out.reshape(z.shape)
    return updated


CUEQUIVARIANCE_UPDATE = Backend("cuequivariance", update, update_why_not, missing, package="cuequivariance-torch", needs_check=True)
