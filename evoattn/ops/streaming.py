"""Attention by online softmax over blocks of keys: plain torch, any device, every gradient, never a full-size logits tensor.

Milakov and Gimelshein 2018 (online softmax); Rabe and Staats 2021 and Dao et al. 2022 (attention in tiles with recomputation).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from evoattn.ops.registry import Backend
from evoattn.ops.tiles import ALL, Problem, Recomputed, heads_first, take


def forward(problem: Problem) -> tuple[Tensor, Tensor, Tensor | None]:
    """Output [*batch, h, q, dv], log-sum-exp [*batch, h, q], and sum_j a_ij pair_ij [*batch, h, q, c] when there are pair features."""
    p = problem
    out = p.q.new_empty(*p.rows, p.v.shape[-1])
    lse = p.q.new_empty(p.rows, dtype=p.accumulate)
    pair_out = None if p.pair is None else p.q.new_empty(*p.rows, p.pair.shape[-1])
    row_windows, key_spans = p.tiles()
    for rows in row_windows:
        to_rows = (*rows, ALL)
        top = torch.full_like(take(lse, rows), -torch.inf)
        total = torch.zeros_like(top)
        mean = torch.zeros_like(take(out, to_rows), dtype=p.accumulate)
        pair_mean = None if pair_out is None else torch.zeros_like(take(pair_out, to_rows), dtype=p.accumulate)
        for keys in key_spans:
            weights = p.logits(rows, keys)
            new_top = torch.maximum(top, weights.amax(-1))
            finite_top = new_top.masked_fill(new_top == -torch.inf, 0.0)  # nothing allowed so far: exp(-inf - 0) = 0
            weights -= finite_top.unsqueeze(-1)
            weights.exp_()
            kept = torch.exp(top - finite_top)  # what the blocks before are worth under the new maximum
            total = total * kept + weights.sum(-1)
            mean *= kept.unsqueeze(-1)
            mean += torch.einsum("...qk,...ke->...qe", weights, p.values_tile(rows, keys))
            if pair_mean is not None:
                pair_mean *= kept.unsqueeze(-1)
                pair_mean += torch.einsum("...hqk,...qkc->...hqc", weights, p.pair_tile(rows, keys))
            top = new_top
        empty = total == 0
        total = total.masked_fill(empty, 1.0)
        take(lse, rows).copy_((total.log() + top).masked_fill(empty, -torch.inf))
        take(out, to_rows).copy_(mean / total.unsqueeze(-1))
        if pair_out is not None and pair_mean is not None:
            take(pair_out, to_rows).copy_(pair_mean / total.unsqueeze(-1))
    return out, lse, pair_out


def run(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [*batch, q, h, dv] and log-sum-exp [*batch, q, h]."""
    out, lse, _ = Recomputed.apply(forward, scale, mask, heads_first(q), heads_first(k), heads_first(v), None, None, *biases)
    return heads_first(out), lse.transpose(-1, -2)


STREAMING = Backend(name="streaming", run=run, why_not=lambda spec: [])
