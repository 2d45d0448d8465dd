"""The definition of attention in plain torch. Every other backend is held to it, and it is held to loops in the tests."""

from collections.abc import Sequence

import torch
from torch import Tensor

from evoattn.ops.registry import Backend


def probabilities(
    q: Tensor, k: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """softmax(scale * q k^T + sum(biases)) under the mask, [*batch, h, q, k], and its log-sum-exp, [*batch, h, q].

    Both in float32 or wider. A row with no allowed key gives probabilities 0 and log-sum-exp -inf, with zero gradients.
    """
    accumulate = torch.promote_types(q.dtype, torch.float32)
    logits = torch.einsum("...qhd,...khd->...hqk", q * scale, k).to(accumulate)
    for bias in biases:
        logits = logits + bias.to(accumulate)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    top = logits.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top == -torch.inf, 0.0)  # an empty row: -inf - 0 = -inf, where -inf - -inf would be NaN
    unnormalised = torch.exp(logits - top)
    total = unnormalised.sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    lse = (total.log() + top).masked_fill(empty, -torch.inf)
    return unnormalised / total, lse.squeeze(-1)


def run(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention [*batch, q, h, dv] and log-sum-exp [*batch, q, h]; materialises the logits."""
    weights, lse = probabilities(q, k, biases, mask, scale)
    return torch.einsum("...hqk,...khd->...qhd", weights.to(v.dtype), v), lse.transpose(-1, -2)


REFERENCE = Backend(name="reference", run=run, why_not=lambda spec: [])
