"""What is said of the rows of a file besides their letters: the account, its notes, the annotation."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
from jaxtyping import Bool, UInt8

from evoattn.io import columns as layout
from evoattn.io.msa import Annotation, MSAAccount, SparseLetters
from evoattn.io.residues import GAP
from evoattn.io.rows import Rows

_RANGE: Final = re.compile(r"/(\d{1,9})-(\d{1,9})$")


def account_of(rows: Rows, quirks: list[str], notes: Counter[str], mapped: Mapping[str, int] | None = None) -> MSAAccount:
    dropped = {
        "annotation of HH-suite (ss_pred, ss_conf, ...)": rows.hhsuite,
        f"after the first {rows.max_rows} (max_rows)": rows.seen - len(rows.names),
    }
    return MSAAccount(
        rows_in=rows.seen + rows.hhsuite,
        rows_kept=len(rows.names),
        dropped={reason: count for reason, count in dropped.items() if count},
        mapped=mapped or {},
        notes=(*quirks, *(f"{note}: {count}" for note, count in notes.items() if count)),
    )


def note_query(rows: Rows, kind: str, q: int, own: layout.Columns, kept: Bool[np.ndarray, " w"], anchor: str, notes: Counter[str]) -> None:
    n_lower = int(np.isin(own.characters, np.frombuffer(layout.LOWER_CASE, np.uint8)).sum())
    notes[f"lower-case letters of the query (read as residues, case means nothing in {kind})"] = n_lower
    of = "where the query has a gap" if anchor == "query" else "that the file marks as insertions"
    notes[f"columns {of} (residues there are insertions)"] = int((~kept).sum())
    if q:
        notes["rows before the query (put after it)"] = q


def note_rows(rows: Rows, residues: UInt8[np.ndarray, "s n"], insertions: SparseLetters, notes: Counter[str]) -> None:
    n_seq = len(residues)
    notes["rows that repeat an earlier row, insertions aside (kept)"] = n_seq - len(
        np.unique(np.fromiter((hash(row.tobytes()) for row in residues), np.int64, n_seq))
    )
    n_empty = rows.names.count("")
    notes["rows without a name (kept)"] = n_empty
    notes["rows that repeat an earlier name (kept)"] = n_seq - len(set(rows.names)) - max(0, n_empty - 1)
    ranges = {i: found for i, name in enumerate(rows.names) if "/" in name and (found := _RANGE.search(name))}
    inserted = np.diff(insertions.offsets)
    wrong = 0
    for i, found in ranges.items():
        claimed = abs(int(found[2]) - int(found[1])) + 1
        wrong += claimed != int((residues[i] != GAP).sum()) + inserted[i]
    notes["rows whose name ends in a range, /start-end, of another length (kept)"] = wrong


def letter_counts(letters: SparseLetters) -> dict[str, int]:
    found, counts = np.unique(letters.letters, return_counts=True)
    return {chr(letter): int(count) for letter, count in zip(found, counts, strict=True)}


def annotation_of(rows: Rows, kept: Bool[np.ndarray, " w"], notes: Counter[str]) -> Annotation:
    def in_columns(text: bytes) -> str | None:
        if len(text) != len(kept):
            notes["lines of annotation that are not as long as the rows (left out)"] += 1
            return None
        return np.frombuffer(text, np.uint8)[kept].tobytes().decode("latin-1")

    gc = {tag: in_columns(text) for tag, text in rows.gc.items()}
    gr = {tag: {row: in_columns(text) for row, text in of.items()} for tag, of in rows.gr.items()}
    return Annotation(
        gf={tag: tuple(texts) for tag, texts in rows.gf.items()},
        gc={tag: text for tag, text in gc.items() if text is not None},
        gs={tag: {row: tuple(texts) for row, texts in marks.items()} for tag, marks in rows.gs.items()},
        gr={tag: {row: text for row, text in of.items() if text is not None} for tag, of in gr.items()},
    )
