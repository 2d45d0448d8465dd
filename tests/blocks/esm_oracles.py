"""The blocks of ESM's models once more, as loops; see oracles.py."""

import math

import torch
from torch import Tensor

from tests.blocks.oracles import Parameters, linear, norm


def tied_row_attention(p: Parameters, m: Tensor, msa_mask: Tensor, *, heads: int) -> Tensor:
    """logits_ij = sum over the rows that have i of q_si . k_sj / sqrt(rows d), over the residues j that the first row has."""
    x = norm(p, "norm", m)
    n_seq, n_res, _ = m.shape
    q, k, v = (linear(p, f"attn.{name}", x) for name in "qkv")
    d = q.shape[-1] // heads
    keys = [j for j in range(n_res) if msa_mask[0, j]]
    columns = []
    for i in range(n_res):
        averages = []
        for h in range(heads):
            of_head = slice(h * d, (h + 1) * d)
            present = [s for s in range(n_seq) if msa_mask[s, i]]
            logits = [
                sum(((q[s, i, of_head] * k[s, j, of_head]).sum() for s in present), torch.zeros_like(m[0, 0, 0])) / math.sqrt(n_seq * d)
                for j in keys
            ]
            weights = [torch.exp(logit) for logit in logits]
            sums = [weight * v[:, j, of_head] for weight, j in zip(weights, keys, strict=True)]
            averages.append(sum(sums) / sum(weights) if keys else torch.zeros_like(v[:, i, of_head]))
        columns.append(linear(p, "attn.out", torch.cat(averages, dim=-1)))
    return torch.stack(columns, dim=1)


def column_attention(p: Parameters, m: Tensor, msa_mask: Tensor, *, heads: int) -> Tensor:
    """Without a gate, each projection with its bias."""
    x = norm(p, "norm", m)
    n_seq, n_res, _ = m.shape
    q, k, v = (linear(p, f"attn.{name}", x) for name in "qkv")
    d = q.shape[-1] // heads
    columns = []
    for i in range(n_res):
        keys = [t for t in range(n_seq) if msa_mask[t, i]]
        rows = []
        for s in range(n_seq):
            averages = []
            for h in range(heads):
                of_head = slice(h * d, (h + 1) * d)
                weights = [torch.exp((q[s, i, of_head] * k[t, i, of_head]).sum() / math.sqrt(d)) for t in keys]
                sums = [weight * v[t, i, of_head] for weight, t in zip(weights, keys, strict=True)]
                averages.append(sum(sums) / sum(weights) if keys else torch.zeros_like(v[s, i, of_head]))
            rows.append(linear(p, "attn.out", torch.cat(averages)))
        columns.append(torch.stack(rows))
    return torch.stack(columns, dim=1)


def sequence_to_pair(p: Parameters, s: Tensor, _: Tensor) -> Tensor:
    both = linear(p, "proj", norm(p, "norm", s))
    c, n = both.shape[-1] // 2, len(s)
    q, k = both[:, :c], both[:, c:]
    rows = [torch.stack([torch.cat([q[j] * k[i], q[j] - k[i]]) for j in range(n)]) for i in range(n)]
    return linear(p, "out", torch.stack(rows))
