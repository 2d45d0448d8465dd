"""Writing an alignment: what each format can say, it says; what it cannot, is refused or returned as a note."""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from jaxtyping import Int64, UInt8

from evoattn.errors import ConfigError, MSAError
from evoattn.files import new_file
from evoattn.io.msa import MSA
from evoattn.io.residues import ALPHABETS, GAP, MASKED
from evoattn.io.rows import HHSUITE, split_header

_SUFFIXES: Final = {
    "a3m": (".a3m",),
    "stockholm": (".sto", ".stk", ".sth", ".stockholm"),
    "clustal": (".aln", ".clustal", ".clw"),
    "fasta": (".fasta", ".fa", ".afa", ".fas"),
}
_PACKERS: Final[dict[str, Callable[[IO[bytes]], Any]]] = {
    ".gz": lambda file: gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0),  # the same bytes each time
    ".bz2": lambda file: bz2.BZ2File(file, mode="wb"),
    ".xz": lambda file: lzma.LZMAFile(file, mode="wb"),  # noqa: SIM115
}
_CLUSTAL_WIDTH: Final = 60


def write_msa(msa: MSA, path: str | os.PathLike[str], format: str = "auto", *, rename: bool = False) -> tuple[str, ...]:
    """Write an alignment so that :func:`evoattn.io.read_msa` gives the same residues, insertions, names and order again.

    ==========  ===================================================================================================
    a3m         also descriptions, and the chains of a complex in ColabFold's first line
    stockholm   also descriptions and annotation; the RF line marks the columns of the alignment
    fasta       aligned FASTA: also descriptions
    clustal     names, residues and insertions alone
    ==========  ===================================================================================================

    Read it back with its format and ``anchor="query"``. If row 0 has a gap or an insertion (after another anchor), read
    a3m and Stockholm back with ``anchor="rf"``, the others with ``"none"``. Name the alphabet too if it cannot be told from
    the letters. The file is written under a temporary name and moved into place.

    Args:
        msa: the alignment.
        path: the file; a name that ends in .gz, .bz2 or .xz is compressed.
        format: ``a3m``, ``stockholm``, ``clustal`` or ``fasta``; ``"auto"`` takes it from the suffix.
        rename: for Stockholm and Clustal: give rows without a name, and those whose name is not the first of its kind or
            has white space, another one.

    Returns:
        What the format could not carry, one sentence each: nothing of the residues, insertions, names and order.

    Raises:
        MSAError: the format cannot say what the alignment holds, and the file would read as another alignment: repeated or
            empty names (Stockholm, Clustal), a header that would be read as another, insertions in an alignment whose
            query has gaps (FASTA, Clustal), the mask token.
        ConfigError: an unknown format or suffix.
    """
    path = Path(path)
    kind = format_to_write(path, format)
    notes: list[str] = []
    try:
        if rename and kind in ("stockholm", "clustal"):
            msa = _renamed(msa, notes)
        lines = _WRITERS[kind](msa, notes)
        _write(path, lines)
    except MSAError as error:
        error.file = str(path)
        raise
    return tuple(notes)


def format_to_write(path: Path, format: str = "auto") -> str:
    """The format in which :func:`write_msa` would write that file. Raises ConfigError if there is none."""
    if format in _SUFFIXES:
        return format
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _PACKERS]
    found = next((kind for kind, of in _SUFFIXES.items() if suffixes and suffixes[-1] in of), None)
    if format == "auto" and found is not None:
        return found
    raise ConfigError(
        f"format is {format!r} for {path.name!r}; allowed are {', '.join(_SUFFIXES)}, or 'auto' for a name that ends in "
        f"{', '.join(suffix for of in _SUFFIXES.values() for suffix in of)} (then .gz, .bz2 or .xz, if it is to be compressed)."
    )


def _write(path: Path, lines: Iterator[bytes]) -> None:
    try:
        with new_file(path) as temporary, open(temporary, "xb") as file:
            packer = _PACKERS.get(path.suffix.lower())
            if packer is None:
                file.writelines(lines)
            else:
                with packer(file) as packed:
                    packed.writelines(lines)
    except OSError as error:
        raise MSAError(f"the file cannot be written: {error.strerror}.") from error


# --- letters ---------------------------------------------------------------------------------------------------------


class _Letters:
    """The characters of the columns, row by row, as they were read: ``U`` and not the ``C`` that it is read as."""

    def __init__(self, msa: MSA) -> None:
        if msa.alphabet == "protein" and (rows := np.flatnonzero((msa.residues == MASKED).any(axis=1))).size:
            i = int(rows[0])
            raise MSAError(
                "holds the mask token (code 22), which is no residue and has no letter. Write the alignment before it is masked.",
                row=i + 1,
                name=msa.names[i],
            )
        self._msa = msa
        alphabet = ALPHABETS[msa.alphabet]
        self._of_code = np.frombuffer(alphabet.letters.encode(), dtype=np.uint8)
        self._code_of = alphabet.code_of_byte

    def row(self, i: int) -> UInt8[np.ndarray, " n"]:
        codes = self._msa.residues[i]
        letters = self._of_code[codes]
        if self._msa.unusual is None:
            return letters
        columns, unusual = self._msa.unusual.row(i)
        own = np.frombuffer(unusual, dtype=np.uint8)
        same = self._code_of[own] == codes[columns]  # the codes may have been changed since
        letters[columns[same]] = own[same]
        if self._msa.n_seq == 1 and letters[-1] == ord("*"):
            letters[-1] = ord("X")  # at the end of a single sequence a '*' is a stop codon, and no column
        return letters


class _Wide:
    """Rows with a place for every inserted letter: the widest insertion at each place makes room for all."""

    def __init__(self, msa: MSA, letters: _Letters) -> None:
        self._letters = letters
        self._insertions = msa.insertions
        place = msa.insertions.rows * (msa.n_res + 1) + msa.insertions.columns
        first = np.flatnonzero(np.diff(place, prepend=-1))
        self._rank = np.arange(len(place)) - np.repeat(first, np.diff(first, append=len(place)))
        widths = np.zeros(msa.n_res + 1, dtype=np.int64)
        np.maximum.at(widths, msa.insertions.columns, self._rank + 1)
        self._start: Int64[np.ndarray, " n_plus_1"] = np.cumsum(widths) - widths + np.arange(msa.n_res + 1)
        self._columns = (self._start + widths)[:-1]
        self.width = msa.n_res + int(widths.sum())

    def row(self, i: int, *, lower: bool) -> bytes:
        """Row ``i``, inserted letters in lower case between '.', or in upper case between '-'."""
        own = slice(self._insertions.offsets[i], self._insertions.offsets[i + 1])
        places = self._start[self._insertions.columns[own]] + self._rank[own]
        inserted = self._insertions.letters[own]
        row = np.full(self.width, ord("." if lower else "-"), dtype=np.uint8)
        row[self._columns] = self._letters.row(i)
        row[places] = inserted | 32 if lower else inserted
        return row.tobytes()

    def annotation(self, text: bytes) -> bytes:
        row = np.full(self.width, ord("."), dtype=np.uint8)
        row[self._columns] = np.frombuffer(text, dtype=np.uint8)
        return row.tobytes()


# --- names -----------------------------------------------------------------------------------------------------------


def _headers(msa: MSA) -> Iterator[bytes]:
    for i, (name, description) in enumerate(zip(msa.names, msa.descriptions, strict=True)):
        tabbed = msa.tabbed is not None and bool(msa.tabbed[i]) and bool(description)
        header = name + ("\t" if tabbed else " ") + description if description else name
        data = header.encode("utf-8", "replace")
        same = split_header(data.decode()) == (name, description, tabbed)
        if not same or any(end in data for end in b"\n\r\0") or data.startswith(HHSUITE):
            raise MSAError(
                f"the name and the description {description!r} would not be read again as they are: a name has no white space, "
                f"no line has a line end, and names such as {HHSUITE[0].decode()} mean annotation. Give the row another name.",
                row=i + 1,
                name=name,
            )
        yield data


def _plain_names(msa: MSA, what: str) -> list[bytes]:
    seen: dict[str, int] = {}
    for i, name in enumerate(msa.names):
        problem = None
        if name in seen:
            problem = f"the name is that of row {seen[name]} too"
        elif not name:
            problem = "the row has no name"
        elif not _is_plain(name):
            problem = "the name has white space, or starts as no name does"
        if problem:
            raise MSAError(
                f"{problem}, and {what} tells rows apart by name. Use rename=True (--rename), or write a3m or FASTA.", row=i + 1, name=name
            )
        seen[name] = i + 1
    return [name.encode() for name in msa.names]


def _is_plain(name: str) -> bool:
    try:
        data = name.encode()
    except UnicodeEncodeError:
        return False
    return data.split() == [data] and not data.startswith((b"#", b"//", b";", b">")) and bool(data.strip(b"*:.")) and b"\0" not in data


def _renamed(msa: MSA, notes: list[str]) -> MSA:
    names: dict[str, None] = {}
    taken = set(msa.names)
    for i, old in enumerate(msa.names, 1):
        name = "_".join(old.encode("utf-8", "replace").decode().split()).lstrip("#/;>") or f"row{i}"
        name = name if _is_plain(name) else f"row{i}"
        k = 2
        new = name if name == old else f"{name}_{k}" if name in taken else name
        while new in names or (new != old and new in taken):
            new = f"{name}_{k}"
            k += 1
        names[new] = None
    if changed := sum(new != old for new, old in zip(names, msa.names, strict=True)):
        notes.append(f"rows that were given another name, so that each has its own: {changed}")
    return replace(msa, names=tuple(names))


# --- formats ---------------------------------------------------------------------------------------------------------


def _a3m(msa: MSA, notes: list[str]) -> Iterator[bytes]:
    letters = _Letters(msa)
    headers = list(_headers(msa))
    _note_annotation(msa, "a3m", notes)

    def lines() -> Iterator[bytes]:
        if msa.chain_lengths:
            yield f"#{','.join(map(str, msa.chain_lengths))}\t{','.join(map(str, msa.chain_copies))}\n".encode()
        for i, header in enumerate(headers):
            columns, inserted = msa.insertions.row(i)
            row = np.insert(letters.row(i), columns, np.frombuffer(inserted.lower(), dtype=np.uint8))
            yield b">%s\n%s\n" % (header, row.tobytes())

    return lines()


def _fasta(msa: MSA, notes: list[str]) -> Iterator[bytes]:
    _refuse_unmarked_insertions(msa, "aligned FASTA")
    wide = _Wide(msa, _Letters(msa))
    headers = list(_headers(msa))
    _note_annotation(msa, "FASTA", notes)
    _note_chains(msa, "FASTA", notes)
    return (b">%s\n%s\n" % (header, wide.row(i, lower=False)) for i, header in enumerate(headers))


def _clustal(msa: MSA, notes: list[str]) -> Iterator[bytes]:
    _refuse_unmarked_insertions(msa, "Clustal")
    wide = _Wide(msa, _Letters(msa))
    names = _padded(_plain_names(msa, "Clustal"))
    if n := sum(map(bool, msa.descriptions)):
        notes.append(f"Clustal has no descriptions; those of {n} rows are left out.")
    _note_annotation(msa, "Clustal", notes)
    _note_chains(msa, "Clustal", notes)

    def lines() -> Iterator[bytes]:
        rows = [wide.row(i, lower=False) for i in range(msa.n_seq)]
        yield b"CLUSTAL multiple sequence alignment, written by evoattn\n\n"
        for start in range(0, wide.width, _CLUSTAL_WIDTH):
            yield from (name + row[start : start + _CLUSTAL_WIDTH] + b"\n" for name, row in zip(names, rows, strict=True))
            yield b"\n"

    return lines()


def _stockholm(msa: MSA, notes: list[str]) -> Iterator[bytes]:
    wide = _Wide(msa, _Letters(msa))
    names = _plain_names(msa, "Stockholm")
    reference = _reference(msa, notes)
    _note_chains(msa, "Stockholm", notes)
    marks = msa.annotation
    starts = [*names, *(f"#=GC {tag}".encode() for tag in ["RF", *marks.gc])]
    width = 1 + max(map(len, [*starts, *(_gr_name(names, tag, i) for tag, of_rows in marks.gr.items() for i in of_rows)]))

    def lines() -> Iterator[bytes]:
        yield b"# STOCKHOLM 1.0\n"
        for tag, texts in marks.gf.items():
            yield from (_mark(f"#=GF {tag}", text) for text in texts)
        for name, description in zip(names, msa.descriptions, strict=True):
            if description:
                yield _mark(f"#=GS {name.decode()} DE", description)
        for tag, of in marks.gs.items():
            yield from (_mark(f"#=GS {msa.names[i]} {tag}", text) for i, texts in of.items() for text in texts)
        yield b"\n"
        for i, name in enumerate(names):
            yield name.ljust(width) + wide.row(i, lower=True) + b"\n"
            for tag, of_rows in marks.gr.items():
                if i in of_rows:
                    yield _gr_name(names, tag, i).ljust(width) + _column_marks(msa, wide, tag, of_rows[i]) + b"\n"
        for tag, text in {**marks.gc, "RF": reference}.items():
            yield f"#=GC {tag}".encode().ljust(width) + _column_marks(msa, wide, tag, text) + b"\n"
        yield b"//\n"

    return iter(list(lines()))  # what is refused, is refused before a file is opened


_WRITERS: Final[dict[str, Callable[[MSA, list[str]], Iterator[bytes]]]] = {
    "a3m": _a3m,
    "stockholm": _stockholm,
    "clustal": _clustal,
    "fasta": _fasta,
}


def _gr_name(names: Sequence[bytes], tag: str, i: int) -> bytes:
    return b"#=GR %s %s" % (names[i], tag.encode())


def _padded(names: Sequence[bytes]) -> list[bytes]:
    width = max(map(len, names)) + 1
    return [name.ljust(width) for name in names]


def _mark(start: str, text: str) -> bytes:
    line = f"{start} {text}".encode("utf-8", "replace")
    if any(byte in line for byte in b"\n\r\0") or text != text.strip():
        raise MSAError(f"the annotation {text!r} of {start!r} has a line end, or white space at an end. Change it.")
    return line.rstrip() + b"\n"


def _column_marks(msa: MSA, wide: _Wide, tag: str, text: str) -> bytes:
    data = text.encode("latin-1", "replace")
    if len(data) != msa.n_res or len(data.split()) != 1:
        raise MSAError(f"the annotation {tag!r} has {len(data)} characters, and the alignment {msa.n_res} columns; white space is none.")
    return wide.annotation(data)


def _reference(msa: MSA, notes: list[str]) -> str:
    """The reference line marks every column, so that the file can be read back by it."""
    text = msa.annotation.gc.get("RF", "")
    marked = "".join("x" if letter in ".-_~ " else letter for letter in text) if len(text) == msa.n_res else "x" * msa.n_res
    if text and (n := sum(old != new for old, new in zip(text, marked, strict=False))):
        notes.append(f"the RF line of Stockholm marks the columns of the alignment: {n} columns that it did not mark are marked now.")
    return marked


def _refuse_unmarked_insertions(msa: MSA, what: str) -> None:
    if len(msa.insertions) and ((msa.residues[0] == GAP).any() or msa.insertions.offsets[1]):
        raise MSAError(
            f"the query has gaps or insertions, and {what} cannot say which letters of the rows are insertions. Write a3m or "
            "Stockholm; or read the file with anchor='query' or 'none' (--anchor) first."
        )


def _note_annotation(msa: MSA, what: str, notes: list[str]) -> None:
    marks = msa.annotation
    if tags := [f"#={kind.upper()} {tag}" for kind in ("gf", "gs", "gc", "gr") for tag in getattr(marks, kind)]:
        notes.append(f"{what} has no annotation; left out: {', '.join(tags)}.")


def _note_chains(msa: MSA, what: str, notes: list[str]) -> None:
    if msa.chain_lengths:
        notes.append(f"{what} does not say where chains end; left out: lengths {msa.chain_lengths}, copies {msa.chain_copies}.")
