"""Losses and metrics against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from evoattn.errors import ConfigError, ShapeError
from evoattn.io import row_weights
from evoattn.train.losses import BINS, distance_bin, distogram_loss, masked_msa_loss
from evoattn.train.metrics import baseline_errors, column_frequencies, letter_errors, perplexity
from tests.train.families import alignment


def test_masked_msa_loss_by_hand() -> None:
    """Two cells of six are told: one with even odds among 23, one with odds 3 : 1 : ... for its letter."""
    logits = torch.zeros(2, 3, 23)
    logits[1, 2, 7] = math.log(3)
    true = torch.full((2, 3), 7)
    told = torch.tensor([[True, False, False], [False, False, True]])
    loss = masked_msa_loss(logits, true, told)
    assert loss.count == 2
    assert loss.total.item() == pytest.approx(math.log(23) - math.log(3 / 25), rel=1e-6)


def test_what_is_not_told_does_not_matter_even_if_infinite() -> None:
    logits = torch.zeros(1, 2, 23, requires_grad=True)
    broken = torch.where(torch.tensor([False, True])[None, :, None], torch.inf, 1.0) * logits.exp()
    loss = masked_msa_loss(broken, torch.zeros(1, 2, dtype=torch.long), torch.tensor([[True, False]]))
    assert loss.total.item() == pytest.approx(math.log(23), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "distance", "expected"),
    [
        ("alphafold2", 0.0, 0), ("alphafold2", 2.3125, 0), ("alphafold2", 2.32, 1), ("alphafold2", 7.9375, 18), ("alphafold2", 7.94, 19),
        ("alphafold2", 8.0, 19), ("alphafold2", 21.6875, 62), ("alphafold2", 21.7, 63), ("alphafold2", 1e3, 63),
        ("boltz", 1.99, 0), ("boltz", 8.0, 19), ("boltz", 22.01, 63),
    ],
)  # fmt: skip
def test_bins(name: str, distance: float, expected: int) -> None:
    """The first is below 2.3125 (2), the last above 21.6875 (22), the others 0.3125 (20/62) wide."""
    x = torch.tensor([[0.0, 0.0, 0.0], [0.0, distance, 0.0]], dtype=torch.float64)
    assert distance_bin(x, torch.ones(2, dtype=torch.bool), BINS[name])[0, 1] == expected


def test_breaks_are_the_published_ones() -> None:
    assert BINS["alphafold2"].breaks().tolist() == pytest.approx([2.3125 + 0.3125 * k for k in range(63)])
    assert BINS["boltz"].breaks().tolist() == pytest.approx([2 + 20 * k / 62 for k in range(63)])


def test_distogram_loss_by_hand() -> None:
    """Three residues, one not resolved: the four pairs of the others count, a residue and itself among them."""
    bins = BINS["alphafold2"]
    x = torch.tensor([[0.0, 0, 0], [math.nan, 0, 0], [0, 0, 5.0]])
    mask = torch.tensor([True, False, True])
    logits = torch.zeros(3, 3, 64)
    logits[0, 0, 0] = math.log(2)  # right: distance 0
    near = int((5.0 - 2.3125) // 0.3125) + 1
    logits[0, 2, near] = math.log(5)  # right
    logits[2, 0, near + 1] = math.log(7)  # wrong
    loss = distogram_loss(logits, x, mask, bins)
    expected = -(math.log(2 / 65) + math.log(5 / 68) + math.log(1 / 70) + math.log(1 / 64))
    assert loss.count == 4 and loss.total.item() == pytest.approx(expected, rel=1e-6)


def test_nothing_resolved_is_a_sum_of_nothing_with_a_gradient() -> None:
    logits = torch.randn(2, 2, 64, requires_grad=True)
    loss = distogram_loss(logits, torch.full((2, 3), math.nan), torch.zeros(2, dtype=torch.bool), BINS["alphafold2"])
    loss.total.backward()
    assert loss.total == 0 and loss.count == 0 and logits.grad is not None and not logits.grad.any()


def test_shapes_that_do_not_fit(no_type_checks: None) -> None:
    with pytest.raises(ShapeError, match=r"logits \(2, 3, 23\), true_msa \(2, 4\)"):
        masked_msa_loss(torch.zeros(2, 3, 23), torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"expected \[\*batch, N_res, N_res, 64\]"):
        distogram_loss(torch.zeros(2, 2, 32), torch.zeros(2, 3), torch.ones(2, dtype=torch.bool), BINS["alphafold2"])


def test_perplexity_is_among_the_20_letters_of_told_residues() -> None:
    """Gaps, X and the mask token are neither asked nor allowed, however likely the model finds them."""
    logits = torch.zeros(1, 3, 23)
    logits[..., 20:] = 50.0
    true = torch.tensor([[3, 21, 20]])
    errors = letter_errors(logits, true, torch.ones(1, 3, dtype=torch.bool))
    assert errors.count == 1 and perplexity(errors) == pytest.approx(20)
    assert math.isnan(perplexity(letter_errors(logits, true, torch.zeros(1, 3, dtype=torch.bool))))


def test_column_frequencies_are_weighted_and_sum_to_one() -> None:
    msa = alignment(12, 5, gaps=0.2)
    frequencies = column_frequencies(msa)
    assert np.allclose(frequencies.sum(1), 1) and (frequencies > 0).all()
    weights = row_weights(msa)
    letter = int(msa.residues[0, 2])
    count = sum(w for w, code in zip(weights, msa.residues[:, 2], strict=True) if code == letter)
    residues = sum(w for w, code in zip(weights, msa.residues[:, 2], strict=True) if code < 20)
    assert frequencies[2, letter] == pytest.approx((count + 1 / 20) / (residues + 1))
    true = torch.from_numpy(msa.residues.astype(np.int64))
    told = torch.zeros(true.shape, dtype=torch.bool)
    told[0, 2] = True
    assert perplexity(baseline_errors(frequencies, true, told)) == pytest.approx(1 / frequencies[2, letter], rel=1e-5)
    with pytest.raises(ConfigError, match="pseudocount is 0"):
        column_frequencies(msa, pseudocount=0.0)
