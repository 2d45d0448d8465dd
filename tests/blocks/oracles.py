"""Every block once more, written as loops from the formulas of its paper: what evoattn's blocks are compared with.

Nothing of evoattn is used here. A function takes the parameters by the names they have in the block, p["attn.q.weight"] for instance,
then the block's inputs and boolean masks, without batch axes. All is differentiable, so autograd gives the gradients of the loops.
"""

import math

import torch
from torch import Tensor

Parameters = dict[str, Tensor]


def norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    """Layer norm over the last axis: (x - mean) / sqrt(variance + 1e-5) * scale + offset."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    out = (x.unsqueeze(-2) * p[f"{name}.weight"]).sum(-1)
    return out + p[f"{name}.bias"] if f"{name}.bias" in p else out


def gate(p: Parameters, name: str, x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-linear(p, name, x)))


def average(query: Tensor, keys: list[Tensor], values: list[Tensor], biases: list[Tensor]) -> Tensor:
    """One query of one head: sum_j softmax_j(query . key_j / sqrt(d) + bias_j) value_j; 0 without a key."""
    if not keys:
        return torch.zeros_like(query)
    weights = [torch.exp((query * key).sum() / math.sqrt(len(query)) + bias) for key, bias in zip(keys, biases, strict=True)]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def gated_attention(p: Parameters, heads: int, x: Tensor, mask: Tensor, pair: Tensor | None = None, appended: bool = False) -> Tensor:
    """Of x [L, c] with itself. `pair` [L, L, c_z] is what query i sees of key j: bias, part of key and value, or another key and value."""
    length, c = len(x), p["attn.q.weight"].shape[0]
    d = c // heads
    q, k, v = linear(p, "attn.q", x), linear(p, "attn.k", x), linear(p, "attn.v", x)
    rows = []
    for i in range(length):
        row = []
        for h in range(heads):
            of_head = slice(h * d, (h + 1) * d)
            keys, values, biases, more_keys, more_values = [], [], [], [], []
            for j in range(length):
                if not mask[j]:
                    continue
                bias, pair_key, pair_value = torch.zeros_like(x[0, 0]), torch.zeros_like(x[0, 0]), torch.zeros_like(x[0, 0])
                if "pair_bias.weight" in p:
                    bias = (p["pair_bias.weight"][h] * pair[i, j]).sum()
                if "attn.pair_k.weight" in p:
                    pair_key = linear(p, "attn.pair_k", pair[i, j])[of_head]
                if "attn.pair_v.weight" in p:
                    pair_value = linear(p, "attn.pair_v", pair[i, j])[of_head]
                biases.append(bias)
                if appended:
                    more_keys.append(pair_key)
                    more_values.append(pair_value)
                    pair_key = pair_value = 0.0
                keys.append(k[j, of_head] + pair_key)
                values.append(v[j, of_head] + pair_value)
            row.append(average(q[i, of_head], keys + more_keys, values + more_values, biases + [0.0] * len(more_keys)))
        rows.append(torch.cat(row))
    return linear(p, "attn.out", gate(p, "attn.gate", x) * torch.stack(rows))


def msa_row_attention(p: Parameters, m: Tensor, z: Tensor, msa_mask: Tensor, _: Tensor, *, heads: int, appended: bool = False) -> Tensor:
    x = norm(p, "norm", m)
    pair = norm(p, "pair_norm", z) if "pair_norm.weight" in p else None
    return torch.stack([gated_attention(p, heads, x[s], msa_mask[s], pair, appended) for s in range(len(x))])


def attention_pair_bias(p: Parameters, s: Tensor, z: Tensor, mask: Tensor, _: Tensor, *, heads: int, appended: bool = False) -> Tensor:
    pair = norm(p, "pair_norm", z) if "pair_norm.weight" in p else None
    return gated_attention(p, heads, norm(p, "norm", s), mask, pair, appended)


def msa_column_attention(p: Parameters, m: Tensor, msa_mask: Tensor, *, heads: int) -> Tensor:
    x = norm(p, "norm", m)
    return torch.stack([gated_attention(p, heads, x[:, i], msa_mask[:, i]) for i in range(x.shape[1])], dim=1)


def triangle_attention(
    p: Parameters, z: Tensor, pair_mask: Tensor, *, heads: int, node: str, appended: bool = False, ending_bias: str = "ki",
    starting_mask: str = "ik",
) -> Tensor:  # fmt: skip
    """Starting: ij over the edges ik, third edge jk. Ending: ij over the edges kj, third edge ki, ik or jk."""
    x, n = norm(p, "norm", z), len(z)
    if node == "starting":
        pair_mask = pair_mask if starting_mask == "ik" else torch.stack([pair_mask[:, i] for i in range(n)])
        third = torch.stack([torch.stack([x[j, k] for k in range(n)]) for j in range(n)])
        return torch.stack([gated_attention(p, heads, x[i], pair_mask[i], third, appended) for i in range(n)])
    columns = []
    for j in range(n):
        edge = {"ki": lambda i, k: x[k, i], "ik": lambda i, k: x[i, k], "jk": lambda i, k, j=j: x[j, k]}[ending_bias]
        third = torch.stack([torch.stack([edge(i, k) for k in range(n)]) for i in range(n)])
        columns.append(gated_attention(p, heads, x[:, j], pair_mask[:, j], third, appended))
    return torch.stack(columns, dim=1)


def pair_weighted_averaging(
    p: Parameters, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, *, heads: int, mask: str = "residues"
) -> Tensor:
    """w_ij = softmax_j(pair_bias z_ij) over the residues j that some sequence has, or that the pair mask leaves."""
    x, pair = norm(p, "norm", m), norm(p, "pair_norm", z)
    v, width = linear(p, "attn.v", x), p["attn.v.weight"].shape[0] // heads
    n_seq, n = msa_mask.shape
    rows = []
    for s in range(n_seq):
        row = []
        for i in range(n):
            present = [j for j in range(n) if (any(msa_mask[t, j] for t in range(n_seq)) if mask == "residues" else pair_mask[i, j])]
            averages = []
            for h in range(heads):
                nothing, values = torch.zeros(1, dtype=m.dtype), [v[s, j, h * width : (h + 1) * width] for j in present]
                weights = [torch.exp((p["pair_bias.weight"][h] * pair[i, j]).sum()) for j in present]
                sums = [weight * value for weight, value in zip(weights, values, strict=True)]
                averages.append(sum(sums) / sum(weights) if present else nothing.expand(width))
            row.append(torch.cat(averages))
        rows.append(torch.stack(row))
    return linear(p, "attn.out", gate(p, "attn.gate", x) * torch.stack(rows))


def msa_global_column_attention(p: Parameters, m: Tensor, msa_mask: Tensor, *, heads: int) -> Tensor:
    x = norm(p, "norm", m)
    n_seq, n_res, c = x.shape
    d = c // heads
    columns = []
    for i in range(n_res):
        present = [s for s in range(n_seq) if msa_mask[s, i]]
        mean = sum((x[s, i] for s in present), torch.zeros_like(x[0, 0])) / max(len(present), 1)
        query = linear(p, "attn.q", mean)
        keys, values = [linear(p, "attn.k", x[s, i]) for s in present], [linear(p, "attn.v", x[s, i]) for s in present]
        out = torch.cat([average(query[h * d : (h + 1) * d], keys, values, [0.0] * len(present)) for h in range(heads)])
        columns.append(torch.stack([linear(p, "attn.out", gate(p, "attn.gate", x[s, i]) * out) for s in range(n_seq)]))
    return torch.stack(columns, dim=1)


def transition(p: Parameters, x: Tensor, mask: Tensor, *, zero_masked: bool = False) -> Tensor:
    """ReLU, or with a gate SwiGLU: gate * sigmoid(gate) * up."""
    x = norm(p, "norm", x)
    hidden = linear(p, "up", x)
    hidden = linear(p, "gate", x) * gate(p, "gate", x) * hidden if "gate.weight" in p else torch.where(hidden > 0, hidden, 0.0)
    delta = linear(p, "down", hidden)
    return torch.where(mask.unsqueeze(-1), delta, 0.0) if zero_masked else delta


def outer_product_mean(p: Parameters, m: Tensor, msa_mask: Tensor, *, norm_of: str = "sum and bias") -> Tensor:
    x = norm(p, "norm", m)
    a, b = linear(p, "left", x), linear(p, "right", x)
    n_seq, n_res, c = a.shape
    rows = []
    for i in range(n_res):
        row = []
        for j in range(n_res):
            both = [s for s in range(n_seq) if msa_mask[s, i] and msa_mask[s, j]]
            outer = sum((a[s, i].unsqueeze(1) * b[s, j].unsqueeze(0) for s in both), torch.zeros_like(a[0, 0]).expand(c, c))
            if norm_of == "sum":
                row.append(linear(p, "out", outer.flatten() / max(len(both), 1)))
            else:
                row.append(linear(p, "out", outer.flatten()) / (1e-3 + len(both)))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def triangle_multiplication(p: Parameters, z: Tensor, pair_mask: Tensor, *, direction: str, scale: str = "sum") -> Tensor:
    """Outgoing: sum_k a_ik b_jk. Incoming: sum_k a_ki b_kj. As a mean, over the residues that the mask has anywhere in their row."""
    x, n = norm(p, "norm_in", z), len(z)
    both = torch.where(pair_mask.unsqueeze(-1), gate(p, "gate", x) * linear(p, "proj", x), 0.0)
    c = both.shape[-1] // 2
    a, b = both[..., :c], both[..., c:]
    rows = []
    for i in range(n):
        if direction == "outgoing":
            rows.append(torch.stack([sum(a[i, k] * b[j, k] for k in range(n)) for j in range(n)]))
        else:
            rows.append(torch.stack([sum(a[k, i] * b[k, j] for k in range(n)) for j in range(n)]))
    residues = 1 if scale == "sum" else max(1, sum(bool(pair_mask[i].any()) for i in range(n)))
    return gate(p, "out_gate", x) * linear(p, "out", norm(p, "norm_out", torch.stack(rows) / residues))
