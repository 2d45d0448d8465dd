"""Fused attention in Triton, forward and backward, with the gradient of every bias and without atomic additions.

Biases come down to two terms: one per key, [*#batch, #h, 1, k], and one per query and key, [*#batch, #h, q, #k]. Each keeps its shared
axes, which cost nothing. The kernels and what they compute are in :mod:`evoattn.ops.triton.attention_kernels`.
"""

from collections.abc import Sequence
from functools import reduce
from math import log, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from evoattn.ops.devices import against_card, current_device_of
from evoattn.ops.kept import once
from evoattn.ops.registry import Backend
from evoattn.ops.tiles import heads_first
from evoattn.ops.triton import launch
from evoattn.ops.triton.tiles import tile

MAX_WIDTH = 128  # of a head; wider ones do not fit the registers and the shared memory
PROGRAMS = 2048  # of the pair bias's gradient: that many keep a card busy, so the batch is split until they are there


def why_not(spec: Any) -> list[str]:
    """The reasons against the Triton kernels for an :class:`evoattn.ops.AttentionSpec`."""
    reasons = against_card(spec, (8, 0)) + launch.against_dtype(spec.dtype)
    if max(spec.d, spec.dv) > MAX_WIDTH:
        reasons.append(f"serves heads up to {MAX_WIDTH} wide, got d {spec.d} and dv {spec.dv}")
    odd = [str(dtype).removeprefix("torch.") for dtype in spec.bias_dtypes if dtype not in launch.DTYPES]
    if odd:
        reasons.append(f"takes biases of float32, bfloat16 and float16, got {', '.join(odd)}")
    masks = [] if spec.mask_shape is None else [spec.mask_shape]
    groups = batch_groups(spec.batch, [*spec.bias_shapes, *masks])
    if len(groups) > 2:
        reasons.append(f"biases and mask may split the batch axes into two groups by what they share, not {spec.batch} into {len(groups)}")
    pairs = [shape for shape in spec.bias_shapes if shape[-2] != 1]
    if pairs and prod(torch.broadcast_shapes(*pairs)) > max(map(prod, pairs)):
        listed = ", ".join(str(list(shape)) for shape in pairs)
        reasons.append(f"adds up the biases that vary along the queries, and the sum of {listed} is larger than each")
    programs = prod(spec.batch) * spec.heads * max(spec.q_len, spec.k_len) // 16
    if programs > launch.GRID_X:
        reasons.append(f"starts at most {launch.GRID_X} programs, needs up to {programs}")
    return reasons


def hides(spec: Any) -> bool:
    """Masks of keys alone: the kernels do not read what they hide. Which keys a mask per query hides from all of them, they do not know."""
    return spec.mask_shape[-2] == 1 and (spec.mask_shape[-3] == 1 or spec.kv_heads == spec.heads)


def run(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [*batch, q, h, dv] and log-sum-exp [*batch, q, h], float32."""
    groups = batch_groups(q.shape[:-3], [x.shape for x in (*biases, *([] if mask is None else [mask]))])
    key_bias = add_up([fold(bias, groups) for bias in biases if bias.shape[-2] == 1])
    pair_bias = add_up([fold(bias, groups) for bias in biases if bias.shape[-2] != 1])
    folded_mask = None if mask is None else fold(mask, groups)
    operands = (launch.unit_stride(heads_first(fold(x, groups))) for x in (q, k, v))
    terms = (aligned(term, k.shape[-3], q.shape[-2], prod(q.shape[:-3])) for term in (key_bias, pair_bias, folded_mask))
    out, lse = _Fused.apply(*operands, *terms, scale)
    return heads_first(out).reshape(*q.shape[:-1], v.shape[-1]), lse.transpose(-1, -2).reshape(q.shape[:-1])


def batch_groups(batch: Sequence[int], shapes: Sequence[Sequence[int]]) -> list[list[int]]:
    """Batch axes in groups that can be folded into one: neighbours that each bias and mask (of `shapes`) either shares or has in full.

    Up to two axes stay as they are, since folding an axis that is only expanded would copy.
    """
    if len(batch) <= 2:
        return [[axis] for axis in range(len(batch))]
    groups: list[list[int]] = []
    last: list[bool] | None = None
    for axis, size in enumerate(batch):
        shared = [shape[axis] == 1 for shape in shapes]
        if size > 1 and shared == last:
            groups[-1].append(axis)
        elif size > 1:
            groups.append([axis])
            last = shared
    return groups


def fold(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """[*batch, a, b, c] -> [g0, g1, a, b, c]: a view where the strides allow it."""
    sizes = [prod(x.shape[axis] for axis in group) for group in groups]
    return x.reshape(*[1] * (2 - len(sizes)), *sizes, *x.shape[-3:])


def add_up(biases: Sequence[Tensor]) -> Tensor | None:
    """Their sum, in float32 when there are several."""
    return reduce(lambda total, bias: total.float() + bias, biases) if biases else None


def aligned(term: Tensor | None, n_keys: int, heads: int, entries: int) -> Tensor | None:
    """A bias or mask that can be read 16 bytes at a time: with unit stride along its keys, and a multiple of 16 of them.

    For most numbers of residues that is a copy with some keys more. Where batch entries and heads share nothing of it, it is left as it is:
    it has the size of the logits, which are never held in full.
    """
    if term is None or term.shape[-1] == 1:
        return term
    if n_keys % 16 == 0 or (entries > 1 and term.shape[:3].numel() == entries * heads):
        return launch.unit_stride(term)
    return pad(term, (0, -n_keys % 16))


class _Inputs(NamedTuple):
    """What all kernels take: tensors [g0, g1, #heads, length, width], terms [#g0, #g1, #heads, #q, #k or padded]."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_bias: Tensor | None
    pair_bias: Tensor | None
    mask: Tensor | None
    scale: float

    @property
    def logits(self) -> tuple[int, ...]:
        """[g0, g1, heads, q, k]"""
        return (*self.q.shape[:-1], self.k.shape[-2])

    @property
    def arguments(self) -> list[Any]:
        """operands, strides, terms, term_strides: as each kernel takes them first."""
        g0, g1, heads, n_rows, n_keys = self.logits
        operands = (self.q, *(x.expand(g0, g1, heads, -1, -1) for x in (self.k, self.v)))
        mask = None if self.mask is None else self.mask.view(torch.uint8)  # a byte per entry, as it is stored
        terms = tuple(
            None if x is None else x.expand(g0, g1, heads, 1 if x is self.key_bias else n_rows, max(n_keys, x.shape[-1]))
            for x in (self.key_bias, self.pair_bias, mask)
        )
        term_strides = tuple(None if x is None else (*x.stride(), x.shape[-1]) for x in terms)
        return [operands, tuple(x.stride() for x in operands), terms, term_strides]

    def start(self, kernel: str, blocks_of: Sequence[int], per_block: int, *arguments: Any) -> None:
        """Start `kernel` on one program for each block of queries (0) or keys (1) or both, times `per_block`."""
        from evoattn.ops.triton import attention_kernels

        d, dv = self.q.shape[-1], self.v.shape[-1]
        chosen = tile(kernel, max(launch.padded(d), launch.padded(dv)), self.q.element_size(), launch.capability(self.q.device))
        blocks = [-(-self.logits[3] // chosen.m), -(-self.logits[4] // chosen.n)]
        programs = per_block * prod(blocks[which] for which in blocks_of)
        with current_device_of(self.q):
            getattr(attention_kernels, kernel)[(programs,)](
                *self.arguments, *arguments, self.scale,
                D=d, DV=dv, BLOCK_D=launch.padded(d), BLOCK_DV=launch.padded(dv), BLOCK_M=chosen.m, BLOCK_N=chosen.n,
                MASK_PER_QUERY=self.mask is not None and self.mask.shape[-2] != 1, PRECISION=launch.precision(self.q.dtype),
                num_warps=chosen.warps, num_stages=chosen.stages, enable_fp_fusion=True,
            )  # fmt: skip


def empty_like(x: Tensor) -> Tensor:
    """[g0, g1, heads, length, width] with lengths before heads in memory, as the caller of attention has them."""
    return heads_first(x.new_empty(heads_first(x).shape))


def _output(p: _Inputs) -> tuple[Tensor, Tensor]:
    """Attention and log-sum-exp, the latter in base 2."""
    g0, g1, heads, n_rows, n_keys = p.logits
    out = heads_first(p.q.new_empty(g0, g1, n_rows, heads, p.v.shape[-1]))
    lse = p.q.new_empty(g0, g1, heads, n_rows, dtype=torch.float32)
    p.start("forward", [0], g0 * g1 * heads, out, out.stride(), lse, (g1, heads, n_rows, n_keys))
    return out, lse


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        p = _Inputs(*inputs)
        out, lse = once(_output, p)
        assert out is not None and lse is not None
        out, lse = out.reshape(*p.logits[:-1], -1), lse.reshape(p.logits[:-1])  # views, of what is kept with other batch axes
        ctx.save_for_backward(*inputs[:-1], out, lse)
        ctx.scale = p.scale
        ctx.set_materialize_grads(False)
        return out, lse * log(2)  # kept in base 2, since a change of base would round twice

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, key_bias, pair_bias, mask, out, lse = ctx.saved_tensors
        p = _Inputs(q, k, v, key_bias, pair_bias, mask, ctx.scale)
        grad_out = torch.zeros_like(out) if grad_out is None else launch.unit_stride(grad_out)
        grad_lse = None if grad_lse is None else grad_lse.masked_fill(lse == -torch.inf, 0.0).contiguous()
        return *_gradients(p, out, lse, grad_out, grad_lse, ctx.needs_input_grad), None, None


def _gradients(
    p: _Inputs, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of q, k, v, the bias per key and the bias per query and key, each where it is wanted."""
    g0, g1, heads, n_rows, n_keys = p.logits
    sizes, key_heads = (g1, heads, n_rows, n_keys), p.k.shape[2]
    delta = torch.empty_like(lse)
    grad_q, grad_k, grad_v = empty_like(p.q) if wanted[0] else None, empty_like(p.k), empty_like(p.v)
    per_key = None
    if wanted[3] and p.key_bias is not None and p.key_bias.shape[-1] > 1:
        per_key = lse.new_empty(g0, g1, heads, p.key_bias.shape[-1])
    p.start("backward_queries", [0], g0 * g1 * heads, out, out.stride(), lse, grad_out, grad_out.stride(), grad_lse, delta,
            grad_q, None if grad_q is None else grad_q.stride(), sizes)  # fmt: skip
    if wanted[1] or wanted[2] or per_key is not None:
        p.start("backward_keys", [1], g0 * g1 * key_heads, lse, grad_out, grad_out.stride(), delta,
                grad_k, grad_k.stride(), grad_v, grad_v.stride(), per_key, sizes, heads // key_heads)  # fmt: skip

    grad_key_bias = grad_pair_bias = None
    same_for_all_keys = (torch.zeros_like(lse) if grad_lse is None else grad_lse).unsqueeze(-1)  # adds to the log-sum-exp, and no more
    if wanted[3] and p.key_bias is not None:
        per_logit = same_for_all_keys if per_key is None else per_key.unsqueeze(-2)
        grad_key_bias = per_logit.sum_to_size(p.key_bias.shape).to(p.key_bias.dtype)
    if wanted[4] and p.pair_bias is not None:
        alike = p.pair_bias.shape[-1] == 1
        whole = same_for_all_keys.sum_to_size(p.pair_bias.shape) if alike else _pair_bias_gradient(p, p.pair_bias, lse, grad_out, delta)
        grad_pair_bias = whole.to(p.pair_bias.dtype)
    return [grad_q, grad_k if wanted[1] else None, grad_v if wanted[2] else None, grad_key_bias, grad_pair_bias]


def _pair_bias_gradient(p: _Inputs, bias: Tensor, lse: Tensor, grad_out: Tensor, delta: Tensor) -> Tensor:
    """Tile by tile, each summed over the entries that share it; where tiles are few, in several parts that are added up afterwards."""
    g0, g1, heads, n_rows, n_keys = p.logits
    own = tuple(bias.shape[:3])
    shared = tuple(full // size for full, size in zip((g0, g1, heads), own, strict=True))
    tiles = prod(own) * -(-n_rows // 64) * -(-n_keys // 64)
    per_split = -(-prod(shared) // min(prod(shared), -(-PROGRAMS // tiles)))
    splits = -(-prod(shared) // per_split)
    parts = lse.new_empty(splits, *own, *bias.shape[3:], dtype=bias.dtype if splits == 1 else torch.float32)
    p.start("backward_pair_bias", [0, 1], splits * prod(own), lse, grad_out, grad_out.stride(), delta, parts,
             (g1, heads, n_rows, n_keys), own, shared, per_split)  # fmt: skip
    return parts[0] if splits == 1 else parts.sum(0)


TRITON = Backend("triton", run, why_not, launch.missing, package="triton", hides=hides, needs_check=True)
