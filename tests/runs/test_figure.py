"""The picture of a run."""

from pathlib import Path

import numpy as np
import pytest
import torch

from evoattn.io import select_rows
from evoattn.model import Representations
from evoattn.runs.figure import Maps, Report, draw, focused_heads
from tests.runs.cases import alignment

pytest.importorskip("matplotlib", reason="needs the extra viz")


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.asarray(imread(path))


def report(n_res: int, *, seed: int | None, n_heads: int = 4, title: str = "family.a3m") -> Report:
    msa = alignment(n_seq=5, n_res=n_res)
    out = Representations(torch.randn(3, n_res, 8), torch.randn(n_res, n_res, 4), torch.randn(n_res, 6))
    weights = torch.rand(n_heads, n_res, n_res).softmax(-1)
    return Report(msa, select_rows(msa, 3), out, Maps("evoformer.blocks.0", weights, weights, n_res // 2), title, seed)


def test_draws_and_says_when_parameters_are_random(tmp_path: Path) -> None:
    """The badge is the only orange in the headline, on its right side; a picture of loaded parameters has none."""
    for seed, is_there in ((3, True), (None, False)):
        image = pixels(draw(tmp_path, report(30, seed=seed)))
        assert image.shape[:2] == (1350, 2400)
        red, green, blue = (image[:80, 1200:, channel] for channel in range(3))
        assert bool(((red > 0.8) & (green < 0.45) & (blue < 0.1)).any()) == is_there


@pytest.mark.parametrize("n_res", [1, 2])
def test_draws_the_smallest(n_res: int, tmp_path: Path) -> None:
    assert draw(tmp_path, report(n_res, seed=0, n_heads=1)).stat().st_size > 10_000


def test_draws_values_that_are_not_finite_and_names_with_signs(tmp_path: Path) -> None:
    odd = report(6, seed=0, title="$x_{$ [a] %s")
    for tensor in vars(odd.out).values():
        tensor[:] = torch.nan
    assert draw(tmp_path, odd).stat().st_size > 10_000


def test_focused_heads_have_the_lowest_entropy() -> None:
    even, sharp, between = torch.full((4, 4), 0.25), torch.eye(4), 0.5 * torch.eye(4) + 0.125
    assert focused_heads(torch.stack([even, sharp, between]), 1) == [1]
    assert focused_heads(torch.stack([even, sharp, between]), 2) == [1, 2]
    assert focused_heads(even.unsqueeze(0), 2) == [0]
