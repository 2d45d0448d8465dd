"""From a file to its records: one small generator per format, and the rule that tells the formats apart by content.

The parsers are our own. Biopython 1.88 has no a3m reader; its FASTA parser glues two records together at a NUL byte,
and refuses a ``#`` first line; its Stockholm parser stops at an empty ``#=GF DE`` and at a repeated name; its Clustal
parser stops at a consensus line of another length. Where Biopython reads a file rightly, the tests compare with it.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from evoattn.errors import MSAError


class Record(NamedTuple):
    """One row as it stands in the file: the text has no white space, but every gap and insertion."""

    name: str
    description: str
    text: bytes


def load(path: Path) -> bytes:
    """Return the content of a file with one alignment: unpacked if it is gzip, without byte order mark and NUL bytes.

    Raises MSAError if the file cannot be read, is empty, or holds several alignments separated by NUL bytes.
    """
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise MSAError(f"the file cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise MSAError("the text is UTF-16; save it as UTF-8 or ASCII.")
    # MMseqs2 ends each entry of a result database with a NUL byte, and alignment servers pass it on.
    blocks = [block for block in data.removeprefix(b"\xef\xbb\xbf").split(b"\0") if block.strip()]
    if not blocks:
        raise MSAError("the file is empty. An alignment needs at least the query sequence.")
    if len(blocks) > 1:
        raise MSAError(
            f"the file holds {len(blocks)} alignments separated by NUL bytes, as a server returns for several queries. "
            "One alignment is read at a time: write each block to a file of its own."
        )
    return blocks[0]


_CLUSTAL_HEADER: Final = re.compile(rb"(CLUSTAL|MUSCLE|MSAPROBS|PROBCONS|KALIGN)\b|.*multiple sequence alignment", re.I)


def sniff(data: bytes) -> str:
    """Return ``fasta``, ``stockholm`` or ``clustal``, judged by the first line that says something.

    Stockholm starts with ``# STOCKHOLM``. Otherwise lines that start with ``#`` or ``;`` are comments, and the first
    other line decides: ``>`` is the FASTA family (a3m and aligned FASTA too, see :func:`evoattn.io.read_msa`), and a
    line that starts with CLUSTAL, MUSCLE, MSAPROBS, PROBCONS or Kalign, or has the words "multiple sequence alignment",
    is Clustal.

    Raises MSAError for anything else.
    """
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        if line.upper().startswith(b"# STOCKHOLM"):
            return "stockholm"
        if line.startswith(b">"):
            return "fasta"
        if line.startswith((b"#", b";")):
            continue
        if _CLUSTAL_HEADER.match(line):
            return "clustal"
        raise MSAError(
            f"line {number} starts no known format: {_shown(line)}. A FASTA or a3m record starts with '>', a "
            "Stockholm file with '# STOCKHOLM 1.0', a Clustal file with 'CLUSTAL'. Remove any text before the first "
            "record, or convert the file."
        )
    raise MSAError("the file has comment lines but no sequence.")


def fasta_records(data: bytes) -> Iterator[Record]:
    """FASTA, aligned FASTA and a3m: wrapped lines are joined; ``;`` lines, and ``#`` lines at the top, are skipped."""
    header: bytes | None = None
    pieces: list[bytes] = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.startswith(b">"):
            if header is not None:
                yield _record(header[1:], pieces)
            header, pieces = line, []
        elif line.startswith(b";"):
            continue
        elif header is not None:
            pieces.append(line)
        elif line.strip() and not line.startswith(b"#"):
            raise MSAError(f"line {number} is text before the first '>' record: {_shown(line)}. Remove it, or start it with ';'.")
    if header is not None:
        yield _record(header[1:], pieces)


def stockholm_records(data: bytes) -> Iterator[Record]:
    """Stockholm: interleaved blocks are joined, ``#=GS ... DE`` is the description, all other annotation is left out.

    A missing ``//`` at the end is no fault. Raises MSAError if the file holds several alignments.
    """
    alignments: list[list[tuple[int, bytes]]] = [[]]
    descriptions: dict[bytes, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip() == b"//":
            alignments.append([])
        elif line.startswith(b"#=GS"):
            fields = line.split(None, 3)
            if len(fields) == 4 and fields[2] == b"DE":
                descriptions.setdefault(fields[1], fields[3])
        elif not line.startswith(b"#"):
            alignments[-1].append((number, line))
    alignments = [lines for lines in alignments if any(line.strip() for _, line in lines)]
    if len(alignments) > 1:
        raise MSAError(f"the file holds {len(alignments)} Stockholm alignments. Write the one you want to a file of its own.")
    for name, pieces in _joined_blocks(line for lines in alignments for line in lines):
        yield _record(name + b" " + descriptions.get(name, b""), pieces)


def clustal_records(data: bytes) -> Iterator[Record]:
    """Clustal and its dialects: blocks are joined; consensus lines, residue counts and the header are left out."""
    lines = list(enumerate(data.splitlines(), 1))
    header = next(i for i, (_, line) in enumerate(lines) if line.strip() and not line.startswith((b"#", b";")))
    # The consensus line starts with white space; an editor may have stripped it, and then it is marks alone.
    rows = ((n, b"" if line[:1].isspace() or not line.strip(b"*:. \t") else line) for n, line in lines[header + 1 :])
    for name, pieces in _joined_blocks((n, re.sub(rb"\s+\d+\s*$", b"", line)) for n, line in rows):
        yield _record(name, pieces)


RECORDS: Final[dict[str, Callable[[bytes], Iterator[Record]]]] = {
    "fasta": fasta_records,
    "stockholm": stockholm_records,
    "clustal": clustal_records,
}


_CHAINS: Final = re.compile(rb"#(\d+(?:,\d+)*)\t(\d+(?:,\d+)*)\s*$")


def chains(data: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the chain lengths and copy numbers of a ColabFold first line (``#59,40<TAB>2,1``), or two empty tuples."""
    found = _CHAINS.match(data.lstrip().split(b"\n", 1)[0])
    if found is None:
        return (), ()
    lengths, copies = (tuple(int(number) for number in group.split(b",")) for group in found.groups())
    if len(lengths) != len(copies):
        raise MSAError(
            f"the first line, {_shown(found.group())}, has {len(lengths)} chain lengths and {len(copies)} copy "
            "numbers. Correct it, or remove it if the alignment has one chain."
        )
    return lengths, copies


def _joined_blocks(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[bytes, list[bytes]]]:
    """Join ``name text`` lines over the blocks of an interleaved file.

    Blank lines separate blocks. A name may stand for several rows (Pfam repeats names, Clustal cuts them short): its
    k-th line in each block belongs to its k-th row.
    """
    rows: dict[tuple[bytes, int], list[bytes]] = {}
    seen: dict[bytes, int] = {}
    for number, line in lines:
        if not line.strip():
            seen = {}
            continue
        fields = line.split()
        if len(fields) != 2:
            raise MSAError(f"line {number} is not a name followed by a sequence: {_shown(line)}.")
        name, piece = fields
        rows.setdefault((name, seen.get(name, 0)), []).append(piece)
        seen[name] = seen.get(name, 0) + 1
    for (name, _), pieces in rows.items():
        yield name, pieces


def _record(header: bytes, pieces: list[bytes]) -> Record:
    name, description = [*_text(header).split(None, 1), "", ""][:2]
    return Record(name, description.rstrip(), b"".join(pieces).translate(None, b" \t\v\f"))


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # every byte is a character there: an old file keeps its accented names


def _shown(line: bytes) -> str:
    text = _text(line.strip())
    return repr(text if len(text) <= 60 else text[:57] + "...")
