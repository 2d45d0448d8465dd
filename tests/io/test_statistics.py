"""Row weights, Neff and coverage, against double loops."""

import re
from pathlib import Path

import pytest

from evoattn.errors import ConfigError
from evoattn.io import MSA, identity, msa_statistics, neff, read_msa, row_weights
from evoattn.io.statistics import column_coverage, query_identity, row_coverage
from tests.io.alignments import alignment, random_alignment, texts

ROOT = Path(__file__).resolve().parents[2]


def identity_by_hand(a: str, b: str, columns: str) -> float:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if columns == "all" or (x != "-" and y != "-")]
    return sum(x == y for x, y in pairs) / len(pairs) if pairs else 0.0


def weights_by_hand(msa: MSA, threshold: float, columns: str) -> list[float]:
    rows = texts(msa)
    near = [[i == j or identity_by_hand(a, b, columns) >= threshold for j, b in enumerate(rows)] for i, a in enumerate(rows)]
    return [1 / sum(own) for own in near]


@pytest.mark.parametrize("columns", ["shared", "all"])
@pytest.mark.parametrize("threshold", [0.3, 0.62, 0.8, 1.0])
@pytest.mark.parametrize("n_res", [1, 9, 63, 64, 65, 130])
def test_row_weights(n_res: int, threshold: float, columns: str) -> None:
    msa = random_alignment(30, n_res, letters="AR-X")
    assert row_weights(msa, threshold=threshold, columns=columns).tolist() == weights_by_hand(msa, threshold, columns)


@pytest.mark.parametrize("columns", ["shared", "all"])
def test_neff_of_a_real_family(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_WORDS_AT_ONCE", 50)  # several stretches of rows
    msa = read_msa(ROOT / "data/dhfr.a3m.gz", max_rows=120)
    assert neff(msa, columns=columns) == pytest.approx(sum(weights_by_hand(msa, 0.8, columns)), abs=1e-9)


def test_a_threshold_is_met_exactly() -> None:
    msa = alignment(["AAAAA", "AAAAR", "AAARR"])
    assert row_weights(msa, threshold=0.8).tolist() == [1 / 2, 1 / 3, 1 / 2]
    assert row_weights(msa, threshold=0.81).tolist() == [1, 1, 1]


def test_the_two_definitions_differ_on_fragments() -> None:
    msa = alignment(["ARNDCQEGHI", "ARNDC-----", "-----QEGHI"])
    assert neff(msa, columns="shared") == 1 / 3 + 1 / 2 + 1 / 2  # each fragment equals the query where both have residues
    assert neff(msa, columns="all") == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"threshold": 0.0}, "threshold is 0.0"), ({"threshold": 80.0}, "such as 0.8 for 80 %"), ({"columns": "both"}, "columns is 'both'")],
)
def test_settings_outside_what_is_allowed(settings: dict, message: str, no_type_checks: None) -> None:
    with pytest.raises(ConfigError, match=message):
        row_weights(random_alignment(), **settings)


def test_coverage_and_identity_by_hand() -> None:
    msa = alignment(["ARNX", "AR--", "-W-X", "----"])
    assert row_coverage(msa).tolist() == [1, 0.5, 0.5, 0]
    assert column_coverage(msa).tolist() == [0.5, 0.75, 0.25, 0.5]
    assert query_identity(msa).tolist() == [1, 1, 0.5, 0]
    assert query_identity(msa, columns="all").tolist() == [1, 0.5, 0.25, 0]


def test_statistics() -> None:
    msa = alignment(["ARND", "ARN-", "WWWW"])
    found = msa_statistics(msa)
    assert (found.n_seq, found.n_res, found.neff, found.neff_per_residue) == (3, 4, 2.0, 0.5)
    assert found.depth.tolist() == [2, 2, 2, 1.5]
    assert found.coverage.tolist() == [1, 1, 1, 2 / 3]
    assert found.query_identity.tolist() == [1, 1, 0] and found.row_coverage.tolist() == [1, 0.75, 1]
    assert found.verdict == (
        "too shallow for contacts by coevolution (Neff/N_res = 0.5, below 1); shallow for AlphaFold 2 (median depth 2, below 30)"
    )


def test_verdicts() -> None:
    assert msa_statistics(alignment(["ARND"])).verdict.startswith("a single sequence")
    some, many = random_alignment(40, 20), random_alignment(1_400, 20)
    assert msa_statistics(some).verdict.startswith("deep enough for some contacts by coevolution (Neff/N_res = 1.9, between 1 and 5)")
    assert re.fullmatch(
        r"deep enough for contacts .*; deep enough for AlphaFold 2 \(median depth 1,\d\d\d, at least 30\)", msa_statistics(many).verdict
    )


def test_depth_needs_no_large_arrays() -> None:
    import tracemalloc

    msa = random_alignment(1500, 300)
    tracemalloc.start()
    row_weights(msa)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1500 * 300 * 4  # all pairs would take 1500 x 1500 x 8 bytes
