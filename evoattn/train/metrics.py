"""How well hidden cells of an alignment are told, in the units that people compare: perplexity over the 20 amino acids."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from evoattn.errors import ConfigError
from evoattn.io import MSA, row_weights
from evoattn.io.residues import AMINO_ACIDS
from evoattn.train.losses import Sum

N_LETTERS = len(AMINO_ACIDS)


def letter_errors(
    logits: Float[Tensor, "*batch s n classes"], true_msa: Int64[Tensor, "*batch s n"], told: Bool[Tensor, "*batch s n"]
) -> Sum:
    """Cross entropy of the told cells that hold one of the 20 amino acids, among these alone: gaps and X are not asked nor allowed."""
    told = told & (true_msa < N_LETTERS)
    errors = F.cross_entropy(logits[..., :N_LETTERS][told].float(), true_msa[told], reduction="sum")
    return Sum(errors, told.sum().to(errors.dtype))


def perplexity(errors: Sum) -> float:
    """exp(mean cross entropy): 20 for a guess among equals, 1 for certainty. NaN if nothing was told."""
    return math.exp(float(errors.total / errors.count)) if errors.count else math.nan


def column_frequencies(msa: MSA, *, pseudocount: float = 1.0, threshold: float = 0.8) -> Float64[np.ndarray, "n 20"]:
    """Frequencies of the 20 amino acids in each column, of rows weighted by :func:`evoattn.io.row_weights`.

    The baseline of masked-MSA training: what is known of a cell from its column alone. The pseudocount is shared by the 20 letters of a
    column, whose weights sum to the effective number of residues there.

    Raises:
        ConfigError: the pseudocount is not positive, so that a letter that a column lacks would be impossible.
    """
    if pseudocount <= 0:
        raise ConfigError(f"column_frequencies: pseudocount is {pseudocount}; it must be positive.")
    weights = row_weights(msa, threshold=threshold)
    counts = np.stack([weights @ (msa.residues == code) for code in range(N_LETTERS)], axis=1) + pseudocount / N_LETTERS
    return counts / counts.sum(axis=1, keepdims=True)


def baseline_errors(
    frequencies: Float64[np.ndarray, "n 20"], true_msa: Int64[Tensor, "s n"], told: Bool[Tensor, "s n"]
) -> Sum:
    """As :func:`letter_errors`, of :func:`column_frequencies` in place of a model."""
    logits = torch.from_numpy(np.log(frequencies)).expand(*true_msa.shape, N_LETTERS)
    return letter_errors(logits, true_msa, told)
