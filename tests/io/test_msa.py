"""The alignment object and the choice of rows."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, Annotation, MSAAccount, SparseLetters, select_rows


def alignment(n_seq: int = 5, n_res: int = 3, **changes: object) -> MSA:
    cells = np.arange(n_seq * n_res).reshape(n_seq, n_res)
    fields = {
        "names": tuple(f"r{i}" for i in range(n_seq)),
        "descriptions": tuple(f"row {i}" for i in range(n_seq)),
        "residues": (cells % 22).astype(np.uint8),
        "insertions": SparseLetters.of_counts(cells.astype(np.int32), np.arange(n_seq, dtype=np.int32)),
        "account": MSAAccount(rows_in=n_seq, rows_kept=n_seq),
        "format": "a3m",
        "source": "x.a3m",
    }
    return MSA(**{**fields, **changes})


def test_properties_and_repr() -> None:
    msa = alignment()
    assert (msa.n_seq, msa.n_res, msa.query) == (5, 3, "ARN")
    assert repr(msa) == "MSA(5 rows x 3 columns, query 'r0' ARN, a3m, x.a3m)"
    assert "ARNDCQEGHILKMFPSTWYVX..." in repr(alignment(1, 40))
    with pytest.raises(FrozenInstanceError):
        msa.format = "other"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": ("a",)}, r"sizes \(1, 5, 5\)"),
        ({"insertions": SparseLetters.none(4)}, r"sizes \(5, 5, 4\); residues of shape \(5, 3\)"),
        ({"insertions": SparseLetters.of_rows([[(4, "A")], [], [], [], []])}, r"columns 0\.\.3, and at 3 after the last; got 4"),
        ({"residues": np.full((5, 3), 23, np.uint8)}, r"hold the code 23; of protein 0\.\.22 are allowed"),
        ({"alphabet": "rna"}, r"hold the code 0; of rna 21\.\.30 are allowed"),
        ({"unusual": SparseLetters.none(4)}, r"the unusual letters do not fit residues of shape \(5, 3\)"),
        ({"unusual": SparseLetters.of_rows([[(3, "U")], [], [], [], []])}, "the unusual letters do not fit"),
        ({"tabbed": np.zeros(4, bool)}, "tabbed has 4 entries for 5 rows"),
        ({"alphabet": "xna"}, "alphabet is 'xna'; allowed are protein, rna, dna"),
        ({"chain_lengths": (2, 2), "chain_copies": (1, 1)}, "add up to 4, but the query has 3 residues"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict, message: str, no_type_checks: None) -> None:
    with pytest.raises(MSAError, match=message):
        alignment(**changes)


@pytest.mark.parametrize(("n_seq", "n_res"), [(0, 3), (2, 0)])
def test_an_empty_alignment_is_refused(n_seq: int, n_res: int) -> None:
    with pytest.raises(MSAError, match=f"{n_seq} rows and {n_res} columns"):
        alignment(n_seq, n_res)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (slice(2), [0, 1]),
        ([0, 4, 2], [0, 4, 2]),
        (np.array([0, 0, 3]), [0, 0, 3]),
        (np.array([True, False, False, True, False]), [0, 3]),
        ([-1], [4]),
    ],
)
def test_take(rows: object, expected: list[int]) -> None:
    msa = alignment()
    taken = msa.take(rows, reason="tested")
    assert taken.names == tuple(f"r{i}" for i in expected)
    assert taken.descriptions == tuple(f"row {i}" for i in expected)
    np.testing.assert_array_equal(taken.residues, msa.residues[expected])
    np.testing.assert_array_equal(taken.deletions, msa.deletions[expected])
    np.testing.assert_array_equal(taken.trailing, msa.trailing[expected])
    assert taken.account.rows_kept == len(expected)
    assert taken.account.dropped == {"tested": 5 - len(set(expected))}
    assert msa.account.dropped == {} and msa.n_seq == 5


@pytest.mark.parametrize(("rows", "message"), [([0, 5], r"rows 0\.\.4"), ([], "at least one"), (slice(5, 9), "at least one")])
def test_take_refuses_what_is_not_there(rows: object, message: str) -> None:
    with pytest.raises(MSAError, match=message):
        alignment().take(rows)


def test_select_rows_keeps_the_first_and_says_so() -> None:
    kept = select_rows(alignment(), 2)
    assert kept.names == ("r0", "r1")
    assert kept.account.dropped == {"after the first 2 in file order (max_seqs)": 3}
    assert kept.account.notes == ("kept for the run, in file order: the query and 1 after it, repeated rows included",)
    assert str(kept.account).splitlines() == [
        "rows in the file: 5, kept: 2",
        "rows dropped, after the first 2 in file order (max_seqs): 3",
        *kept.account.notes,
    ]


@pytest.mark.parametrize("max_seqs", [5, 6])
def test_select_rows_changes_nothing_if_all_fit(max_seqs: int) -> None:
    msa = alignment()
    assert select_rows(msa, max_seqs) is msa


def test_select_rows_keeps_at_least_the_query() -> None:
    with pytest.raises(ConfigError, match="max_seqs is 0; at least 1"):
        select_rows(alignment(), 0)


# --- sparse letters and annotation -----------------------------------------------------------------------------------


def test_sparse_letters_of_each_row() -> None:
    letters = SparseLetters.of_rows([[], [(2, "AG"), (4, "W")], [], [(0, "K")]])
    assert (letters.n_seq, len(letters)) == (4, 4)
    assert letters.rows.tolist() == [1, 1, 1, 3]
    assert [letters.row(i)[1] for i in range(4)] == [b"", b"AGW", b"", b"K"]
    assert letters.row(1)[0].tolist() == [2, 2, 4]
    assert letters.counts(5).tolist() == [[0] * 5, [0, 0, 2, 0, 1], [0] * 5, [1, 0, 0, 0, 0]]


def test_sparse_letters_of_counts_and_back() -> None:
    deletions = np.random.default_rng(0).poisson(0.5, (7, 4)).astype(np.int32)
    trailing = np.arange(7, dtype=np.int32)
    letters = SparseLetters.of_counts(deletions, trailing)
    np.testing.assert_array_equal(letters.counts(5), np.concatenate([deletions, trailing[:, None]], axis=1))
    assert set(letters.letters.tolist()) == {ord("X")}
    assert SparseLetters.of_counts(deletions).counts(5)[:, 4].sum() == 0
    assert not SparseLetters.none(3).counts(2).any()


def test_sparse_letters_of_chosen_rows() -> None:
    rows = [[(1, "A")], [], [(0, "CD"), (3, "E")], [(2, "F")]]
    letters = SparseLetters.of_rows(rows)
    for chosen in ([2, 0, 0, 3], [1], [3, 2, 1, 0]):
        taken, expected = letters.take(np.array(chosen)), SparseLetters.of_rows([rows[i] for i in chosen])
        for array in ("offsets", "columns", "letters"):
            np.testing.assert_array_equal(getattr(taken, array), getattr(expected, array))


def test_take_moves_annotation_unusual_letters_and_tabs() -> None:
    marks = Annotation(gf={"ID": ("x",)}, gs={"AC": {1: ("P1",), 4: ("P4",)}, "OS": {2: ("E. coli",)}}, gr={"SS": {4: "HHH", 0: "CCC"}})
    odd = SparseLetters.of_rows([[(0, "U")], [], [], [], [(2, "B")]])
    msa = alignment(annotation=marks, unusual=odd, tabbed=np.array([False, True, False, False, True])).take([0, 4, 4])
    assert msa.annotation == Annotation(gf={"ID": ("x",)}, gs={"AC": {1: ("P4",), 2: ("P4",)}}, gr={"SS": {0: "CCC", 1: "HHH", 2: "HHH"}})
    assert msa.unusual is not None and [msa.unusual.row(i)[1] for i in range(3)] == [b"U", b"B", b"B"]
    assert msa.tabbed is not None and msa.tabbed.tolist() == [False, True, True]
