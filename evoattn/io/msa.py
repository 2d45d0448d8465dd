"""The alignment in memory, the account of how it came there, and the rule by which rows are kept for a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int32, Shaped, UInt8

from evoattn.errors import ConfigError, MSAError
from evoattn.io.residues import N_CODES, decode


@dataclass(frozen=True)
class MSAAccount:
    """What became of the rows and letters of a file: ``rows_kept == rows_in - sum(dropped.values())``."""

    rows_in: int
    rows_kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of rows."""
    mapped: Mapping[str, int] = field(default_factory=dict)
    """Letter that is read as another (:data:`evoattn.io.residues.READ_AS`) -> how often it stands in the columns."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"rows in the file: {self.rows_in}, kept: {self.rows_kept}"]
        lines += [f"rows dropped, {reason}: {count}" for reason, count in self.dropped.items()]
        if self.mapped:
            counts = ", ".join(f"{letter} x{count}" for letter, count in self.mapped.items())
            lines.append(f"letters read as another: {counts}")
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True, repr=False, eq=False)
class MSA:
    """A multiple sequence alignment in the columns of its query, which is row 0.

    Raises MSAError if the arrays do not fit each other.
    """

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    residues: UInt8[np.ndarray, "s n"]
    """Codes of :mod:`evoattn.io.residues`."""
    deletions: Int32[np.ndarray, "s n"]
    """Number of residues inserted just left of each column (AlphaFold 2's name for it: the deletion matrix)."""
    trailing: Int32[np.ndarray, " s"]
    """Number of residues inserted after the last column; AlphaFold 2 drops them, and no feature is made of them."""
    account: MSAAccount
    format: str = ""
    source: str = ""
    chain_lengths: tuple[int, ...] = ()
    """Columns of each chain where the file says it holds a complex (ColabFold's first line); empty otherwise."""
    chain_copies: tuple[int, ...] = ()
    """How often each of those chains occurs in the complex. The columns hold one copy of each."""

    def __post_init__(self) -> None:
        n_seq, n_res = self.residues.shape
        sizes = len(self.names), len(self.descriptions), len(self.trailing), *self.deletions.shape
        if sizes != (n_seq, n_seq, n_seq, n_seq, n_res):
            raise MSAError(
                f"names, descriptions, trailing and deletions have sizes {sizes[:3]} and {sizes[3:]}; residues of "
                f"shape {(n_seq, n_res)} ask for {n_seq} of each and for the same shape."
            )
        if n_seq == 0 or n_res == 0:
            raise MSAError(f"an alignment of {n_seq} rows and {n_res} columns: at least the query and one residue are needed.")
        if self.residues.max() >= N_CODES:
            raise MSAError(f"residues hold the code {self.residues.max()}; allowed are 0..{N_CODES - 1}, see evoattn.io.residues.")
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
        return decode(self.residues[0])

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
            deletions=self.deletions[index],
            trailing=self.trailing[index],
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
    note = f"kept for the run: the query and the next {max_seqs - 1} rows in file order, repeated rows included"
    return replace(kept, account=replace(kept.account, notes=(*kept.account.notes, note)))
