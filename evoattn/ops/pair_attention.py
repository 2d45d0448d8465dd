r"""Attention in which pair features are extra keys and values of every query-key pair: what no flash kernel takes.

For query i and key j, with a pair feature :math:`z_{ij}` that already went through the key weights on the query side,

.. math::
    a_{ij} = \mathrm{softmax}_j\big(s\,(q_i \cdot k_j + p_i \cdot z_{ij}) + \textstyle\sum b_{ij}\big), \qquad
    o_i = \sum_j a_{ij} v_j, \qquad  \bar z_i = \sum_j a_{ij} z_{ij}.

Adding :math:`W_K z_{ij}` to key j means :math:`q_i \cdot W_K z_{ij} = (W_K^\top q_i) \cdot z_{ij}`, so :math:`p_i = W_K^\top q_i`; adding
:math:`W_V z_{ij}` to value j means adding :math:`W_V \bar z_i` to the output. Both foldings happen in the module
(:class:`evoattn.primitives.MultiHeadAttention`), so no [q, k, h, d] tensor ever exists.
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.errors import BackendError, ShapeError
from evoattn.ops.attention import default_scale
from evoattn.ops.dispatch import nothing_to_attend
from evoattn.ops.masks import drop_trivial_mask, hide_masked, nothing_allowed, reduce_mask
from evoattn.ops.reference import probabilities
from evoattn.ops.spec import check_inputs
from evoattn.ops.streaming import forward as streaming_forward
from evoattn.ops.tiles import Recomputed, heads_first


def pair_attention(
    q: Float[Tensor, "*batch q h d"],
    k: Float[Tensor, "*batch k #h d"],
    v: Float[Tensor, "*batch k #h dv"],
    pair: Float[Tensor, "*#batch q k c"],
    *,
    pair_queries: Float[Tensor, "*batch q h c"] | None = None,
    biases: Sequence[Float[Tensor, "*#batch #h #q #k"]] = (),
    mask: Bool[Tensor, "*#batch #h #q #k"] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> tuple[Float[Tensor, "*batch q h dv"], Float[Tensor, "*batch q h c"]]:
    """(out, pair_out): softmax(scale * (q.k + pair_queries.pair) + biases) averaged over v, and over pair.

    Args:
        q, k, v, biases, mask, scale: as for :func:`evoattn.attention`, with the same rules for masks.
        pair: features of each query-key pair, shared along the batch axes where its size is 1. No head axis.
        pair_queries: what is dotted with them in the logits; None leaves the logits alone (pair features as values only).
        backend: ``"streaming"`` (what the default ``"auto"`` takes: no full-size logits) or ``"reference"`` (materialises, differentiates
            twice).

    Raises:
        ShapeError: a tensor does not fit the others.
        BackendError: there is no such backend.
    """
    check_inputs(q, k, v, biases, mask)
    mask = drop_trivial_mask(mask)
    _check_pair(q, k, pair, pair_queries)
    if backend not in ("auto", "streaming", "reference"):
        raise BackendError(f"pair_attention: there is no backend {backend!r}; there are streaming and reference, and 'auto' for streaming.")
    if scale is None:
        scale = default_scale(q.shape[-1])
    if prod(q.shape[:-1]) * k.shape[-3] == 0:
        out, _ = nothing_to_attend(q, k, v, pair, *biases, *([] if pair_queries is None else [pair_queries]))
        return out, out[..., :0].sum(-1, keepdim=True).expand(*q.shape[:-1], pair.shape[-1])
    if mask is not None:
        q, k, v, biases = hide_masked(q, k, v, biases, mask)
        visible = reduce_mask(mask.any(-3, keepdim=True), (*pair.shape[:-3], 1, *pair.shape[-3:-1])).squeeze(-3)
        pair = pair.masked_fill(~visible.unsqueeze(-1), 0.0)
        if pair_queries is not None:
            pair_queries = pair_queries.masked_fill(nothing_allowed(mask), 0.0)
    with torch.autocast(q.device.type, enabled=False):
        if backend == "reference":
            out, pair_out = _reference(q, k, v, pair, pair_queries, tuple(biases), mask, scale)
        else:
            heads = None if pair_queries is None else heads_first(pair_queries)
            first = (heads_first(x) for x in (q, k, v))
            out, _, pair_out = Recomputed.apply(streaming_forward, scale, mask, *first, pair, heads, *biases)
            out, pair_out = heads_first(out), heads_first(pair_out)
    if mask is not None:
        out, pair_out = (x.masked_fill(nothing_allowed(mask), 0.0) for x in (out, pair_out))
    return out, pair_out


def merge_attention(
    out: Float[Tensor, "*batch q h dv"],
    lse: Float[Tensor, "*batch q h"],
    other_out: Float[Tensor, "*batch q h dv"],
    other_lse: Float[Tensor, "*batch q h"],
) -> Float[Tensor, "*batch q h dv"]:
    """The attention over two sets of keys under one softmax, from the attention over each and its log-sum-exp.

    A query that may attend nothing in either set gives 0.
    """
    top = torch.maximum(lse, other_lse).detach()
    top = top.masked_fill(top == -torch.inf, 0.0)
    mine, other = torch.exp(lse - top), torch.exp(other_lse - top)
    total = mine + other
    mine = mine / total.masked_fill(total == 0, 1.0)
    other = other / total.masked_fill(total == 0, 1.0)
    return (mine.unsqueeze(-1) * out + other.unsqueeze(-1) * other_out).to(out.dtype)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, pair: Tensor, pair_queries: Tensor | None, biases: tuple[Tensor, ...], mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if pair_queries is not None:
        biases = (*biases, torch.einsum("...qhc,...qkc->...hqk", pair_queries * scale, pair))
    weights, _ = probabilities(q, k, biases, mask, scale)
    weights = weights.to(q.dtype)
    return torch.einsum("...hqk,...khd->...qhd", weights, v), torch.einsum("...hqk,...qkc->...qhc", weights, pair)


def _check_pair(q: Tensor, k: Tensor, pair: Tensor, pair_queries: Tensor | None) -> None:
    *batch, q_len, heads, _ = q.shape
    fits = pair.dim() == q.dim() and pair.shape[-3:-1] == (q_len, k.shape[-3])
    fits = fits and all(size in (1, full) for size, full in zip(pair.shape, batch, strict=False))
    if not fits or pair.dtype != q.dtype:
        raise ShapeError(
            f"pair_attention: pair has shape {tuple(pair.shape)} and dtype {pair.dtype}; expected [*#batch, q, k, c] with rank {q.dim()}, "
            f"batch axes of 1 or {tuple(batch)}, q = {q_len}, k = {k.shape[-3]}, and dtype {q.dtype}."
        )
    expected = (*batch, q_len, heads, pair.shape[-1])
    if pair_queries is not None and (tuple(pair_queries.shape) != expected or pair_queries.dtype != q.dtype):
        raise ShapeError(
            f"pair_attention: pair_queries has shape {tuple(pair_queries.shape)} and dtype {pair_queries.dtype}; expected [*batch, q, h, "
            f"c] = {expected}, one query per head in the width of pair, and dtype {q.dtype}."
        )
