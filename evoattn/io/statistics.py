"""How deep and how diverse an alignment is: row weights, Neff, coverage, identity to the query, and a verdict in words."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from evoattn.errors import ConfigError
from evoattn.io.identity import Columns, PackedRows
from evoattn.io.msa import MSA
from evoattn.io.residues import GAP

CONTACTS_MINIMUM = 1.0
"""Neff/N_res below which an alignment is called too shallow for contacts: less than one effective row per residue."""

CONTACTS_GOOD = 5.0
"""Neff/N_res from which contacts by coevolution are called reliable (Kamisetty, Ovchinnikov and Baker, PNAS 2013: 5 N_res rows)."""

ALPHAFOLD2_DEPTH = 30.0
"""Median effective depth below which AlphaFold 2 loses accuracy (Jumper et al., Nature 2021, figure 5a: about 30 sequences)."""


def row_weights(msa: MSA, *, threshold: float = 0.8, columns: Columns = "shared") -> Float64[np.ndarray, " s"]:
    """Return 1 / (number of rows, itself included, that have an identity of `threshold` or more to a row), for each row.

    Args:
        threshold: an identity, above 0 and at most 1. 0.8 is customary; 0.62 is also found.
        columns: what the identity of two rows is taken over. "shared": the columns in which neither has a gap
            (AlphaFold 2's Neff: Jumper et al. 2021, methods); rows without such a column are no neighbours. "all": all
            columns, where two gaps count as equal (direct coupling analysis: Morcos et al. 2011, Ekeberg et al. 2013).
            Shared columns find more neighbours among fragments, and so fewer effective rows.

    Time grows with N_seq squared (10,000 rows of 300 columns: seconds), memory with N_seq only.

    Raises:
        ConfigError: a threshold or `columns` outside what is allowed.
    """
    if not 0 < threshold <= 1:
        raise ConfigError(f"threshold is {threshold}; an identity is above 0 and at most 1, such as 0.8 for 80 %.")
    rows = PackedRows.of(msa.residues, GAP, columns)
    neighbours = np.ones(msa.n_seq, dtype=np.int64)
    for row in range(msa.n_seq - 1):
        near = rows.identity(row, row + 1) >= threshold
        neighbours[row] += np.count_nonzero(near)
        neighbours[row + 1 :] += near
    return 1.0 / neighbours


def neff(msa: MSA, *, threshold: float = 0.8, columns: Columns = "shared") -> float:
    """The effective number of rows: the sum of :func:`row_weights`, between 1 and N_seq."""
    return float(row_weights(msa, threshold=threshold, columns=columns).sum())


def query_identity(msa: MSA, *, columns: Columns = "shared") -> Float64[np.ndarray, " s"]:
    """The identity of each row to the query, row 0; over "shared" columns (residues of the row aligned to the query), or "all"."""
    return PackedRows.of(msa.residues, GAP, columns).identity(0)


def row_coverage(msa: MSA) -> Float64[np.ndarray, " s"]:
    """For each row, the columns in which it has a residue, over N_res. ``X`` is a residue."""
    return (msa.residues != GAP).mean(axis=1)


def column_coverage(msa: MSA) -> Float64[np.ndarray, " n"]:
    """For each column, the rows that have a residue in it, over N_seq."""
    return (msa.residues != GAP).mean(axis=0)


@dataclass(frozen=True, eq=False)
class MSAStatistics:
    """What :func:`msa_statistics` found; fractions are between 0 and 1."""

    n_seq: int
    n_res: int
    threshold: float
    columns: Columns
    neff: float
    """Effective number of rows under that threshold over those columns."""
    depth: Float64[np.ndarray, " n"]
    """Effective number of rows with a residue, of each column: the sum of their weights."""
    coverage: Float64[np.ndarray, " n"]
    """Fraction of the rows with a residue, of each column."""
    row_coverage: Float64[np.ndarray, " s"]
    """Fraction of the columns with a residue, of each row."""
    query_identity: Float64[np.ndarray, " s"]
    """Identity of each row to the query, over the residues of the row."""

    @property
    def neff_per_residue(self) -> float:
        return self.neff / self.n_res

    @property
    def verdict(self) -> str:
        """What the alignment is deep enough for, with the thresholds."""
        if self.n_seq == 1:
            return "a single sequence: there is nothing to infer contacts from"
        return f"{self._for_contacts()}; {self._for_alphafold2()}"

    def _for_contacts(self) -> str:
        found = f"Neff/N_res = {_figure(self.neff_per_residue, 2)}"
        if self.neff_per_residue < CONTACTS_MINIMUM:
            return f"too shallow for contacts by coevolution ({found}, below {CONTACTS_MINIMUM:g})"
        if self.neff_per_residue < CONTACTS_GOOD:
            return f"deep enough for some contacts by coevolution ({found}, between {CONTACTS_MINIMUM:g} and {CONTACTS_GOOD:g})"
        return f"deep enough for contacts by coevolution ({found}, at least {CONTACTS_GOOD:g})"

    def _for_alphafold2(self) -> str:
        median = float(np.median(self.depth))
        word = "shallow" if median < ALPHAFOLD2_DEPTH else "deep enough"
        comparison = "below" if median < ALPHAFOLD2_DEPTH else "at least"
        return f"{word} for AlphaFold 2 (median depth {_figure(median, 3)}, {comparison} {ALPHAFOLD2_DEPTH:g})"


def _figure(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if value < 99 else f"{value:,.0f}"


def msa_statistics(msa: MSA, *, threshold: float = 0.8, columns: Columns = "shared") -> MSAStatistics:
    """Return depth, diversity and coverage of an alignment. Arguments and errors are those of :func:`row_weights`."""
    weights = row_weights(msa, threshold=threshold, columns=columns)
    return MSAStatistics(
        n_seq=msa.n_seq,
        n_res=msa.n_res,
        threshold=threshold,
        columns=columns,
        neff=float(weights.sum()),
        # column by column: a product would need the whole alignment in float64
        depth=np.array([weights[column != GAP].sum() for column in msa.residues.T]),
        coverage=column_coverage(msa),
        row_coverage=row_coverage(msa),
        query_identity=query_identity(msa),
    )
