"""From the rows of a file to the alignment: chains, columns, insertions, codes, and the errors about single rows."""

import difflib
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

import numpy as np
from jaxtyping import Bool, Int64

from evoattn.errors import MSAError
from evoattn.io import columns as layout
from evoattn.io.account import account_of, annotation_of, letter_counts, note_query, note_rows
from evoattn.io.msa import MSA, SparseLetters
from evoattn.io.residues import ALPHABETS, Alphabet, refuse_invalid
from evoattn.io.rows import Rows, refuse_row

_AT_ONCE: Final = 1 << 18  # characters whose temporary arrays (some 10 bytes each) are held together
_SAMPLE: Final = 100_000  # characters by which the alphabet is told


def alignment_of(rows: Rows, kind: str, alphabet: str, anchor: str, quirks: list[str], name: str) -> MSA:
    """The alignment of the kept rows of a file, which is of format ``kind``; the text of ``rows`` is used up."""
    q = _query_row(rows)
    notes = Counter(rows.quirks)
    _drop_stop(rows, kind, notes)
    case_matters = kind == "a3m" or (kind == "a2m" and (anchor == "rf" or not rows.equal_lengths))
    kinds = layout.UPPER_CASE if case_matters else layout.EVERY_CHARACTER
    breaks = _chain_breaks(rows, kinds, q)
    text, lengths = _view(rows)
    width = int(layout.n_columns(*_row(text, lengths, q), kinds)[0])
    own = layout.split(*_row(text, lengths, q), kinds, width)
    if own is None:
        raise _fault(rows, kinds, q, width)
    kept = _kept_columns(rows, own, anchor, case_matters, q)
    table = ALPHABETS[alphabet_of(text) if alphabet == "auto" else alphabet]
    if alphabet == "auto" and table.name != "protein":
        quirks.append(
            f"read as {table.name.upper()}, since nearly all letters are A, C, G, T or U "
            "(if they are not: alphabet='protein', --alphabet protein)"
        )
    note_query(rows, kind, q, own, kept, anchor, notes)
    del own, text

    cells, insertions, unusual = _encode(rows, kinds, kept, table, q, notes)
    del rows.text[cells:]
    residues = np.frombuffer(rows.text, dtype=np.uint8).reshape(len(lengths), -1)
    note_rows(rows, residues, insertions, notes)
    annotation = annotation_of(rows, kept, notes)
    chain_lengths, chain_copies = rows.chain_lengths, rows.chain_copies
    if breaks:
        chain_lengths = tuple(int(part.sum()) for part in np.split(kept, breaks))
        chain_copies = (1,) * len(chain_lengths)
        if 0 in chain_lengths:
            raise refuse_row(
                rows,
                q,
                f"a chain of the complex has no column: its chains, joined by ':', have {chain_lengths}. Give a residue, or remove it.",
                found=chain_lengths,
            )
    msa = MSA(
        names=tuple(rows.names),
        descriptions=tuple(rows.descriptions),
        residues=residues,
        insertions=insertions,
        account=account_of(rows, quirks, notes, letter_counts(unusual)),
        format=kind,
        source=name,
        alphabet=table.name,
        chain_lengths=chain_lengths,
        chain_copies=chain_copies,
        unusual=unusual if len(unusual) else None,
        annotation=annotation,
        tabbed=np.array(rows.tabbed) if any(rows.tabbed) else None,
    )
    return msa if q == 0 else msa.take([q, *(i for i in range(msa.n_seq) if i != q)])


def _view(rows: Rows) -> tuple[layout.Text, Int64[np.ndarray, " s"]]:
    return np.frombuffer(rows.text, dtype=np.uint8), np.array(rows.lengths, dtype=np.int64)


def _row(text: layout.Text, lengths: Int64[np.ndarray, " s"], i: int) -> tuple[layout.Text, Int64[np.ndarray, " 1"]]:
    start = int(lengths[:i].sum())
    return text[start : start + lengths[i]], lengths[i : i + 1]


def _slices(lengths: Int64[np.ndarray, " s"]) -> Iterator[tuple[slice, slice]]:
    """Rows that are handled together, and where their text is."""
    ends = np.cumsum(lengths)
    row = start = 0
    while row < len(lengths):
        stop = max(row + 1, int(np.searchsorted(ends, start + _AT_ONCE, side="right")))
        yield slice(row, stop), slice(start, int(ends[stop - 1]))
        row, start = stop, int(ends[stop - 1])


def _query_row(rows: Rows) -> int:
    if rows.query is None:
        return 0
    if rows.query_row is None:
        close = difflib.get_close_matches(rows.query, rows.names[:2000], n=3)
        hint = f" Similar names: {', '.join(map(repr, close))}." if close else f" The first row is {rows.names[0]!r}."
        raise MSAError(f"no row has the name {rows.query!r}, the query that was asked for.{hint}", name=rows.query)
    return rows.query_row


def _drop_stop(rows: Rows, kind: str, notes: Counter[str]) -> None:
    """Drop the stop codon, a ``*`` at the end of a single sequence: in an alignment it would be a column."""
    if kind == "fasta" and rows.seen == 1 and rows.text.endswith(b"*"):
        del rows.text[-1:]
        rows.lengths[0] -= 1
        notes["a '*' (stop codon) at the end of the sequence (dropped)"] = 1


def fasta_dialect(rows: Rows, kind: str, name: str) -> str:
    """The member of the FASTA family, told by all the rows of the file, so that max_rows cannot change how they are read."""
    if kind != "fasta" or rows.seen == 1:
        return kind
    if not rows.equal_lengths:
        return "a3m"
    text, lengths = _view(rows)
    if len(set(rows.lengths)) > 1 or not rows.lengths[0]:
        return kind  # chains are marked in some rows only: sorted out, or refused, later
    capital = np.zeros(rows.lengths[0], dtype=bool)
    small = np.zeros(rows.lengths[0], dtype=bool)
    for some, where in _slices(lengths):
        has_capital, has_small = layout.insert_columns(text[where].reshape(some.stop - some.start, -1))
        capital |= has_capital
        small |= has_small
    if not small.any():
        # It is a3m without insertions as well, and both readings agree: the suffix picks the word.
        return "a3m" if ".a3m" in PurePath(name).suffixes else kind
    return kind if (capital & small).any() else "a2m"


def _chain_breaks(rows: Rows, kinds: layout.Kinds, q: int) -> list[int]:
    """Take out each ':', which joins the chains of a complex; return the columns at which chains but the first begin."""
    if b":" not in rows.text:
        return []
    texts: list[bytes] = []
    breaks: list[list[int]] = []
    start = 0
    for length in rows.lengths:
        chains = bytes(rows.text[start : start + length]).split(b":")
        start += length
        widths = [len(chain.translate(None, kinds.no_columns)) for chain in chains]
        breaks.append(np.cumsum(widths[:-1]).tolist())
        texts.append(b"".join(chains))
        if 0 in widths and len(chains) > 1:
            raise refuse_row(
                rows, len(texts) - 1, "a chain between two ':' is empty. A ':' stands between two chains; remove any other.", found=widths
            )
    for i, own in enumerate(breaks):
        if own and own != breaks[q]:
            raise refuse_row(
                rows,
                i,
                f"its ':' are after the columns {own}, those of the query, row {q + 1} ({rows.names[q]!r}), after {breaks[q]}. "
                "A ':' joins the chains of a complex and stands between the same columns in every row.",
                found=own,
                expected=breaks[q],
            )
    rows.text = bytearray(b"".join(texts))
    rows.lengths = [len(text) for text in texts]
    rows.chain_lengths = ()
    return breaks[q]


def _kept_columns(rows: Rows, own: layout.Columns, anchor: str, case_matters: bool, q: int) -> Bool[np.ndarray, " w"]:
    characters = own.characters[0]
    if not len(characters):
        raise refuse_row(rows, q, "the query has no residue and no column. Put the sequence that the columns belong to first.")
    if anchor == "none" or (anchor == "rf" and case_matters):
        return np.ones(len(characters), dtype=bool)
    if anchor == "query":
        if case_matters and len(own.letter):
            raise _lower_case_query(rows, q)
        kept = layout.is_residue(characters)
        if not kept.any():
            raise refuse_row(
                rows, q, "the query has no residue. Put the sequence that the columns belong to first, or name it with query= (--query)."
            )
        return kept
    reference = rows.gc.get("RF")
    if reference is None:
        raise MSAError(
            "anchor is 'rf', but the file does not mark its columns: it has no '#=GC RF' line (Stockholm) or '#=RF' line "
            "(SELEX), and is neither a3m nor a2m. Use anchor='query', or 'none' (--anchor) to keep every column."
        )
    if len(reference) != len(characters):
        raise MSAError(
            f"the reference line (RF) has {len(reference)} characters, the rows have {len(characters)} columns. Correct it, "
            "or use another anchor.",
            found=len(reference),
            expected=len(characters),
        )
    kept = ~np.isin(np.frombuffer(reference, dtype=np.uint8), np.frombuffer(b".-_~ ", dtype=np.uint8))
    if not kept.any():
        raise MSAError("the reference line (RF) marks no column. Use another anchor.")
    return kept


def alphabet_of(text: layout.Text) -> str:
    """The alphabet that these letters are told to be of, by the rule of :func:`evoattn.io.read_msa`."""
    counts = np.bincount(layout.upper(text[:_SAMPLE]), minlength=256)
    of = {letter: int(counts[ord(letter)]) for letter in "ABCDEFGHIJKLMOPQRSTUVWYZ"}  # all but N and X
    n_letters, n_nucleotides = sum(of.values()), sum(of[letter] for letter in "ACGTU")
    all_kinds = of["A"] and of["C"] and of["G"] and (of["T"] or of["U"])
    if n_letters < 10 or n_nucleotides < 0.95 * n_letters or not all_kinds:
        return "protein"
    return "rna" if of["U"] > of["T"] else "dna"


class _Growing:
    """Sparse letters that are still being collected, row after row."""

    def __init__(self, n_seq: int) -> None:
        self._counts = np.zeros(n_seq + 1, dtype=np.int64)
        self._columns, self._letters = bytearray(), bytearray()

    def add(self, first_row: int, n_rows: int, row: np.ndarray, column: np.ndarray, letter: np.ndarray) -> None:
        if len(row):
            self._counts[first_row + 1 : first_row + 1 + n_rows] = np.bincount(row, minlength=n_rows)
            self._columns += column.astype(np.int32).tobytes()
            self._letters += layout.upper(letter).tobytes()

    def done(self) -> SparseLetters:
        columns, letters = np.frombuffer(self._columns, np.int32), np.frombuffer(self._letters, np.uint8)
        return SparseLetters(np.cumsum(self._counts), columns, letters)


def _encode(
    rows: Rows, kinds: layout.Kinds, kept: Bool[np.ndarray, " w"], alphabet: Alphabet, q: int, notes: Counter[str]
) -> tuple[int, SparseLetters, SparseLetters]:
    """Write the codes of the kept columns over the text of the rows, which is never shorter; return how many there are.

    A copy would double the memory. Also returns the insertions, and the letters that are read as another.
    """
    text, lengths = _view(rows)
    is_unusual, codes_of_bytes = layout.unusual_letters(alphabet), alphabet.code_of_byte.tobytes()
    insertions, unusual = _Growing(len(lengths)), _Growing(len(lengths))
    all_kept = bool(kept.all())
    cells = 0
    for some, where in _slices(lengths):
        part = layout.split(text[where], lengths[some], kinds, len(kept))
        if part is None:
            raise _fault(rows, kinds, q, len(kept), some.start, where.start)
        if not all_kept:
            part = layout.keep(part, kept)
        n_rows = some.stop - some.start
        stars = part.letter == ord("*")
        part.letter[stars] = ord("X")  # what stands between columns is lower case in a3m, and '*' has none
        notes["'*' among the insertions (read as X)"] += int(stars.sum())
        insertions.add(some.start, n_rows, part.row, part.column, part.letter)
        characters = part.characters.reshape(-1)
        odd = np.flatnonzero(layout.look_up(is_unusual, characters))
        unusual.add(some.start, n_rows, *np.divmod(odd, part.characters.shape[1]), characters[odd])
        codes = layout.look_up(codes_of_bytes, characters)
        text[cells : cells + codes.size] = codes
        cells += codes.size
    return cells, insertions.done(), unusual.done()


def _fault(rows: Rows, kinds: layout.Kinds, q: int, width: int, first: int = 0, start: int = 0) -> MSAError:
    """The error about the first row with a character that is refused, or else with another number of columns.

    The rows before ``first``, whose text ends at ``start``, are known to be right, and may have been written over.
    """
    text = bytes(rows.text[start:])
    ends = np.cumsum(rows.lengths[first:])
    lengths = np.array(rows.lengths[first:], dtype=np.int64)
    if layout.refused(np.frombuffer(text, np.uint8), kinds):
        for i, (length, end) in enumerate(zip(lengths.tolist(), ends.tolist(), strict=True), first):
            try:
                refuse_invalid(text[end - length : end])
            except MSAError as error:
                return refuse_row(rows, i, str(error), found=error.found)
    widths = layout.n_columns(np.frombuffer(text, np.uint8), lengths, kinds)
    wrong = np.flatnonzero(widths != width)
    i = first + int(wrong[0])
    message = (
        f"has {widths[wrong[0]]} columns, expected {width}, those of the query, row {q + 1} ({rows.names[q]!r}); {len(wrong)} of "
        f"{len(rows.lengths)} rows differ from it. "
    )
    if text.translate(None, b"ABCDEFGHIJKLMNOPQRSTUVWXYZ*"):
        message += (
            "Lower-case letters and '.' are no columns in an a3m file; in other formats every character is one. Correct or "
            "remove these rows."
        )
    else:
        message += (
            "No row has a gap or an insertion, so the sequences are not aligned: align them first (evoattn msa align), give only "
            "one, or read them with read_sequences."
        )
    return refuse_row(rows, i, message, found=int(widths[wrong[0]]), expected=width)


def _lower_case_query(rows: Rows, q: int) -> MSAError:
    start = sum(rows.lengths[:q])
    position, letter = next((i, chr(byte)) for i, byte in enumerate(rows.text[start:], 1) if byte in layout.LOWER_CASE)
    return refuse_row(
        rows,
        q,
        f"the query has a lower-case letter, {letter!r} at position {position}. The file is read as a3m (its rows differ in "
        "length), where lower case is an insertion relative to the query, which has none. Write the query in upper case; "
        "or, if the columns are not the query's, read with anchor='rf' (--anchor rf); or, if this is aligned FASTA, give all rows the "
        "same length.",
        found=letter,
    )
