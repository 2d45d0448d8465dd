"""Filters and subsets, against slow loops over letters."""

import math
from pathlib import Path

import numpy as np
import pytest

from evoattn.errors import ConfigError
from evoattn.io import MSA, drop_repeats, filter_rows, read_msa, subsample
from tests.io.alignments import alignment, random_alignment, texts

ROOT = Path(__file__).resolve().parents[2]
RESIDUES = set("ARNDCQEGHILKMFPSTWYV")


@pytest.fixture(scope="module")
def family() -> MSA:
    return read_msa(ROOT / "data/dhfr.a3m.gz", max_rows=150)


def kept(msa: MSA, **bounds: float) -> list[int]:
    numbered = msa.take(np.arange(msa.n_seq))
    object.__setattr__(numbered, "names", tuple(map(str, range(msa.n_seq))))
    return [int(name) for name in filter_rows(numbered, **bounds).names]


def residues(row: str) -> int:
    return sum(letter in RESIDUES for letter in row)


def representatives_by_hand(rows: list[str], bound: float) -> list[int]:
    order = [0, *sorted(range(1, len(rows)), key=lambda i: (-residues(rows[i]), i))]
    taken: list[int] = []
    for i in order:
        if i and not residues(rows[i]):
            continue
        for j in taken:
            both = [(a, b) for a, b in zip(rows[i], rows[j], strict=True) if a in RESIDUES and b in RESIDUES]
            if both and sum(a == b for a, b in both) / len(both) >= bound + 0.0001:
                break
        else:
            taken.append(i)
    return sorted(taken)


def diff_by_hand(rows: list[str], diff: int, bound: int) -> list[int]:
    """hhfilter's -diff with -id `bound` percent, from its documentation and behaviour."""
    length = len(rows[0])
    order = [0, *sorted((i for i in range(1, len(rows)) if residues(rows[i])), key=lambda i: (-residues(rows[i]), i))]
    spans = {i: [n for n, letter in enumerate(rows[i]) if letter in RESIDUES] for i in order}
    taken, limit, deepest = {0}, [20] * length, [0] * length
    percent, step, missing = 20, 0, diff
    while percent <= bound:
        for n in range(length):
            low, high = max(0, min(length - 50, n - 25)), min(length, max(50, n + 26))
            depths = [sum(spans[i][0] <= m <= spans[i][-1] for i in taken) for m in range(low, high)]
            deepest[n] = max([deepest[n], *depths])
            if deepest[n] < diff:
                limit[n] = percent
        if min(deepest) >= diff:
            break
        for position, i in enumerate(order):
            if i in taken:
                continue
            own = max(limit[spans[i][0] : spans[i][-1] + 1])
            similar = False
            for j in order[:position]:
                both = [(a, b) for a, b in zip(rows[i], rows[j], strict=True) if a in RESIDUES and b in RESIDUES]
                similar |= j in taken and bool(both) and sum(a == b for a, b in both) / len(both) >= own / 100 + 0.0001
            if not similar or percent >= 100:
                taken.add(i)
        before, missing = missing, diff - min(deepest)
        step = max(1, min(5, missing // (before - missing + 1) * step // 2))
        percent += step
    return sorted(taken)


# --- hhfilter's bounds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.0, 0.5, 0.75, 1.0])
def test_coverage(family: MSA, bound: float) -> None:
    rows = texts(family)
    assert kept(family, min_coverage=bound) == [i for i, row in enumerate(rows) if residues(row) >= bound * len(row)]


@pytest.mark.parametrize("bound", [0.2, 0.35, 0.5])
def test_identity_to_the_query(family: MSA, bound: float) -> None:
    rows = texts(family)

    def identical(row: str) -> float:
        return sum(a == b for a, b in zip(row, rows[0], strict=True) if a in RESIDUES) / residues(row)

    assert kept(family, min_query_identity=bound) == [i for i, row in enumerate(rows) if i == 0 or identical(row) > bound + 0.0001]


@pytest.mark.parametrize("bound", [0.0, 0.1, 0.5])
def test_gaps(family: MSA, bound: float) -> None:
    assert kept(family, max_gaps=bound) == [i for i, row in enumerate(texts(family)) if row.count("-") <= bound * len(row)]


@pytest.mark.parametrize("bound", [0.2, 0.4, 0.62, 0.9, 1.0])
def test_identity_between_rows(family: MSA, bound: float) -> None:
    assert kept(family, max_identity=bound) == representatives_by_hand(texts(family), bound)


def test_identity_between_random_rows() -> None:
    msa = random_alignment(60, 12)
    for bound in (0.3, 0.5, 0.9):
        assert kept(msa, max_identity=bound) == representatives_by_hand(texts(msa), bound)


@pytest.mark.parametrize(("diff", "bound"), [(5, 0.9), (12, 0.9), (12, 0.3), (40, 1.0)])
def test_diverse_rows_at_every_column(family: MSA, diff: int, bound: float) -> None:
    part = family.take(np.arange(60))
    assert kept(part, diff=diff, max_identity=bound) == diff_by_hand(texts(part), diff, round(100 * bound))


def test_diverse_rows_at_every_column_of_fragments() -> None:
    rng = np.random.default_rng(4)
    rows = ["".join(rng.choice(list("ARND"), size=140))]
    for _ in range(40):
        start = int(rng.integers(0, 120))
        end = start + int(rng.integers(10, 60))
        copied = [letter if rng.random() < 0.7 else str(rng.choice(list("ARND-"))) for letter in rows[0]]
        rows.append("".join(copied[start:end]).rjust(end, "-")[:140].ljust(140, "-"))
    for diff in (3, 6):
        assert kept(alignment(rows), diff=diff, max_identity=0.95) == diff_by_hand(rows, diff, 95)


def test_diff_without_a_bound_and_without_effect(family: MSA) -> None:
    part = family.take(np.arange(30))
    assert kept(part, diff=20) == diff_by_hand(texts(part), 20, 100)
    assert kept(family, diff=150, max_identity=0.5) == kept(family, max_identity=0.5)  # no fewer than there are: as if not given


def test_by_hand() -> None:
    rows = ["ARNDCQEGHI", "ARNDCQEGH-", "ARNDC-----", "WWWWW-----", "XXXXXXXXXX", "----------"]
    msa = alignment(rows)
    assert kept(msa, min_coverage=0.5) == [0, 1, 2, 3]  # X covers nothing
    assert kept(msa, min_coverage=0.51) == [0, 1]
    assert kept(msa, min_query_identity=0.99) == [0, 1, 2]
    assert kept(msa, max_gaps=0.5) == [0, 1, 2, 3, 4]
    assert kept(msa, max_identity=0.9) == [0, 3]  # rows 1 and 2 equal the query, rows 4 and 5 have no residue
    assert kept(msa, max_rows=2) == [0, 1]


def test_the_query_stays_whatever_it_is() -> None:
    assert kept(alignment(["XXXX", "ARND"]), min_coverage=0.9, max_identity=0.9, min_query_identity=0.5) == [0]


def test_nothing_happens_unless_asked(family: MSA) -> None:
    assert filter_rows(family) is family
    assert filter_rows(family, max_rows=150) is family
    assert subsample(family, 150) is family


def test_unknown_nucleotides_are_no_residues() -> None:
    assert kept(alignment(["ACGU", "NNNA"], alphabet="rna"), min_coverage=0.5) == [0]


def test_the_account_tells_what_went(family: MSA) -> None:
    found = filter_rows(family, min_coverage=0.98, max_identity=0.9, max_rows=5)
    assert found.account.rows_kept == found.n_seq == 5
    assert list(found.account.dropped) == [
        *family.account.dropped,
        "residues / N_res below 0.98 (min_coverage)",
        "identity above 0.9 to a row kept (max_identity)",
        "after the first 5 in file order (max_rows)",
    ]
    assert found.account.rows_kept == found.account.rows_in - sum(found.account.dropped.values())


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_coverage": 50.0}, "min_coverage is 50.0; it is a fraction between 0 and 1, e.g. 0.9 for 90 %"),
        ({"max_identity": -0.1}, "max_identity is -0.1"),
        ({"diff": 0}, "diff is 0; it is a number of rows"),
        ({"max_rows": 0}, "max_rows is 0"),
        ({"diff": 10, "max_identity": 0.1}, "with diff it is at least 0.2"),
    ],
)
def test_bounds_outside_what_is_allowed(bounds: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        filter_rows(random_alignment(), **bounds)


# --- repeats and subsets ---------------------------------------------------------------------------------------------


def test_repeats() -> None:
    found = drop_repeats(alignment(["ARN", "AR-", "ARN", "AR-", "ARX"]))
    assert found.names == ("r0", "r1", "r4")
    assert found.account.dropped == {"repeats an earlier row, insertions aside (drop_repeats)": 2}


def test_a_random_subset_is_uniform_seeded_and_in_file_order() -> None:
    msa = random_alignment(20)
    counts = np.zeros(20, dtype=int)
    for seed in range(300):
        names = subsample(msa, 6, seed=seed).names
        numbers = [int(name[1:]) for name in names]
        assert numbers == sorted(numbers) and numbers[0] == 0 and len(set(numbers)) == 6
        counts[numbers] += 1
    assert all(abs(count - 300 * 5 / 19) <= 5 * math.sqrt(300 * 5 / 19 * 14 / 19) for count in counts[1:])
    assert subsample(msa, 6, seed=3).names == subsample(msa, 6, seed=3).names != subsample(msa, 6, seed=4).names
    assert subsample(msa, 6, seed=3).account.dropped == {"not among 6 rows drawn at random (seed 3)": 14}


def test_a_diverse_subset_by_hand(family: MSA) -> None:
    rows = texts(family)
    chosen = [0]
    while len(chosen) < 12:
        distance = [sum(sum(a != b for a, b in zip(row, rows[j], strict=True)) for j in chosen) for row in rows]
        chosen.append(max((i for i in range(len(rows)) if i not in chosen), key=lambda i: (distance[i], -i)))
    found = subsample(family, 12, method="diverse")
    assert found.names == tuple(family.names[i] for i in sorted(chosen))
    assert found.account.dropped["not among the 12 most diverse rows"] == 138


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"n_rows": 0}, "n_rows is 0"), ({"n_rows": 3, "method": "best"}, "method is 'best'"), ({"n_rows": 3, "seed": -1}, "seed is -1")],
)
def test_subsets_outside_what_is_allowed(settings: dict, message: str, no_type_checks: None) -> None:
    with pytest.raises(ConfigError, match=message):
        subsample(random_alignment(), **settings)
