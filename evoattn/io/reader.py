"""Reading an alignment: the rows of any format, in the columns of the query or of the file."""

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Literal

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from evoattn.errors import ConfigError, MSAError
from evoattn.io import columns as layout
from evoattn.io.formats import FORMATS, PARSERS, sniff
from evoattn.io.msa import MSA, Annotation, MSAAccount, SparseLetters
from evoattn.io.residues import ALPHABETS, GAP, Alphabet, refuse_invalid
from evoattn.io.rows import Rows, refuse_row
from evoattn.io.sources import Lines, Source, opened

_AT_ONCE: Final = 1 << 18  # characters whose temporary arrays (some 10 bytes each) are held together
_SAMPLE: Final = 100_000  # characters by which the alphabet is told
_LISTED: Final = 10  # alignments of a file that an error names
_LOWER: Final = b"abcdefghijklmnopqrstuvwxyz"
_RANGE: Final = re.compile(r"/(\d{1,9})-(\d{1,9})$")


def read_msa(
    source: Source,
    format: str = "auto",
    *,
    max_rows: int | None = None,
    alphabet: Literal["auto", "protein", "rna", "dna"] = "auto",
    anchor: Literal["query", "rf", "none"] = "query",
    query: str | None = None,
    block: int | str | None = None,
) -> MSA:
    """Read a multiple sequence alignment, or one sequence; docs/alignments.md tells the rules in full.

    Formats: a3m, a2m, aligned FASTA, FASTA with one sequence, Stockholm, Clustal and its dialects, SELEX, and PSICOV's
    bare rows (``.aln``); each also compressed with gzip, bzip2, xz or zstandard. They are told apart by content alone.
    Of the FASTA family,

    - one record is a sequence; gaps in it are dropped, and so is a ``*`` at its end, the stop codon;
    - records of equal length are aligned FASTA, or dotted a2m, if every column has either capital letters and ``-``, or
      small letters and ``.``;
    - all others are a3m (a2m without dots is the same): lower-case letters are insertions, ``.`` means nothing, and
      everything else is a column.

    In the formats but a3m, letter case means nothing, and ``.`` and ``-`` are gaps. The columns of the result are those
    where the query has a residue. What another row has elsewhere is an insertion, kept in ``insertions`` and counted in
    ``deletions`` and ``trailing``. So one alignment gives equal arrays from any format.

    No row is lost silently: rows that repeat others are kept, and ``account`` tells what was dropped, mapped or
    noteworthy. Letters are read by the tables of :mod:`evoattn.io.residues`.

    Args:
        source: a path, ``"-"`` for standard input, or an open stream, binary or text.
        format: ``"auto"``, or one of ``a3m``, ``a2m``, ``fasta``, ``stockholm``, ``clustal``, ``selex``, ``psicov``.
        max_rows: keep the query and the next rows up to so many; None keeps all. The rest of the file is read, so that
            it is counted, but not kept: memory is that of the kept rows.
        alphabet: ``"auto"`` takes rows for RNA or DNA if, of the letters but N and X in the first 100,000 characters,
            there are at least 10, of all of A, C, G and T or U, and 95 % of them are such; else for protein.
        anchor: which columns the result has. ``"query"``: those where the query has a residue. ``"rf"``: those that the
            file itself marks: the reference line of Stockholm and SELEX (``#=GC RF``, ``#=RF``), the capital letters of
            a3m and a2m. ``"none"``: all columns of the file, which are the capital letters and ``-`` in a3m.
        query: the name of the query, which becomes row 0; None takes the first row.
        block: which alignment of a file that has several: its number from 1, or its name (``#=GF ID`` or ``AC``, or
            that of its first row). Blocks are those between NUL bytes, and the alignments of a Stockholm file.

    Raises:
        MSAError: the file cannot be read, is empty, is of another kind, has rows of unequal numbers of columns, several
            alignments and no ``block``, a character that is no residue, or a lower-case query in a3m. It names the file
            and, where there is one, the line and the row, what was found, what was expected and what to do.
        ConfigError: an argument is not among those above.
    """
    _refuse_options(format, max_rows, alphabet, anchor, block)
    with opened(source) as (lines, name):
        try:
            rows, kind = _rows_of_block(lines, format, max_rows, query, block)
            if format == "auto":
                kind = _dialect(rows, kind, name)
            return _alignment(rows, kind, alphabet, anchor, lines.quirks, name)
        except MSAError as error:
            error.file = name
            raise


@dataclass(frozen=True, repr=False, eq=False)
class SequenceSet:
    """Sequences that are not aligned, upper case and without gaps."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    sequences: tuple[str, ...]
    alphabet: str
    chain_lengths: tuple[tuple[int, ...], ...]
    """Of each record whose chains are joined by ':'; empty for one chain. The sequence has its chains without the ':'."""
    account: MSAAccount
    source: str = ""

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"SequenceSet({len(self)} {self.alphabet} sequences, {', '.join(filter(None, [self.source]))})"


def read_sequences(
    source: Source,
    format: str = "auto",
    *,
    max_rows: int | None = None,
    alphabet: Literal["auto", "protein", "rna", "dna"] = "auto",
    block: int | str | None = None,
) -> SequenceSet:
    """Read sequences that need not be aligned: for a search, or to be aligned.

    The file may be of any format that :func:`read_msa` takes; gaps are left out, and so is a ``*`` at the end.

    Raises MSAError and ConfigError as :func:`read_msa` does, but for rows of unequal length.
    """
    _refuse_options(format, max_rows, alphabet, "none", block)
    with opened(source) as (lines, name):
        try:
            rows, _ = _rows_of_block(lines, format, max_rows, None, block)
            return _sequences(rows, alphabet, lines.quirks, name)
        except MSAError as error:
            error.file = name
            raise


def _refuse_options(format: str, max_rows: int | None, alphabet: str, anchor: str, block: int | str | None) -> None:
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"max_rows is {max_rows}; at least 1 row, the query, is read.")
    if isinstance(block, int) and block < 1:
        raise ConfigError(f"block is {block}; the alignments of a file are counted from 1.")
    for what, value, allowed in (
        ("format", format, ("auto", *FORMATS)),
        ("alphabet", alphabet, ("auto", *ALPHABETS)),
        ("anchor", anchor, ("query", "rf", "none")),
    ):
        if value not in allowed:
            raise ConfigError(f"{what} is {value!r}; allowed are {', '.join(allowed)}.")


# --- which alignment of the file -------------------------------------------------------------------------------------


def _rows_of_block(lines: Lines, format: str, max_rows: int | None, query: str | None, block: int | str | None) -> tuple[Rows, str]:
    """Parse the alignment that is asked for. Of the others no more is kept than their names."""
    found: tuple[Rows, str] | None = None
    listed: list[str] = []
    n_blocks = 0
    while lines.next_block():
        wanted = found is None and (block is None or isinstance(block, str) or block == n_blocks + 1)
        rows = Rows(max_rows, query) if wanted else Rows(1)
        try:
            kind = _parse(lines, rows, format)
            if kind is None:  # comments only
                continue
            n_blocks += 1
            description = f"{n_blocks}: {rows.titles[0]!r} ({rows.seen} rows)"
        except MSAError as error:
            if wanted and not isinstance(block, str):
                raise
            n_blocks += 1
            description = f"{n_blocks}: unreadable ({error})"
            _skip(lines)
        else:
            if wanted and (not isinstance(block, str) or block in rows.titles):
                found = rows, kind
                if block is not None:
                    return found
        if len(listed) == _LISTED:
            listed.append("and more")
            break
        listed.append(description)
    if n_blocks > 1 and block is None:
        raise MSAError(
            f"the file holds {'more than ' if listed[-1] == 'and more' else ''}{min(n_blocks, _LISTED)} alignments. "
            f"Say which one with block=, by number or name: {'; '.join(listed)}.",
            found=n_blocks,
            expected=1,
        )
    if found is None and n_blocks:
        raise MSAError(f"there is no alignment {block!r} in the file, which holds {n_blocks}: {'; '.join(listed)}.")
    if found is None:
        raise MSAError("the file is empty, or has comment lines but no sequence. An alignment needs at least the query sequence.")
    return found


def _parse(lines: Lines, rows: Rows, format: str) -> str | None:
    kind = sniff(lines) if format == "auto" else format
    if kind is None:
        for _ in lines.block():
            pass
        return None
    PARSERS[kind](lines, rows)
    if not rows.names:
        raise MSAError(f"no sequence was found in the file, which starts like {kind}.")
    return kind


def _skip(lines: Lines) -> None:
    """Go to the end of a block that could not be parsed."""
    for _, line in lines.block():
        if line.startswith(b"//"):
            return


# --- rows to alignment -----------------------------------------------------------------------------------------------


def _alignment(rows: Rows, kind: str, alphabet: str, anchor: str, quirks: list[str], name: str) -> MSA:
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
    table = ALPHABETS[_alphabet(text) if alphabet == "auto" else alphabet]
    if alphabet == "auto" and table.name != "protein":
        quirks.append(
            f"read as {table.name.upper()}, since nearly all letters are A, C, G, T or U (say alphabet='protein' if they are not)"
        )
    _note_query(rows, kind, q, own, kept, anchor, notes)
    del own, text

    cells, insertions, unusual = _encode(rows, kinds, kept, table, q)
    del rows.text[cells:]
    residues = np.frombuffer(rows.text, dtype=np.uint8).reshape(len(lengths), -1)
    _note_rows(rows, residues, insertions, notes)
    annotation = _annotation(rows, kept, notes)
    chain_lengths, chain_copies = rows.chain_lengths, rows.chain_copies
    if breaks:
        chain_lengths = tuple(int(part.sum()) for part in np.split(kept, breaks))
        chain_copies = (1,) * len(chain_lengths)
    seen = rows.seen + rows.hhsuite
    dropped = {
        "annotation of HH-suite (ss_pred, ss_conf, ...)": rows.hhsuite,
        f"after the first {rows.max_rows} (max_rows)": rows.seen - len(lengths),
    }
    msa = MSA(
        names=tuple(rows.names),
        descriptions=tuple(rows.descriptions),
        residues=residues,
        insertions=insertions,
        account=MSAAccount(
            rows_in=seen,
            rows_kept=len(lengths),
            dropped={reason: count for reason, count in dropped.items() if count},
            mapped=_letter_counts(unusual),
            notes=(*quirks, *(f"{note}: {count}" for note, count in notes.items() if count)),
        ),
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


def _dialect(rows: Rows, kind: str, name: str) -> str:
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
                rows, q, "the query has no residue. Put the sequence that the columns belong to first, or name it with query=."
            )
        return kept
    reference = rows.gc.get("RF")
    if reference is None:
        raise MSAError(
            "anchor is 'rf', but the file does not mark its columns: it has no '#=GC RF' line (Stockholm) or '#=RF' line "
            "(SELEX), and is neither a3m nor a2m. Use anchor='query', or 'none' to keep every column."
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


def _alphabet(text: layout.Text) -> str:
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
    rows: Rows, kinds: layout.Kinds, kept: Bool[np.ndarray, " w"], alphabet: Alphabet, q: int
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
        part.letter[part.letter == ord("*")] = ord("X")  # what stands between columns is lower case in a3m, and '*' has none
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
    position, letter = next((i, chr(byte)) for i, byte in enumerate(rows.text[start:], 1) if byte in _LOWER)
    return refuse_row(
        rows,
        q,
        f"the query has a lower-case letter, {letter!r} at position {position}. The file is read as a3m (its rows differ in "
        "length), where lower case is an insertion relative to the query, which has none. Write the query in upper case; "
        "or, if the columns are not the query's, read with anchor='rf'; or, if this is aligned FASTA, give all rows the "
        "same length.",
        found=letter,
    )


# --- the account -----------------------------------------------------------------------------------------------------


def _note_query(rows: Rows, kind: str, q: int, own: layout.Columns, kept: Bool[np.ndarray, " w"], anchor: str, notes: Counter[str]) -> None:
    n_lower = int(np.isin(own.characters, np.frombuffer(_LOWER, np.uint8)).sum())
    notes[f"lower-case letters of the query (read as residues, case means nothing in {kind})"] = n_lower
    of = "where the query has a gap" if anchor == "query" else "that the file marks as insertions"
    notes[f"columns {of} (residues there are insertions)"] = int((~kept).sum())
    if q:
        notes["rows before the query (put after it)"] = q


def _note_rows(rows: Rows, residues: UInt8[np.ndarray, "s n"], insertions: SparseLetters, notes: Counter[str]) -> None:
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


def _letter_counts(letters: SparseLetters) -> dict[str, int]:
    found, counts = np.unique(letters.letters, return_counts=True)
    return {chr(letter): int(count) for letter, count in zip(found, counts, strict=True)}


def _annotation(rows: Rows, kept: Bool[np.ndarray, " w"], notes: Counter[str]) -> Annotation:
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


# --- sequences -------------------------------------------------------------------------------------------------------


def _sequences(rows: Rows, alphabet: str, quirks: list[str], name: str) -> SequenceSet:
    chosen = _alphabet(np.frombuffer(rows.text, dtype=np.uint8)) if alphabet == "auto" else alphabet
    sequences: list[str] = []
    chain_lengths: list[tuple[int, ...]] = []
    notes = Counter(rows.quirks)
    start = 0
    for i, length in enumerate(rows.lengths):
        text = bytes(rows.text[start : start + length])
        start += length
        chains = [chain.translate(None, b"-.").upper().removesuffix(b"*") for chain in text.split(b":")]
        try:
            refuse_invalid(b"".join(chains))
        except MSAError as error:
            raise refuse_row(rows, i, str(error)) from None
        if not all(chains):
            raise refuse_row(rows, i, "the record has no residue, or none between two ':'. Remove it.")
        notes["gaps (left out)"] += text.count(b"-") + text.count(b".")
        notes["sequences with a '*' (stop codon) at the end (left out)"] += text.endswith(b"*")
        sequences.append(b"".join(chains).decode())
        chain_lengths.append(tuple(map(len, chains)) if len(chains) > 1 else ())
    dropped = {
        "annotation of HH-suite (ss_pred, ss_conf, ...)": rows.hhsuite,
        f"after the first {rows.max_rows} (max_rows)": rows.seen - len(sequences),
    }
    account = MSAAccount(
        rows_in=rows.seen + rows.hhsuite,
        rows_kept=len(sequences),
        dropped={reason: count for reason, count in dropped.items() if count},
        notes=(*quirks, *(f"{note}: {count}" for note, count in notes.items() if count)),
    )
    return SequenceSet(tuple(rows.names), tuple(rows.descriptions), tuple(sequences), chosen, tuple(chain_lengths), account, name)
