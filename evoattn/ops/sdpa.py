"""Attention through torch's fused kernels.

On a CPU: torch's flash kernel with its log-sum-exp, and our own backward pass (:mod:`evoattn.ops.tiles`), so that a bias that wants a
gradient does not fall into torch's materialising path. On other devices: ``scaled_dot_product_attention`` without its math fallback.

The kernel takes one additive term [F or 1, H or 1, Q or 1, K or 1] per call, F being the folded batch. So the batch axes along which biases
or mask vary are looped over, and only the others are folded: a view, and no bias is ever expanded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from evoattn.ops import tiles
from evoattn.ops.registry import Backend
from evoattn.ops.tiles import ALL, Problem, Recomputed, heads_first, spans, take

FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
CUDA_GRID = 65535  # blocks along the second and third axis of a CUDA grid, where these kernels put heads and batch
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def missing() -> str | None:
    """torch's CPU flash kernel is a private operator: look whether this torch has it."""
    if hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"):
        return None
    return f"torch {torch.__version__} has no _scaled_dot_product_flash_attention_for_cpu"


def why_not(spec: Any) -> list[str]:
    reasons = []
    if spec.device not in ("cpu", "cuda"):
        reasons.append(f"serves cpu and cuda, not {spec.device}")
    if spec.dtype not in DTYPES or (spec.device == "cuda" and spec.dtype == torch.float64):
        reasons.append(f"no fused kernel for {spec.dtype} on {spec.device}")
    if spec.d != spec.dv or spec.d == 0:
        reasons.append(f"needs queries and values of one width above 0, got d {spec.d} and dv {spec.dv}")
    taken = (spec.dtype,) if spec.device == "cuda" else (spec.dtype, torch.float32)
    odd = [str(dtype) for dtype in spec.bias_dtypes if dtype not in taken]
    if odd:
        allowed = " or ".join(dict.fromkeys(map(str, taken)))
        reasons.append(f"takes biases of {allowed} beside queries of {spec.dtype}, got {', '.join(odd)}")
    if spec.device == "cuda":
        if spec.d * spec.dtype.itemsize % 16:
            reasons.append(f"on cuda a head must fill whole 16-byte words, got {spec.d} x {spec.dtype}")
        if max(prod(spec.batch), spec.heads) > CUDA_GRID:
            reasons.append(f"on cuda it serves at most {CUDA_GRID} batch entries and heads, got {prod(spec.batch)} and {spec.heads}")
        if spec.bias_needs_grad:
            reasons.append("on cuda its gradient of a bias is expanded over the batch before it is summed")
        if spec.return_lse:
            reasons.append("on cuda it does not give the log-sum-exp")
        if spec.kv_heads != spec.heads:
            reasons.append(f"on cuda it needs as many key heads as query heads, got {spec.kv_heads} and {spec.heads}")
    return reasons


def run(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor | None]:
    """Attention [*batch, q, h, d], and log-sum-exp [*batch, q, h] (None on devices other than the CPU)."""
    q, k, v = heads_first(q), heads_first(k), heads_first(v)
    if q.device.type == "cpu":
        out, lse, _ = Recomputed.apply(cpu_forward, scale, mask, q, k, v, None, None, *biases)
        return heads_first(out), lse.transpose(-1, -2)
    return heads_first(device_forward(Problem(q, k, v, tuple(biases), mask, scale))), None


def cpu_forward(problem: Problem) -> tuple[Tensor, Tensor, None]:
    """Output and log-sum-exp by torch's CPU flash kernel."""
    q = problem.q
    out = lse = None
    for entry, term in calls(problem, at_once=tiles.TILE):
        o, s = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(fold(x[entry]) for x in (q, problem.k, problem.v)), 0.0, False, attn_mask=term, scale=problem.scale
        )
        if term is not None:
            s = s.masked_fill(term.amax(-1) == -torch.inf, -torch.inf)  # the kernel reports 0 for an empty row
        if not entry:  # all in one call
            return o.view(q.shape), s.reshape(problem.rows), None
        if out is None or lse is None:
            out = heads_first(q.new_empty(heads_first(q).shape))  # length before heads in memory, as the kernel and the caller have it
            lse = q.new_empty(problem.rows, dtype=problem.accumulate)
        out[entry] = o.view(out[entry].shape)
        lse[entry] = s.view(lse[entry].shape)
    assert out is not None and lse is not None
    return out, lse, None


def device_forward(problem: Problem) -> Tensor:
    """Output by torch's public fused attention, recorded by its own autograd. Rows with no allowed key are for the caller to zero.

    Such rows are let through here, since some kernels turn them into NaN, which would spoil the gradients of keys and values.
    """
    if problem.mask is not None:
        mask = factored(problem)  # first: a row let through would no longer have the form rows x columns
        problem = replace(problem, mask=mask | ~mask.any(-1, keepdim=True))
    pieces = []
    looped: list[int] = []
    with sdpa_kernel(FUSED):
        for entry, term in calls(problem):
            looped = [axis for axis, part in enumerate(entry) if part != ALL]
            q, k, v = (fold(x[entry]) for x in (problem.q, problem.k, problem.v))
            term = None if term is None else term.to(q.dtype)
            pieces.append(scaled_dot_product_attention(q, k, v, attn_mask=term, scale=problem.scale))
    batch, rest = problem.q.shape[:-3], problem.q.shape[-3:]
    folded = [size for axis, size in enumerate(batch) if axis not in looped]
    whole = torch.stack(pieces) if looped else pieces[0]
    return whole.view(*(batch[axis] for axis in looped), *folded, *rest).movedim(tuple(range(len(looped))), tuple(looped))


def calls(problem: Problem, at_once: int = 1) -> Iterator[tuple[tuple[int | slice, ...], Tensor | None]]:
    """How to cover the batch with kernel calls: an index into the batch axes, and the term to add to the logits of that call.

    A batch axis along which every bias and mask is shared is folded. The others are folded too when some single term varies along all of
    them already; if not, adding the terms up would expand one of them, and the axes are looped over instead: by single entries, or by as
    many as expand a term to no more than `at_once` numbers.
    """
    p = problem
    mask = factored(p) if p.mask is not None and p.biases else p.mask
    terms = [*p.biases, *([] if mask is None else [mask])]
    batch = p.q.shape[:-3]
    varying = [axis for axis, size in enumerate(batch) if size > 1 and any(term.shape[axis] > 1 for term in terms)]
    together = torch.broadcast_shapes(*(term.shape for term in terms)) if terms else ()
    all_vary = len(varying) == sum(size > 1 for size in batch)
    if not varying or (all_vary and any(tuple(term.shape) == tuple(together) for term in terms)):
        yield (), added(p.biases, mask, p.accumulate)
        return
    steps = dict.fromkeys(varying, 1)
    if all_vary:
        steps[varying[-1]] = max(1, at_once // prod(together[-3:]))
    for parts in product(*(spans(batch[axis], step) for axis, step in steps.items())):
        place = dict(zip(varying, parts, strict=True))
        entry = tuple(place.get(axis, ALL) for axis in range(len(batch)))

        def at(x: Tensor, entry: tuple[slice, ...] = entry) -> Tensor:
            return take(x, (*entry, *[ALL] * (x.dim() - len(entry))))

        yield entry, added([at(bias) for bias in p.biases], None if mask is None else at(mask), p.accumulate)


def factored(problem: Problem) -> Tensor:
    """The mask, or one that is shared along the batch axes along which all biases are, if it hides the same keys in each allowed row.

    Padding has this form: rows of the alignment x columns of the alignment. Rows with no allowed key are zeroed by the caller anyway, so
    one vector of keys serves them all, and the rows stay folded.
    """
    assert problem.mask is not None
    mask = problem.mask
    axes = [axis for axis in range(mask.dim() - 3) if mask.shape[axis] > 1 and all(bias.shape[axis] == 1 for bias in problem.biases)]
    if not axes:
        return mask
    keys = mask.any(axes, keepdim=True)
    return keys if torch.equal(keys & mask.any(-1, keepdim=True), mask) else mask


def added(biases: Sequence[Tensor], mask: Tensor | None, accumulate: torch.dtype) -> Tensor | None:
    """Sum of the biases with -inf where masked, as [F, #h, #q, #k]; None when there is nothing to add."""
    total = None
    for bias in biases:
        total = bias if total is None else total.to(accumulate) + bias
    if mask is not None:
        total = torch.zeros((), dtype=accumulate, device=mask.device) if total is None else total
        total = torch.where(mask, total, -torch.inf)
    if total is None:
        return None
    total = fold(total)
    return total if total.stride(-1) == 1 else total.contiguous()


def fold(x: Tensor) -> Tensor:
    """[*batch, h, length, d] -> [F, h, length, d] with unit last stride, which the kernels need: a view where it can be."""
    x = x.reshape(prod(x.shape[:-3]), *x.shape[-3:])
    return x if x.stride(-1) == 1 else x.contiguous()


SDPA = Backend(name="sdpa", run=run, why_not=why_not, missing=missing)
