"""What both methods do to couplings, [N_res, N_res] strengths in the end."""

import torch
from jaxtyping import Float
from torch import Tensor


def zero_sum_gauge(couplings: Float[Tensor, "*pairs a b"]) -> Float[Tensor, "*pairs a b"]:
    """Couplings of the same model whose sum over each letter is 0: what single letters explain is taken out (Weigt et al. 2009)."""
    of_a, of_b = couplings.mean(-1, keepdim=True), couplings.mean(-2, keepdim=True)
    return couplings - of_a - of_b + of_a.mean(-2, keepdim=True)


def average_product_correction(strengths: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """S_ij - S_i. S_.j / S_.. without the diagonal (Dunn, Wahl and Gloor 2008): what is common to all pairs of a column is taken out.

    The diagonal of the result is 0.
    """
    itself = torch.eye(len(strengths), dtype=torch.bool)
    strengths = ((strengths + strengths.T) / 2).masked_fill(itself, 0.0)  # exactly symmetric, whatever the rounding
    mean = strengths.sum(1) / max(1, len(strengths) - 1)
    overall = mean.mean()
    product = mean[:, None] * mean[None, :] / overall if overall > 0 else torch.zeros_like(strengths)
    return (strengths - product).masked_fill(itself, 0.0)
