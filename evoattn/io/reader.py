"""Reading an alignment file: records of any format, anchored to the residues of the query."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Bool, Int32, UInt8

from evoattn.errors import ConfigError, MSAError
from evoattn.io.formats import RECORDS, Record, chains, load, sniff
from evoattn.io.msa import MSA, MSAAccount, SparseLetters
from evoattn.io.residues import CODE_OF_BYTE, GAP, READ_AS, refuse_invalid

_LOWER: Final = b"abcdefghijklmnopqrstuvwxyz"
# Secondary structure and solvent accessibility, which HH-suite stores as records among the sequences.
_ANNOTATION: Final = ("ss_pred", "ss_conf", "ss_dssp", "sa_dssp", "sa_pred", "aa_pred", "aa_dssp")


def read_msa(path: str | PathLike[str], *, max_rows: int | None = None) -> MSA:
    """Read a multiple sequence alignment, or one sequence, into the columns of its query, the first row.

    Formats: a3m, aligned FASTA (a2m too), Stockholm, Clustal and its dialects, and FASTA with one sequence; each also
    compressed with gzip. They are told apart by content alone. Stockholm and Clustal have their own first lines. Of the
    FASTA family,

    - one record is a sequence; gaps in it are dropped, and so is a ``*`` at its end, the stop codon;
    - records of equal length are aligned FASTA;
    - all others are a3m: lower-case letters are insertions, ``.`` means nothing, and everything else is a column.

    In the formats but a3m, letter case means nothing, and ``.`` and ``-`` are gaps. In every format the columns of the
    result are those where the query has a residue. What another row has elsewhere is an insertion: counted, in
    ``deletions`` to the left of the next column or in ``trailing`` after the last, and its letters are dropped. So one
    alignment gives equal arrays from any format.

    No row is lost silently: rows that repeat others are kept, and ``account`` tells what was dropped, mapped or
    noteworthy. Letters are read by the table of :mod:`evoattn.io.residues`.

    Args:
        path: the file.
        max_rows: read the query and the next rows up to so many; None reads all.

    Raises:
        MSAError: the file cannot be read, is empty, has rows of unequal numbers of columns, several alignments, chains
            joined by ':', a character that is no residue, a lower-case query in a3m, or nucleotides. It names the file
            and, where there is one, the row, what was found and what was expected.
        ConfigError: ``max_rows`` is below 1.
    """
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"max_rows is {max_rows}; at least 1 row, the query, is read.")
    path = Path(path)
    try:
        return _read(path, max_rows)
    except MSAError as error:
        raise MSAError(f"{path}: {error}") from error.__cause__


def _read(path: Path, max_rows: int | None) -> MSA:
    data = load(path)
    kind = sniff(data)
    found = list(RECORDS[kind](data))
    records = [record for record in found if not record.name.startswith(_ANNOTATION)]
    if not records:
        raise MSAError(f"no sequence was found in the file, which starts like {kind}.")
    dropped = {"annotation of HH-suite (ss_pred, ss_conf, ...)": len(found) - len(records)}
    # The format is that of the whole file, so that max_rows cannot change how a row is read.
    kind = _fasta_dialect(records, path) if kind == "fasta" else kind
    dropped[f"after the first {max_rows} (max_rows)"] = len(records) - len(records[:max_rows])
    records, notes = _without_stop(records[:max_rows], kind)
    _refuse_invalid_rows(records)
    if not records[0].text.translate(None, b"-."):
        raise MSAError(f"the query, {_row(1, records[0])}, has no residue. Put the sequence that the columns belong to first.")
    columns, _, _ = _a3m_columns(records) if kind == "a3m" else _aligned_columns(records)

    is_match = CODE_OF_BYTE[columns[0]] != GAP
    _refuse_nucleotides(columns[0][is_match].tobytes())
    notes += _query_notes(records[0], kind, n_gaps=int((~is_match).sum()))
    insertions = SparseLetters.of_rows(_inserted_letters(record.text, kind, is_match) for record in records)
    columns = columns[:, is_match]
    residues = CODE_OF_BYTE[columns]
    if repeats := len(residues) - len({row.tobytes() for row in residues}):
        notes.append(f"rows that repeat an earlier row, insertions aside (kept): {repeats}")
    chain_lengths, chain_copies = chains(data)
    account = MSAAccount(
        rows_in=len(found),
        rows_kept=len(records),
        dropped={reason: count for reason, count in dropped.items() if count},
        mapped=_mapped(columns),
        notes=tuple(notes),
    )
    return MSA(
        names=tuple(record.name for record in records),
        descriptions=tuple(record.description for record in records),
        residues=residues,
        insertions=insertions,
        account=account,
        format=kind,
        source=str(path),
        chain_lengths=chain_lengths,
        chain_copies=chain_copies,
    )


def _fasta_dialect(records: Sequence[Record], path: Path) -> str:
    if len(records) == 1:
        return "fasta"
    if len({len(record.text) for record in records}) > 1:
        return "a3m"
    # Equal lengths fit a3m only if there is no insertion, and then both readings agree: the suffix picks the word.
    plain = all(_without_insertions(record.text) == record.text for record in records)
    return "a3m" if plain and ".a3m" in path.suffixes else "aligned fasta"


def _without_insertions(row: bytes) -> bytes:
    """The match columns of an a3m row."""
    return row.translate(None, _LOWER + b".")


def _without_stop(records: list[Record], kind: str) -> tuple[list[Record], list[str]]:
    """Drop the stop codon, a ``*`` at the end of a single sequence: in an alignment it would be a column."""
    if kind != "fasta" or not records[0].text.endswith(b"*"):
        return records, []
    (record,) = records
    return [record._replace(text=record.text[:-1])], ["a '*' (stop codon) at the end of the sequence (dropped): 1"]


def _refuse_invalid_rows(records: Sequence[Record]) -> None:
    for number, record in enumerate(records, 1):
        try:
            refuse_invalid(record.text)
        except MSAError as error:
            raise MSAError(f"{_row(number, record)}: {error}") from None


def _refuse_nucleotides(query: bytes) -> None:
    """Refuse DNA and RNA, which the protein table would read as Ala, Cys, Gly and Thr without a murmur."""
    letters = set(query.upper())
    # Ten residues with four or more kinds, all of these: not one natural peptide in a hundred thousand.
    if len(query) >= 10 and len(letters) >= 4 and letters <= set(b"ACGTUN"):
        raise MSAError(
            f"the query is a nucleotide sequence ({query[:20].decode()}...). Only proteins are read: translate it, or give the protein."
        )


def _a3m_columns(
    records: Sequence[Record],
) -> tuple[UInt8[np.ndarray, "s columns"], Int32[np.ndarray, "s columns"], Int32[np.ndarray, " s"]]:
    """Return the bytes of the columns, the insertions left of each, and those after the last."""
    rows = [record.text.translate(None, b".") for record in records]
    matches = [_without_insertions(row) for row in rows]
    if matches[0] != rows[0]:
        position, letter = next((i, chr(byte)) for i, byte in enumerate(rows[0], 1) if byte in _LOWER)
        raise MSAError(
            f"the query, {_row(1, records[0])}, has a lower-case letter, {letter!r} at position {position}. The rows "
            "differ in length, so the file is read as a3m, where lower case is an insertion relative to the query, "
            "which has none. Write the query in upper case, or, if this is aligned FASTA, give all rows the same "
            "length."
        )
    _refuse_ragged(records, [len(match) for match in matches])
    columns = _stacked(matches)
    inserted = np.zeros(columns.shape, dtype=np.int32)
    trailing = np.zeros(len(rows), dtype=np.int32)
    is_lower = np.isin(np.arange(256, dtype=np.uint8), np.frombuffer(_LOWER, dtype=np.uint8))
    for i, row in enumerate(rows):
        if len(row) > columns.shape[1]:
            positions = np.flatnonzero(~is_lower[np.frombuffer(row, dtype=np.uint8)])
            inserted[i] = np.diff(positions, prepend=-1) - 1
            trailing[i] = len(row) - 1 - positions[-1]
    return columns, inserted, trailing


def _aligned_columns(
    records: Sequence[Record],
) -> tuple[UInt8[np.ndarray, "s columns"], Int32[np.ndarray, "s columns"], Int32[np.ndarray, " s"]]:
    """Return the bytes of the columns; between them nothing is inserted."""
    _refuse_ragged(records, [len(record.text) for record in records])
    columns = _stacked([record.text for record in records])
    # One zero stands for all: nobody writes into it.
    return columns, np.broadcast_to(np.int32(0), columns.shape), np.zeros(len(records), dtype=np.int32)


def _stacked(rows: Sequence[bytes]) -> UInt8[np.ndarray, "s columns"]:
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), len(rows[0]))


def _refuse_ragged(records: Sequence[Record], widths: Sequence[int]) -> None:
    wrong = [i for i, width in enumerate(widths) if width != widths[0]]
    if not wrong:
        return
    first = wrong[0]
    message = (
        f"{_row(first + 1, records[first])} has {widths[first]} columns, the query, {_row(1, records[0])}, has "
        f"{widths[0]}; {len(wrong)} of {len(records)} rows differ from it. Lower-case letters and '.' are no columns "
        "in an a3m file; in other formats every character is one. Correct or remove these rows."
    )
    if not any(record.text.translate(None, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ*") for record in records):
        message += " No row has a gap or an insertion: if they are not aligned yet, align them first, or give only one."
    raise MSAError(message)


def _inserted_letters(text: bytes, kind: str, is_match: Bool[np.ndarray, " columns"]) -> list[tuple[int, str]]:
    """The letters of a row that stand in no column of the result, each with the column it is left of."""
    found, column, kept = [], 0, 0
    for letter in text.decode():
        if kind == "a3m" and letter == ".":
            continue
        if kind == "a3m" and letter.islower():
            found.append((kept, letter.upper()))
            continue
        if is_match[column]:
            kept += 1
        elif letter not in "-.":
            found.append((kept, letter.upper()))
        column += 1
    return found


def _mapped(columns: UInt8[np.ndarray, "s n"]) -> dict[str, int]:
    text = columns.tobytes().upper()
    return {letter: count for letter in READ_AS if (count := text.count(letter.encode()))}


def _query_notes(query: Record, kind: str, n_gaps: int) -> list[str]:
    notes = []
    if n_lower := len(query.text) - len(query.text.translate(None, _LOWER)):
        notes.append(f"lower-case letters of the query (read as residues, case means nothing in {kind}): {n_lower}")
    if n_gaps:
        notes.append(f"columns where the query has a gap (dropped, residues there count as insertions): {n_gaps}")
    return notes


def _row(number: int, record: Record) -> str:
    name = record.name if len(record.name) <= 60 else record.name[:57] + "..."
    return f"row {number} ({name!r})"
