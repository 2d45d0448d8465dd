"""The sigmoid gate of every gated block."""

import torch
from jaxtyping import Float
from torch import Tensor


def gate(x: Float[Tensor, "*#axes"], logits: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """sigmoid(logits) * x. Uses up `logits`: where no gradient is recorded it is overwritten, which spares two large temporaries."""
    if torch.is_grad_enabled() and (logits.requires_grad or x.requires_grad):
        return torch.sigmoid(logits) * x
    if torch.promote_types(x.dtype, logits.dtype) != logits.dtype:
        return logits.sigmoid_() * x
    return logits.sigmoid_().mul_(x)
