"""Mean-field direct coupling analysis (Morcos et al., PNAS 2011), the yardstick beside the attention."""

from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from evoattn.contacts.score import average_product_correction, zero_sum_gauge
from evoattn.io.msa import MSA
from evoattn.io.residues import UNKNOWN

AMINO_ACIDS: Final = 20
STATES: Final = 21
"""The amino acids and the gap, which unknown residues count as."""

PSEUDOCOUNT: Final = 0.5


def mean_field_dca(msa: MSA, weights: Float64[np.ndarray, " s"], *, pseudocount: float = PSEUDOCOUNT) -> Float[Tensor, "n n"]:
    """Scores of all pairs, larger for likelier contacts, in float64.

    Couplings are minus the inverse of the covariances of the 20 amino acids, the gap being the state that is dropped; then zero-sum
    gauge over the 21 states, Frobenius norm over the amino acids, and average product correction.

    Args:
        msa: of a protein family. weights: of its rows (:func:`evoattn.io.row_weights` with ``columns="all"``).
        pseudocount: the part of every frequency that is even.

    Time grows with the third power of N_res; memory is about 5 (20 N_res)^2 numbers of 8 bytes.
    """
    covariances = _covariances(msa, torch.from_numpy(weights), pseudocount)
    couplings = torch.cholesky_inverse(torch.linalg.cholesky(covariances)).neg_()
    strengths = torch.empty(msa.n_res, msa.n_res, dtype=torch.float64)
    for i, rows in enumerate(couplings.view(msa.n_res, AMINO_ACIDS, msa.n_res, AMINO_ACIDS)):
        with_gap = torch.nn.functional.pad(rows.transpose(0, 1), (0, 1, 0, 1))  # couplings with the dropped state are 0
        strengths[i] = zero_sum_gauge(with_gap)[:, :AMINO_ACIDS, :AMINO_ACIDS].square().sum((1, 2)).sqrt()
    return average_product_correction(strengths)


def _covariances(msa: MSA, weights: Tensor, pseudocount: float) -> Float[Tensor, "na na"]:
    """Of the amino acids of all columns, [N_res 20, N_res 20], with the pseudocount of even frequencies in it."""
    codes = torch.from_numpy(msa.residues.astype(np.int64)).clamp(max=UNKNOWN)
    onehot = torch.nn.functional.one_hot(codes, STATES)[..., :AMINO_ACIDS].flatten(1).double()
    weighted = onehot * (weights / weights.sum())[:, None]
    single = (1 - pseudocount) * weighted.sum(0) + pseudocount / STATES
    pair = (weighted.T @ onehot).mul_(1 - pseudocount).add_(pseudocount / STATES**2)
    for i in range(msa.n_res):  # one column with itself: a letter only ever pairs with itself
        own = slice(i * AMINO_ACIDS, (i + 1) * AMINO_ACIDS)
        pair[own, own] = torch.diag(single[own])
    return pair.addr_(single, single, alpha=-1)
