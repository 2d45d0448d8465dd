"""The alignment in memory, the account of how it came there, and the rule by which rows are kept for a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32, Int64, Shaped, UInt8

from evoattn.errors import ConfigError, MSAError
from evoattn.io.residues import ALPHABETS, GAP, decode


@dataclass(frozen=True)
class MSAAccount:
    """What became of the rows and letters of a file: ``rows_kept == rows_in - sum(dropped.values())``."""

    rows_in: int
    rows_kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of rows."""
    mapped: Mapping[str, int] = field(default_factory=dict)
    """Letter that is read as another (:mod:`evoattn.io.residues`) -> how often it stands in the columns."""
    notes: tuple[str, ...] = ()
    """Quirks of the file, and what was done about them."""

    def __str__(self) -> str:
        lines = [f"rows in the file: {self.rows_in}, kept: {self.rows_kept}"]
        lines += [f"rows dropped, {reason}: {count}" for reason, count in self.dropped.items()]
        if self.mapped:
            counts = ", ".join(f"{letter} x{count}" for letter, count in self.mapped.items())
            lines.append(f"letters read as another: {counts}")
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True, eq=False)
class SparseLetters:
    """Letters at some places of an alignment, stored row after row: row i has those of ``offsets[i]:offsets[i + 1]``."""

    offsets: Int64[np.ndarray, " s_plus_1"]
    columns: Int32[np.ndarray, " k"]
    """The column of each letter, never descending within a row."""
    letters: UInt8[np.ndarray, " k"]
    """Upper-case ASCII."""

    @classmethod
    def none(cls, n_seq: int) -> "SparseLetters":
        """No letter in any of ``n_seq`` rows."""
        return cls(np.zeros(n_seq + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.uint8))

    @classmethod
    def of_rows(cls, rows: Iterable[Iterable[tuple[int, str]]]) -> "SparseLetters":
        """From the (column, letters) pairs of each row: ``[[], [(2, "AA"), (4, "G")]]``."""
        spread = [[(column, letter) for column, letters in row for letter in letters.encode()] for row in rows]
        flat = [pair for row in spread for pair in row]
        return cls(
            np.cumsum([0, *map(len, spread)], dtype=np.int64),
            np.array([column for column, _ in flat], np.int32),
            np.array([letter for _, letter in flat], np.uint8),
        )

    @classmethod
    def of_counts(cls, deletions: Int32[np.ndarray, "s n"], trailing: Int32[np.ndarray, " s"] | None = None) -> "SparseLetters":
        """As many unknown letters, ``X``, left of each column and after the last, as the counts say."""
        n_seq, n_res = deletions.shape
        counts = np.concatenate([deletions, np.zeros((n_seq, 1), np.int32) if trailing is None else trailing[:, None]], axis=1)
        columns = np.repeat(np.tile(np.arange(n_res + 1, dtype=np.int32), n_seq), counts.ravel())
        offsets = np.concatenate([[0], np.cumsum(counts.sum(axis=1, dtype=np.int64))])
        return cls(offsets, columns, np.full(len(columns), ord("X"), np.uint8))

    @property
    def n_seq(self) -> int:
        return len(self.offsets) - 1

    def __len__(self) -> int:
        return len(self.letters)

    @property
    def rows(self) -> Int64[np.ndarray, " k"]:
        """The row of each letter."""
        return np.repeat(np.arange(self.n_seq), np.diff(self.offsets))

    def row(self, i: int) -> tuple[Int32[np.ndarray, " j"], bytes]:
        """The columns and the letters of row ``i``."""
        own = slice(self.offsets[i], self.offsets[i + 1])
        return self.columns[own], self.letters[own].tobytes()

    def counts(self, n_columns: int) -> Int32[np.ndarray, "s n_columns"]:
        """How many letters stand at each place, int32 [N_seq, n_columns]."""
        dense = np.zeros((self.n_seq, n_columns), np.int32)
        place = self.rows * n_columns + self.columns
        first = np.flatnonzero(np.diff(place, prepend=-1))  # equal places follow each other
        dense.reshape(-1)[place[first]] = np.diff(first, append=len(place))
        return dense

    def take(self, rows: Int64[np.ndarray, " r"]) -> "SparseLetters":
        """The letters of the given rows, in that order."""
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        index = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return SparseLetters(offsets, self.columns[index], self.letters[index])


@dataclass(frozen=True)
class Annotation:
    """Mark-up of a Stockholm file, under the tags it has there (Pfam's names: ``SS_cons``, ``RF``, ``PP``, ``AC``, ...)."""

    gf: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Of the file: tag -> its lines."""
    gc: Mapping[str, str] = field(default_factory=dict)
    """Of the columns: tag -> one character per column."""
    gs: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)
    """Of the rows: tag -> row -> its lines. ``DE`` is not here but in ``descriptions``."""
    gr: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Of the residues: tag -> row -> one character per column."""

    def take(self, rows: Int64[np.ndarray, " r"]) -> "Annotation":
        """The same for the given rows, in that order."""

        def taken(tags: Mapping[str, Mapping[int, Any]]) -> dict[str, dict[int, Any]]:
            moved = {tag: {new: of[old] for new, old in enumerate(rows.tolist()) if old in of} for tag, of in tags.items()}
            return {tag: of for tag, of in moved.items() if of}

        return replace(self, gs=taken(self.gs), gr=taken(self.gr))


@dataclass(frozen=True, repr=False, eq=False)
class MSA:
    """A multiple sequence alignment; row 0 is the query.

    Its columns are those of the query's residues, unless the file was read with another ``anchor``
    (:func:`evoattn.io.read_msa`): then the query may have gaps like any row.

    Raises MSAError if the arrays do not fit each other.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    residues: UInt8[np.ndarray, "s n"]
    """Codes of :mod:`evoattn.io.residues`, in the table of ``alphabet``."""
    insertions: SparseLetters
    """The residues between the columns: those at column c stand left of it, those at column N_res after the last."""
    account: MSAAccount
    format: str = ""
    source: str = ""
    alphabet: str = "protein"
    """``protein``, ``rna`` or ``dna``."""
    chain_lengths: tuple[int, ...] = ()
    """Columns of each chain where the file says it holds a complex (ColabFold's first line, or ':'); empty otherwise."""
    chain_copies: tuple[int, ...] = ()
    """How often each of those chains occurs in the complex. The columns hold one copy of each."""
    unusual: SparseLetters | None = None
    """The letters of the columns that are read as another (``U`` as ``C``), so that they can be written again."""
    annotation: Annotation = field(default_factory=Annotation)
    tabbed: Bool[np.ndarray, " s"] | None = None
    """Rows whose description follows the name after a tab, as MMseqs2 writes it, and not after a space."""

    def __post_init__(self) -> None:
        n_seq, n_res = self.residues.shape
        sizes = len(self.names), len(self.descriptions), self.insertions.n_seq
        if sizes != (n_seq, n_seq, n_seq):
            raise MSAError(
                f"names, descriptions and insertions have sizes {sizes}; residues of shape {(n_seq, n_res)} ask for {n_seq} of each."
            )
        if n_seq == 0 or n_res == 0:
            raise MSAError(f"an alignment of {n_seq} rows and {n_res} columns: at least the query and one residue are needed.")
        if len(self.insertions) and not 0 <= self.insertions.columns.min() <= self.insertions.columns.max() <= n_res:
            raise MSAError(
                f"insertions are left of columns 0..{n_res}, and at {n_res} after the last; got {self.insertions.columns.max()}."
            )
        if self.unusual is not None and (self.unusual.n_seq != n_seq or (self.unusual.columns >= n_res).any()):
            raise MSAError(f"the unusual letters do not fit residues of shape {(n_seq, n_res)}; give None if they are not known.")
        if self.tabbed is not None and len(self.tabbed) != n_seq:
            raise MSAError(f"tabbed has {len(self.tabbed)} entries for {n_seq} rows.")
        if self.alphabet not in ALPHABETS:
            raise MSAError(f"alphabet is {self.alphabet!r}; allowed are {', '.join(ALPHABETS)}.")
        low, high = (0, 22) if self.alphabet == "protein" else (GAP, 30)
        if self.residues.min() < low or self.residues.max() > high:
            wrong = self.residues.max() if self.residues.max() > high else self.residues.min()
            raise MSAError(f"residues hold the code {wrong}; of {self.alphabet} {low}..{high} are allowed, see evoattn.io.residues.")
        if self.chain_lengths and sum(self.chain_lengths) != n_res:
            raise MSAError(
                f"the chain lengths {self.chain_lengths} add up to {sum(self.chain_lengths)}, but the query has "
                f"{n_res} residues. Correct the first line of the file, or remove it if the alignment has one chain."
            )

    @property
    def n_seq(self) -> int:
        return self.residues.shape[0]

    @property
    def n_res(self) -> int:
        return self.residues.shape[1]

    @property
    def query(self) -> str:
        """The letters of row 0."""
        return decode(self.residues[0], self.alphabet)

    @cached_property
    def deletions(self) -> Int32[np.ndarray, "s n"]:
        """Number of residues inserted just left of each column (AlphaFold 2's name for it: the deletion matrix)."""
        return self._inserted[:, :-1]

    @cached_property
    def trailing(self) -> Int32[np.ndarray, " s"]:
        """Number of residues inserted after the last column; AlphaFold 2 drops them, and no feature is made of them."""
        return self._inserted[:, -1]

    @cached_property
    def _inserted(self) -> Int32[np.ndarray, "s n_plus_1"]:
        return self.insertions.counts(self.n_res + 1)

    def __repr__(self) -> str:
        query = self.query if self.n_res <= 24 else self.query[:21] + "..."
        parts = [
            f"{self.n_seq} rows x {self.n_res} columns",
            f"query {self.names[0]!r} {query}",
            self.format,
            self.source,
        ]
        return f"MSA({', '.join(filter(None, parts))})"

    def take(self, rows: slice | Sequence[int] | Shaped[np.ndarray, " r"], *, reason: str = "not taken") -> "MSA":
        """Return the alignment of the given rows, in the given order; the first becomes row 0, in the same columns.

        The account counts the rows left out under ``reason``.

        Raises MSAError if there is no such row, or none is asked for.
        """
        try:
            index = np.arange(self.n_seq)[rows].reshape(-1)
        except IndexError:
            raise MSAError(f"rows {rows} were asked for; the alignment has rows 0..{self.n_seq - 1}.") from None
        if len(index) == 0:
            raise MSAError("no row was asked for; an alignment has at least one.")
        dropped = dict(self.account.dropped)
        if left_out := self.n_seq - len(np.unique(index)):
            dropped[reason] = dropped.get(reason, 0) + left_out
        return replace(
            self,
            names=tuple(self.names[i] for i in index),
            descriptions=tuple(self.descriptions[i] for i in index),
            residues=self.residues[index],
            insertions=self.insertions.take(index),
            unusual=None if self.unusual is None else self.unusual.take(index),
            tabbed=None if self.tabbed is None else self.tabbed[index],
            annotation=self.annotation.take(index),
            account=replace(self.account, rows_kept=len(index), dropped=dropped),
        )


def select_rows(msa: MSA, max_seqs: int) -> MSA:
    """Keep the query and the next rows in file order, ``max_seqs`` rows in all.

    Search tools write the best hits first, so this keeps those, and the same rows each time; AlphaFold 2 draws them at
    random. Rows that repeat an earlier one count like any other. The account of the result says what was left out.

    Raises ConfigError if ``max_seqs`` is below 1.
    """
    if max_seqs < 1:
        raise ConfigError(f"max_seqs is {max_seqs}; at least 1 row, the query, is kept.")
    if max_seqs >= msa.n_seq:
        return msa
    kept = msa.take(slice(max_seqs), reason=f"after the first {max_seqs} in file order (max_seqs)")
    note = f"kept for the run, in file order: the query and {max_seqs - 1:,} after it, repeated rows included"
    return replace(kept, account=replace(kept.account, notes=(*kept.account.notes, note)))
