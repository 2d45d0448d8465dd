"""The shipped family against its crystal structure; ``python -m benchmarks.contacts`` measures whole fits, on more families."""

from pathlib import Path

import numpy as np
import pytest
import torch

from evoattn import read_msa
from evoattn.contacts import FitConfig, fit_attention, mean_field_dca
from evoattn.io import MSA, row_weights
from evoattn.train.contacts import contact_precision
from evoattn.train.structure import QueryStructure, read_structure

DATA = Path(__file__).resolve().parents[2] / "data"
SHORT = FitConfig(heads=16, steps=80)


@pytest.fixture(scope="module")
def dhfr() -> tuple[MSA, np.ndarray, QueryStructure]:
    msa = read_msa(DATA / "dhfr.a3m.gz")
    return msa, row_weights(msa, columns="all"), read_structure(DATA / "3ql0.pdb.gz", msa.query)


def top(scores: torch.Tensor, structure: QueryStructure, name: str) -> float:
    return contact_precision(scores.numpy(), structure.distances, ranges=["all"], top=[name])[0].value


def test_dca(dhfr: tuple[MSA, np.ndarray, QueryStructure]) -> None:
    msa, weights, structure = dhfr
    scores = mean_field_dca(msa, weights)
    assert top(scores, structure, "L") > 0.6 and top(scores, structure, "L/5") > 0.85


def test_attention(dhfr: tuple[MSA, np.ndarray, QueryStructure]) -> None:
    msa, weights, structure = dhfr
    found = top(fit_attention(msa, weights, SHORT).model.scores(), structure, "L/5")
    assert found > 0.6, "by chance it would be 0.03"
