"""Attention computed tile by tile: windows over the logits, and the backward pass that recomputes them.

A tile is a window of the logits [*batch, h, q, k] that fits a cache. Whatever kernel ran forward, its output and log-sum-exp are all that
the backward pass needs: probabilities come back as exp(logits - lse), so no full-size logits tensor exists in either direction, and the
gradient of each bias is summed over its broadcast axes tile by tile.

Inside this file tensors have heads before length: q [*batch, h, q, d], k and v [*batch, #h, k, d]. The pair features of
:func:`evoattn.ops.pair_attention` ride along as `pair` [*#batch, q, k, c] and `pair_queries` [*batch, h, q, c]; both are None otherwise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from evoattn.ops.kept import once

Window = tuple[slice, ...]

TILE = 2**20  # logits per tile: 4 MiB in float32, about a second-level cache; larger was slower on the CPUs of benchmarks/attention.py
KEYS = 1024  # keys per tile at most, so that a long row is also cut along its keys


@dataclass(frozen=True)
class Problem:
    """The inputs of one attention, heads before length."""

    q: Tensor
    k: Tensor
    v: Tensor
    biases: tuple[Tensor, ...]
    mask: Tensor | None
    scale: float
    pair: Tensor | None = None
    pair_queries: Tensor | None = None

    @property
    def accumulate(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def rows(self) -> tuple[int, ...]:
        """[*batch, h, q]: one entry per softmax."""
        return tuple(self.q.shape[:-1])

    @property
    def n_keys(self) -> int:
        return self.k.shape[-2]

    def tiles(self) -> tuple[list[Window], list[slice]]:
        """Windows over [*batch, h, q], and over k."""
        n_keys = min(self.n_keys, KEYS)
        return list(windows(self.rows, TILE // max(n_keys, 1))), list(spans(self.n_keys, n_keys))

    def logits(self, rows: Window, keys: slice) -> Tensor:
        """One tile of scale * q k^T + biases under the mask, in the accumulation dtype; -inf where masked."""
        q, k = self._wide(take(self.q, (*rows, ALL))), self._wide(take(self.k, (*rows[:-1], keys, ALL)))
        logits = torch.einsum("...qd,...kd->...qk", q * self.scale, k)
        if self.pair is not None and self.pair_queries is not None:
            pair_queries = self._wide(take(self.pair_queries, (*rows, ALL)))
            logits += torch.einsum("...hqc,...qkc->...hqk", pair_queries * self.scale, self.pair_tile(rows, keys))
        for bias in self.biases:
            logits += take(bias, (*rows, keys))
        if self.mask is not None:
            logits.masked_fill_(~take(self.mask, (*rows, keys)), -torch.inf)
        return logits

    def pair_tile(self, rows: Window, keys: slice) -> Tensor:
        """The window of `pair` (it has no head axis) that belongs to a tile."""
        assert self.pair is not None
        return self._wide(take(self.pair, (*rows[:-2], rows[-1], keys, ALL)))

    def values_tile(self, rows: Window, keys: slice) -> Tensor:
        return self._wide(take(self.v, (*rows[:-1], keys, ALL)))

    def _wide(self, x: Tensor) -> Tensor:
        return x.to(self.accumulate)


ALL = slice(None)


def take(x: Tensor, window: Window) -> Tensor:
    """The window of `x`, a view; an axis of size 1 is shared, so it is taken whole."""
    return x[tuple(ALL if size == 1 else part for size, part in zip(x.shape, window, strict=True))]


def spans(size: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most `step` that cover an axis of `size`."""
    return (slice(start, min(start + step, size)) for start in range(0, size, max(step, 1)))


def windows(shape: Sequence[int], budget: int) -> Iterator[Window]:
    """Windows of at most `budget` entries (at least one) that cover `shape`; leading axes are cut first."""
    block = list(shape)
    for axis in range(len(block)):
        excess = prod(block) / max(budget, 1)
        if excess <= 1:
            break
        block[axis] = max(1, int(block[axis] / excess))
    return product(*(spans(size, step) for size, step in zip(shape, block, strict=True)))


def gradients(problem: Problem, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor, pair_out: Tensor | None,
              grad_pair_out: Tensor | None, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Gradients of (q, k, v, pair, pair_queries, *biases), each where `wanted`, from the outputs of a forward pass.

    With P the probabilities and dP = dO V^T: dS = P * (dP - rowsum(O * dO) + dlse), dQ = scale dS K, dK = scale dS^T Q, dV = P^T dO,
    and the gradient of a bias is dS summed over the axes along which the bias is shared.
    """
    p = problem
    inputs = (p.q, p.k, p.v, p.pair, p.pair_queries, *p.biases)
    grads = [torch.zeros_like(x, dtype=p.accumulate) if want and x is not None else None for x, want in zip(inputs, wanted, strict=True)]
    dq, dk, dv, dpair, dpair_queries, *dbiases = grads
    lse = lse.masked_fill(lse == -torch.inf, 0.0)  # an empty row: exp(-inf - 0) = 0

    row_windows, key_spans = p.tiles()
    for rows in row_windows:
        to_rows = (*rows, ALL)
        g = take(grad_out, to_rows).to(p.accumulate)
        correction = take(grad_lse, rows) - (take(out, to_rows) * g).sum(-1)
        g_pair = None
        if pair_out is not None and grad_pair_out is not None:
            g_pair = take(grad_pair_out, to_rows).to(p.accumulate)
            correction -= (take(pair_out, to_rows) * g_pair).sum(-1)
        for keys in key_spans:
            to_keys = (*rows[:-1], keys, ALL)
            weights = p.logits(rows, keys)
            weights -= take(lse, rows).unsqueeze(-1)
            weights.exp_()
            add_shared(dv, to_keys, "...qk,...qe->...ke", weights, g)
            dlogits = torch.einsum("...qe,...ke->...qk", g, p.values_tile(rows, keys))
            if p.pair is not None:
                pair = p.pair_tile(rows, keys)
                to_pair = (*rows[:-2], rows[-1], keys, ALL)
                if g_pair is not None:
                    dlogits += torch.einsum("...hqc,...qkc->...hqk", g_pair, pair)
                    add_shared(dpair, to_pair, "...hqk,...hqc->...qkc", weights, g_pair)
            dlogits += correction.unsqueeze(-1)
            dlogits *= weights
            for dbias in dbiases:
                if dbias is not None:
                    target = take(dbias, (*rows, keys))
                    target += dlogits.sum_to_size(target.shape)
            dlogits *= p.scale
            add_shared(dq, to_rows, "...qk,...kd->...qd", dlogits, take(p.k, to_keys).to(p.accumulate))
            add_shared(dk, to_keys, "...qk,...qd->...kd", dlogits, take(p.q, to_rows).to(p.accumulate))
            if p.pair_queries is not None:
                add_shared(dpair_queries, to_rows, "...hqk,...qkc->...hqc", dlogits, pair)
                add_shared(dpair, to_pair, "...hqk,...hqc->...qkc", dlogits, take(p.pair_queries, to_rows).to(p.accumulate))
    return [None if grad is None or x is None else grad.to(x.dtype) for grad, x in zip(grads, inputs, strict=True)]


def add_shared(target: Tensor | None, window: Window, equation: str, a: Tensor, b: Tensor) -> None:
    """target[window] += einsum(equation, a, b), summed over the axes that `target` shares; nothing when `target` is None."""
    if target is not None:
        place = take(target, window)
        place += torch.einsum(equation, a, b).sum_to_size(place.shape)


Forward = Callable[[Problem], tuple[Tensor, Tensor, Tensor | None]]


class Recomputed(torch.autograd.Function):
    """A forward pass that gives (out, lse, pair_out) from a :class:`Problem`, with :func:`gradients` as its backward pass."""

    @staticmethod
    def forward(ctx: Any, kernel: Forward, scale: float, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, pair: Tensor | None,
                pair_queries: Tensor | None, *biases: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        out, lse, *rest = once(kernel, Problem(q, k, v, biases, mask, scale, pair, pair_queries))
        assert out is not None and lse is not None
        pair_out = rest[0] if rest else None
        ctx.save_for_backward(q, k, v, pair, pair_queries, mask, out, lse, pair_out, *biases)
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        return out, lse, pair_out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, grad_pair_out: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, pair, pair_queries, mask, out, lse, pair_out, *biases = ctx.saved_tensors
        grads = gradients(
            Problem(q, k, v, tuple(biases), mask, ctx.scale, pair, pair_queries),
            out,
            lse,
            torch.zeros_like(out) if grad_out is None else grad_out,
            torch.zeros_like(lse) if grad_lse is None else grad_lse.masked_fill(lse == -torch.inf, 0.0),
            pair_out,
            grad_pair_out,
            ctx.needs_input_grad[3:],
        )
        return None, None, None, *grads


def heads_first(x: Tensor) -> Tensor:
    """[*, length, h, d] -> [*, h, length, d], a view; its own inverse."""
    return x.transpose(-2, -3)
