"""The record of a contact map in words."""

from typing import Any, Final

from evoattn.contacts.fit import FitConfig
from evoattn.runs.record import counted
from evoattn.runs.summary import account_lines, section
from evoattn.train.contacts import RANGES, TOP

WHAT_COUNTS: Final = "contacts: C-beta (C-alpha of glycine) within 8 Å; pairs with a residue that is not resolved are left out"


def summary(record: dict[str, Any]) -> str:
    """What a person wants to know, from the record of :func:`evoattn.contacts.contacts`."""
    source, structure = record["input"], record["structure"]
    size = f"{counted(source['rows'], 'row')} x {counted(source['columns'], 'column')}"
    first = f"{source['files'][0]['path']} ({source['format']}): {size}, query {source['query']['name']!r}, Neff {source['neff']:,.1f}"
    sections = [("Input", [first, *account_lines(source["account"])])]
    if structure is not None:
        sections.append(("Structure", [structure["files"][0]["path"], *structure["account_in_words"]]))
    sections.append(("Method", [_method(record)]))
    sections.append(("Time", [_time(record["seconds"])]))
    sections.append(("Memory", [f"{size / 2**30:.2f} GiB at most" for size in record["peak_memory_bytes"].values()] or ["not known"]))
    sections.append(("Written", [record["output"]["folder"], ", ".join(record["output"]["files"])]))
    if record["warnings"]:
        sections.append(("Notes", record["warnings"]))
    if record["precision"]:
        sections.append(("Precision", _precision(record["precision"])))
    return "\n".join(section(title, lines) for title, lines in sections)


def _method(record: dict[str, Any]) -> str:
    if record["settings"]["method"] == "dca":
        return "mean-field DCA: pseudocount 0.5, zero-sum gauge, Frobenius norm, APC"
    fit, losses = FitConfig(**record["settings"]["fit"]), record["losses"]
    how = f"{record['execution']['products']} products, {counted(record['execution']['threads'], 'thread')}"
    return (
        f"factored attention: {counted(fit.heads, 'head')} of {fit.d_head}, {fit.steps} steps of {counted(fit.batch, 'row')}, "
        f"seed {fit.seed}, {how}; -log p of a residue from {losses[0]:.2f} to {losses[-1]:.2f} nats"
    )


def _time(seconds: dict[str, float]) -> str:
    return f"{sum(seconds.values()):.1f} s: " + ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())


def _precision(rows: list[dict[str, Any]]) -> list[str]:
    """A table: ranges down, L and its parts across."""
    lines = [f"{'|i - j|':<18}" + "".join(f"{'top ' + top:>18}" for top in TOP)]
    for name, (least, most) in RANGES.items():
        label = f"{name} ({least}-{most})" if most else f"{name} (>= {least})"
        cells = {row["top"]: row for row in rows if row["range"] == name}
        lines.append(f"{label:<18}" + "".join(f"{_cell(cells[top]):>18}" for top in TOP))
    return [*lines, WHAT_COUNTS]


def _cell(row: dict[str, Any]) -> str:
    return "no pairs" if row["value"] is None else f"{row['value']:.2f} ({row['correct']}/{row['pairs']})"
