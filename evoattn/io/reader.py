"""Reading an alignment: the rows of any format, in the columns of the query or of the file."""

from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from evoattn.errors import ConfigError, MSAError
from evoattn.io.account import account_of
from evoattn.io.assembly import alignment_of, alphabet_of, fasta_dialect
from evoattn.io.formats import FORMATS, PARSERS, sniff
from evoattn.io.msa import MSA, MSAAccount
from evoattn.io.residues import ALPHABETS, refuse_invalid
from evoattn.io.rows import Rows, refuse_row
from evoattn.io.sources import Lines, Source, opened

_LISTED: Final = 10  # alignments of a file that an error names


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
                kind = fasta_dialect(rows, kind, name)
            return alignment_of(rows, kind, alphabet, anchor, lines.quirks, name)
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
            f"Say which one with block= (--block), by number or name: {'; '.join(listed)}.",
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


def _sequences(rows: Rows, alphabet: str, quirks: list[str], name: str) -> SequenceSet:
    chosen = alphabet_of(np.frombuffer(rows.text, dtype=np.uint8)) if alphabet == "auto" else alphabet
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
    account = account_of(rows, quirks, notes)
    return SequenceSet(tuple(rows.names), tuple(rows.descriptions), tuple(sequences), chosen, tuple(chain_lengths), account, name)
