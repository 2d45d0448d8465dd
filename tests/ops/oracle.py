"""The ops once more, in float64 numpy: loops over the formulas and gradients derived by hand.

Nothing here comes from evoattn or from torch's autograd. One softmax row at a time: with a_j = exp(s_j) / sum_k exp(s_k) over the allowed
keys, o = sum_j a_j v_j and L = log sum_j exp(s_j), a change of the loss by g per unit of o and by t per unit of L changes it per unit of

* v_j by a_j g, since o is linear in v;
* s_j by a_j (g . v_j - g . o + t), since da_k / ds_j = a_k (1[k = j] - a_j) and dL / ds_j = a_j;

and s_j = scale q . k_j + sum of biases hands that on to q, k_j and every bias.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy import ndarray


@dataclass
class Result:
    """Outputs, and one gradient per input by its name; biases are "biases[0]", "biases[1]", ..."""

    outputs: dict[str, ndarray]
    gradients: dict[str, ndarray] = field(default_factory=dict)


def attention(
    q: ndarray, k: ndarray, v: ndarray, *, biases: Sequence[ndarray] = (), mask: ndarray | None = None, scale: float | None = None,
    grad_out: ndarray, grad_lse: ndarray | None = None,
) -> Result:  # fmt: skip
    """Attention with lengths before heads, its log-sum-exp, and the gradients of sum(grad_out * out) + sum(grad_lse * lse)."""
    pair = np.zeros((*q.shape[:-2], k.shape[-3], 0))
    got = pair_attention(q, k, v, pair, biases=biases, mask=mask, scale=scale, grad_out=grad_out, grad_lse=grad_lse)
    del got.outputs["pair_out"], got.gradients["pair"]
    return got


def pair_attention(
    q: ndarray, k: ndarray, v: ndarray, pair: ndarray, *, pair_queries: ndarray | None = None, biases: Sequence[ndarray] = (),
    mask: ndarray | None = None, scale: float | None = None, grad_out: ndarray, grad_pair_out: ndarray | None = None,
    grad_lse: ndarray | None = None,
) -> Result:  # fmt: skip
    """Attention whose logits also hold scale * pair_queries . pair_ij, and which also averages pair_ij.

    The pair features are inputs like the others: they get a_ij g' through the average and scale * ds_ij * pair_queries through the logits.
    """
    *batch, q_len, heads, d = q.shape
    k_len, kv_heads = k.shape[-3:-1]
    scale = d**-0.5 if scale is None else scale
    logits_shape = (*batch, heads, q_len, k_len)
    full_biases = [np.broadcast_to(bias, logits_shape) for bias in biases]
    full_pair = np.broadcast_to(pair, (*batch, q_len, k_len, pair.shape[-1]))
    allowed = np.ones(logits_shape, bool) if mask is None else np.broadcast_to(mask, logits_shape)

    out = np.zeros((*batch, q_len, heads, v.shape[-1]))
    pair_out = np.zeros((*batch, q_len, heads, pair.shape[-1]))
    lse = np.full((*batch, q_len, heads), -np.inf)
    dq, dk, dv = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    dpair, dpair_queries, dlogits = np.zeros(full_pair.shape), np.zeros(pair_out.shape), np.zeros(logits_shape)

    for b in places(batch):
        for h in range(heads):
            hk = h if kv_heads > 1 else 0
            for i in range(q_len):
                j = np.flatnonzero(allowed[(*b, h, i)])
                if not j.size:
                    continue
                keys, values, z = k[(*b, j, hk)], v[(*b, j, hk)], full_pair[(*b, i, j)]
                s = scale * (keys @ q[(*b, i, h)])
                if pair_queries is not None:
                    s = s + scale * (z @ pair_queries[(*b, i, h)])
                for bias in full_biases:
                    s = s + bias[(*b, h, i)][j]
                a = np.exp(s - s.max())
                total = a.sum()
                a = a / total
                lse[(*b, i, h)] = s.max() + np.log(total)
                out[(*b, i, h)] = o = a @ values
                pair_out[(*b, i, h)] = zbar = a @ z

                g = grad_out[(*b, i, h)]
                da = values @ g - o @ g
                if grad_pair_out is not None:
                    da = da + z @ grad_pair_out[(*b, i, h)] - zbar @ grad_pair_out[(*b, i, h)]
                    dpair[(*b, i, j)] += np.outer(a, grad_pair_out[(*b, i, h)])
                ds = a * (da + (0.0 if grad_lse is None else grad_lse[(*b, i, h)]))
                dv[(*b, j, hk)] += np.outer(a, g)
                dq[(*b, i, h)] = scale * (ds @ keys)
                dk[(*b, j, hk)] += scale * np.outer(ds, q[(*b, i, h)])
                dlogits[(*b, h, i, j)] = ds
                if pair_queries is not None:
                    dpair_queries[(*b, i, h)] = scale * (ds @ z)
                    dpair[(*b, i, j)] += scale * np.outer(ds, pair_queries[(*b, i, h)])

    gradients = {"q": dq, "k": dk, "v": dv, "pair": over_shared(dpair, pair.shape)}
    gradients |= {f"biases[{n}]": over_shared(dlogits, bias.shape) for n, bias in enumerate(biases)}
    if pair_queries is not None:
        gradients["pair_queries"] = dpair_queries
    return Result({"out": out, "lse": lse, "pair_out": pair_out}, gradients)


def triangle_product(a: ndarray, b: ndarray, *, incoming: bool, grad_out: ndarray) -> Result:
    """o_ij = sum_k a_ik b_jk (outgoing) or sum_k a_ki b_kj (incoming), channels first; its gradients."""
    out, da, db = np.zeros(a.shape), np.zeros(a.shape), np.zeros(b.shape)
    n = a.shape[-1]
    for c in places(a.shape[:-2]):
        for i in range(n):
            for j in range(n):
                g = grad_out[(*c, i, j)]
                left, right = ((*c, slice(None), i), (*c, slice(None), j)) if incoming else ((*c, i), (*c, j))
                out[(*c, i, j)] = a[left] @ b[right]
                da[left] += g * b[right]
                db[right] += g * a[left]
    return Result({"out": out}, {"a": da, "b": db})


def outer_product_mean(a: ndarray, b: ndarray, weight: ndarray, bias: ndarray | None, count: ndarray, *, grad_out: ndarray) -> Result:
    """z_ij = (W vec(sum_s a_si outer b_sj) + bias) / count_ij; its gradients (count is given)."""
    *batch, _, n, c = a.shape
    c2, c_z = b.shape[-1], weight.shape[0]
    out = np.zeros((*batch, n, n, c_z))
    da, db, dw, dbias = np.zeros(a.shape), np.zeros(b.shape), np.zeros(weight.shape), np.zeros(c_z)
    everything = slice(None)
    for p in places(batch):
        for i in range(n):
            for j in range(n):
                left, right = a[(*p, everything, i)], b[(*p, everything, j)]
                outer = left.T @ right
                g = grad_out[(*p, i, j)] / count[(*p, i, j)]
                out[(*p, i, j)] = (weight @ outer.reshape(-1) + (0.0 if bias is None else bias)) / count[(*p, i, j)]
                dw += np.outer(g, outer.reshape(-1))
                dbias += g
                douter = (g @ weight).reshape(c, c2)
                da[(*p, everything, i)] += right @ douter.T
                db[(*p, everything, j)] += left @ douter
    gradients = {"a": da, "b": db, "weight": dw} | ({} if bias is None else {"bias": dbias})
    return Result({"out": out}, gradients)


def places(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return iter(np.ndindex(*shape))


def over_shared(grad: ndarray, shape: Sequence[int]) -> ndarray:
    """`grad` summed over the axes along which an input of `shape` was shared."""
    shared = tuple(axis for axis, (full, size) in enumerate(zip(grad.shape, shape, strict=True)) if size == 1 and full != 1)
    return grad.sum(shared, keepdims=True)
