"""Small alignments for tests, made from their rows as text, and how two of them are compared."""

from collections.abc import Sequence

import numpy as np

from evoattn.io import MSA, MSAAccount, SparseLetters
from evoattn.io.residues import encode

INSERTIONS = ">q\nMKVL\n>mid\nMKaaVL\n>left\nggMKVL\n>right\nMKVLgg\n"
"""An a3m file with insertions at both ends and in the middle."""


def alignment(texts: Sequence[str], deletions: np.ndarray | None = None, *, alphabet: str = "protein", **changes: object) -> MSA:
    """An MSA with these rows; `deletions` [N_seq, N_res] says how many letters are inserted left of each column."""
    n_seq, n_res = len(texts), len(texts[0])
    counts = np.zeros((n_seq, n_res), np.int32) if deletions is None else deletions.astype(np.int32)
    fields = {
        "names": tuple(f"r{i}" for i in range(n_seq)),
        "descriptions": ("",) * n_seq,
        "residues": np.stack([encode(text, alphabet) for text in texts]),
        "insertions": SparseLetters.of_counts(counts),
        "account": MSAAccount(rows_in=n_seq, rows_kept=n_seq),
        "alphabet": alphabet,
    }
    return MSA(**{**fields, **changes})


def random_alignment(n_seq: int = 40, n_res: int = 9, *, letters: str = "ARNDCXW-", seed: int = 3) -> MSA:
    """Random rows under a query without gaps, some rows repeated, one of gaps alone, with insertions."""
    rng = np.random.default_rng(seed)
    rows = ["".join(rng.choice(list(letters), size=n_res)) for _ in range(n_seq)]
    rows[0] = rows[0].replace("-", "X")  # a query has a residue everywhere
    rows[3] = rows[2]
    rows[n_seq // 2] = rows[2]
    rows[n_seq // 2 + 1] = "-" * n_res  # agrees with nothing
    return alignment(rows, rng.poisson(0.7, size=(n_seq, n_res)))


def texts(msa: MSA) -> list[str]:
    """The rows as text."""
    letters = "ARNDCQEGHILKMFPSTWYVX-" + "AGCU" + "AGCT" + "N"
    return ["".join(letters[code] for code in row) for row in msa.residues]


def assert_same(a: MSA, b: MSA, *, names: bool = True) -> None:
    """Equal residues and inserted letters, and equal names unless told otherwise."""
    assert not names or a.names == b.names
    assert a.alphabet == b.alphabet
    np.testing.assert_array_equal(a.residues, b.residues)
    for array in ("offsets", "columns", "letters"):
        np.testing.assert_array_equal(getattr(a.insertions, array), getattr(b.insertions, array))
