"""What tests of several layers share: golden numbers, and the rule for how large an error may be."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden"
Read = Callable[[str, str], dict[str, np.ndarray]]
"""What the fixture `read` is."""


def golden(name: str) -> dict[str, np.ndarray]:
    """The arrays of tests/golden/<name>.npz; its README says what they are."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def worst(got: Tensor, truth: Tensor) -> float:
    """Largest absolute difference, in float64; infinite where one of the two is not finite and the other differs."""
    got, truth = got.detach().double(), truth.detach().double()
    same = got == truth  # equal infinities
    return (got - truth).abs().nan_to_num(nan=torch.inf, posinf=torch.inf).masked_fill(same, 0.0).max().item() if got.numel() else 0.0


def assert_within_twice(name: str, got: Tensor, plain: Tensor, truth: Tensor) -> None:
    """The error of `got` is at most twice that of `plain` torch in the same dtype, both against a float64 `truth`, plus rounding.

    error <= 2 error(plain) + 4 eps(dtype) max|truth|: a rule instead of a number chosen to pass.
    """
    assert got.shape == truth.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(truth.shape)}"
    finite = truth.detach().double().nan_to_num(0.0, 0.0, 0.0)
    scale = finite.abs().max().item() if truth.numel() else 0.0
    allowed = 2 * worst(plain, truth) + 4 * torch.finfo(got.dtype).eps * scale
    assert worst(got, truth) <= allowed, f"{name}: error {worst(got, truth):.2e}, allowed {allowed:.2e}"


def assert_golden(name: str, got: Tensor, expected: np.ndarray, valid: np.ndarray | None = None) -> float:
    """|error| <= 2e-5 + 1e-5 |expected| at the valid positions (all by default): float32 against float32 of another order of sums.

    Returns the largest error, for :func:`tests.parity.record`.
    """
    mine = got.detach().numpy()
    assert mine.shape == expected.shape, f"{name}: shape {mine.shape}, expected {expected.shape}"
    mine, expected = (mine, expected) if valid is None else (mine[valid], expected[valid])
    errors = np.abs(mine - expected)
    assert (errors <= 2e-5 + 1e-5 * np.abs(expected)).all(), f"{name}: off by up to {errors.max():.2e} of {np.abs(expected).max():.1f}"
    return float(errors.max(initial=0.0))


def assert_golden_gradient(name: str, got: Tensor, expected: np.ndarray, valid: np.ndarray | None = None) -> float:
    """|error| <= 5e-5 + 1e-4 max|expected| at the valid positions (all by default). Returns the largest error."""
    mine = got.detach().numpy()
    assert mine.shape == expected.shape, f"{name}: shape {mine.shape}, expected {expected.shape}"
    mine, expected = (mine, expected) if valid is None else (mine[valid], expected[valid])
    error, allowed = np.abs(mine - expected).max(), 5e-5 + 1e-4 * np.abs(expected).max()
    assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"
    return float(error)
