"""What is to be known of an alignment before it is used: as plain values, and as a table in words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from evoattn.io import MSA, MSAStatistics, msa_statistics, species_of
from evoattn.io.filters import first_occurrences
from evoattn.io.identity import Columns
from evoattn.runs.record import counted
from evoattn.runs.summary import account_lines, section

DEFINITIONS: Final = {
    "shared": "identity over the columns in which neither row has a gap, as AlphaFold 2 counts",
    "all": "identity over all columns, two gaps being equal, as direct coupling analysis counts",
}
BINS: Final = 5
"""Of fractions, from 0 to 1."""
LOW: Final = 0.5
"""Columns with fewer residues than this are named."""
SPECIES_SHOWN: Final = 3


def describe(msa: MSA, *, threshold: float = 0.8, columns: Columns = "shared") -> tuple[dict[str, Any], MSAStatistics]:
    """Everything that ``evoattn msa info`` shows, as plain values, and the statistics behind it.

    `threshold` and `columns` are those of Neff, see :func:`evoattn.io.row_weights`, which also says what is refused.
    """
    found = msa_statistics(msa, threshold=threshold, columns=columns)
    inserted = np.diff(msa.insertions.offsets)
    record = {
        "file": msa.source,
        "format": msa.format,
        "alphabet": msa.alphabet,
        "rows": msa.n_seq,
        "rows_different": int(first_occurrences(msa.residues).sum()),
        "columns": msa.n_res,
        "query": {"name": msa.names[0], "description": msa.descriptions[0], "letters": msa.query},
        "chains": [{"columns": n, "copies": copies} for n, copies in zip(msa.chain_lengths, msa.chain_copies, strict=True)],
        "neff": {
            "value": found.neff,
            "per_column": found.neff_per_residue,
            "threshold": threshold,
            "columns": columns,
            "definition": f"sum over the rows of 1 / (number of rows of {_percent(threshold)} identity or more, itself included); "
            + DEFINITIONS[columns],
        },
        "effective_depth": _spread(found.depth) | {"of_columns": found.depth.tolist()},
        "column_coverage": _spread(found.coverage) | _binned(found.coverage) | {"of_columns": found.coverage.tolist()},
        "row_coverage": _spread(found.row_coverage) | _binned(found.row_coverage),
        "query_identity": _spread(found.query_identity[1:]) | _binned(found.query_identity[1:]),
        "insertions": {
            "residues": len(msa.insertions),
            "rows": int((inserted > 0).sum()),
            "longest": int(max(msa.deletions.max(), msa.trailing.max())),
        },
        "species": _species(msa),
        "account": asdict(msa.account),
        "verdict": found.verdict if msa.alphabet == "protein" else "none: its thresholds were found on proteins",
    }
    return record, found


def table(record: dict[str, Any]) -> str:
    """The record of :func:`describe` in words."""
    account, neff = record["account"], record["neff"]
    sections = [
        ("File", [f"{record['file']} ({record['format']}, {record['alphabet']})", *account_lines(account)]),
        ("Rows", [_rows(record)]),
        ("Columns", _columns(record)),
        ("Neff", [f"{neff['value']:,.1f} effective rows, Neff/L {neff['per_column']:.2f}", neff["definition"]]),
        ("Coverage", _coverage(record)),
        ("Identity", _identity(record)),
        ("Insertions", [_insertions(record["insertions"])]),
        ("Species", [_species_in_words(record["species"], record["rows"])]),
        ("Verdict", record["verdict"].split("; ")),
    ]
    return "\n".join(section(title, lines) for title, lines in sections)


def ranges(numbers: Sequence[int]) -> str:
    """Ascending whole numbers, runs of them as "3-7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _spread(values: np.ndarray) -> dict[str, float | None]:
    if not len(values):
        return {"least": None, "median": None, "most": None}
    return {"least": float(values.min()), "median": float(np.median(values)), "most": float(values.max())}


def _binned(values: np.ndarray) -> dict[str, list[int]]:
    """How many there are from 0 to below 0.2, from 0.2 to below 0.4, ..., from 0.8 to 1."""
    return {"counts": np.histogram(values, bins=BINS, range=(0.0, 1.0))[0].tolist()}


def _species(msa: MSA) -> dict[str, Any]:
    """By taxonomy number or by UniProt's code, whichever more rows have."""
    found = [species_of(name, text) for name, text in zip(msa.names, msa.descriptions, strict=True)]
    kinds = {kind: Counter(filter(None, (getattr(species, kind) for species in found))) for kind in ("taxonomy_id", "mnemonic")}
    kind, counts = max(kinds.items(), key=lambda item: item[1].total())
    most = [list(pair) for pair in counts.most_common(SPECIES_SHOWN)]
    return {"by": kind, "different": len(counts), "rows": counts.total(), "most": most}


def _rows(record: dict[str, Any]) -> str:
    rows, different = record["rows"], record["rows_different"]
    kept = "" if rows == record["account"]["rows_in"] else f" of {record['account']['rows_in']:,} in the file"
    return f"{rows:,}{kept}" + (f", {different:,} of them different" if different < rows else "")


def _columns(record: dict[str, Any]) -> list[str]:
    query = record["query"]
    letters = query["letters"] if len(query["letters"]) <= 60 else query["letters"][:57] + "..."
    lines = [f"{record['columns']:,}, of the query {query['name']!r}", letters]
    if record["chains"]:
        lines.append("chains: " + ", ".join(f"{chain['columns']:,} columns x{chain['copies']}" for chain in record["chains"]))
    return lines


def _coverage(record: dict[str, Any]) -> list[str]:
    columns, rows = record["column_coverage"], record["row_coverage"]
    lines = [f"of a column (rows with a residue / rows): {_percentages(columns)}"]
    low = [number for number, value in enumerate(columns["of_columns"], 1) if value < LOW]
    if low:
        lines.append(f"{counted(len(low), 'column')} below {_percent(LOW)}: {_shortened(ranges(low))}")
    depth = record["effective_depth"]
    lines.append(f"effective rows with a residue: from {depth['least']:,.1f} to {depth['most']:,.1f}, median {depth['median']:,.1f}")
    return [*lines, f"of a row (columns with a residue / columns): {_percentages(rows)}", *_histogram("rows", rows["counts"])]


def _identity(record: dict[str, Any]) -> list[str]:
    found = record["query_identity"]
    if found["median"] is None:
        return ["there is no row but the query"]
    return [f"to the query (equal residues / residues of the row): {_percentages(found)}", *_histogram("rows", found["counts"])]


def _percentages(spread: dict[str, Any]) -> str:
    return f"from {_percent(spread['least'])} to {_percent(spread['most'])}, median {_percent(spread['median'])}"


def _percent(fraction: float) -> str:
    """Without decimals, but never as none or all what is not quite so."""
    rounded = round(100 * fraction)
    if 0 < fraction < 1 and rounded in (0, 100):
        return "below 1 %" if rounded == 0 else "above 99 %"
    return f"{rounded} %"


def _histogram(what: str, counts: list[int]) -> list[str]:
    """Two lines of a table: the bins, and the counts under them."""
    edges = [f"{100 * i // BINS}-{100 * (i + 1) // BINS} %" for i in range(BINS)]
    heads, numbers = ("".join(f"{cell:>10}" for cell in cells) for cells in (edges, [f"{count:,}" for count in counts]))
    return [f"{'':<6}{heads}", f"{what:<6}{numbers}"]


def _insertions(found: dict[str, int]) -> str:
    if not found["residues"]:
        return "none"
    return f"{found['residues']:,} residues between the columns, in {counted(found['rows'], 'row')}; the longest has {found['longest']:,}"


def _species_in_words(found: dict[str, Any], rows: int) -> str:
    if not found["rows"]:
        return "no header names one (OX=, TaxID=, or _SPECIES)"
    kind = "NCBI taxonomy number" if found["by"] == "taxonomy_id" else "UniProt code"
    most = ", ".join(f"{name} ({count:,})" for name, count in found["most"])
    return f"{found['different']:,} by {kind}, named in {found['rows']:,} of {rows:,} rows; most rows: {most}"


def _shortened(text: str, width: int = 70) -> str:
    return text if len(text) <= width else text[:width].rsplit(",", 1)[0] + ", ..."
