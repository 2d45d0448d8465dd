"""From lines to rows: one small parser per format, and the rule that tells the formats apart by content.

The parsers are our own. Biopython 1.88 has no a3m reader; its FASTA parser glues two records together at a NUL byte,
and refuses a ``#`` first line; its Stockholm parser stops at an empty ``#=GF DE`` and at a repeated name; its Clustal
parser stops at a consensus line of another length; it reads neither SELEX nor PSICOV's rows; and none of them stops
keeping rows after a given number. Where Biopython reads a file rightly, the tests compare with it.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from evoattn.errors import MSAError
from evoattn.io.rows import InterleavedRows, Rows, shown
from evoattn.io.sources import Line, Lines, packed_as

FORMATS: Final = ("a3m", "a2m", "fasta", "stockholm", "clustal", "selex", "psicov")
"""The formats by name. ``fasta`` is aligned FASTA and a single sequence; ``psicov`` is one bare row a line (``.aln``)."""

_WHITE: Final = b" \t\v\f"
_CLUSTAL_HEADER: Final = re.compile(rb"(CLUSTAL|MUSCLE|MSAPROBS|PROBCONS|KALIGN)\b|.*multiple sequence alignment", re.I)
_UPPER_ROW: Final = re.compile(rb"[A-Z.*-]+")
_PIR: Final = re.compile(rb">(P1|F1|D[LC1]|R[LC1]|N[13]|XX);")

_NOT_ALIGNMENTS: Final = (
    (re.compile(rb"data_\S*\s*$|loop_|_\w+\."), "an mmCIF structure", "Extract the sequence, or the alignment it was made from"),
    (re.compile(rb"(HEADER|ATOM|HETATM|CRYST1|REMARK|MODEL|TITLE|COMPND|EXPDTA|SEQRES)\s"), "a PDB structure", "Extract its sequence"),
    (re.compile(rb"ID   "), "a UniProt or EMBL flat file", "Save the entry as FASTA"),
    (re.compile(rb"LOCUS  "), "a GenBank flat file", "Save the entry as FASTA"),
    (re.compile(rb"#NEXUS", re.I), "a NEXUS file", "Convert it to FASTA, for example with Bio.AlignIO"),
    (re.compile(rb"\s*\d+\s+\d+(\s+\w+)?\s*$"), "a PHYLIP file", "Convert it to FASTA, for example with Bio.AlignIO"),
    (re.compile(rb"(PileUp|!!.._MULTIPLE|\s*MSF:)"), "an MSF file", "Convert it to FASTA, for example with Bio.AlignIO"),
    (re.compile(rb"HMMER[23]|HHsearch|HH[mM] "), "a profile HMM", "Give the alignment it was built from"),
    (re.compile(rb"\s*<"), "HTML or XML, such as an error page saved in place of the file", "Download it again"),
    (re.compile(rb"\s*[{\[]"), "JSON", "Write the alignment that it holds to a file of its own"),
    (re.compile(rb"@\S"), "a FASTQ file", "Convert it to FASTA"),
    (_PIR, "a PIR file (a line of description after every '>' line)", "Convert it to FASTA, for example with Bio.SeqIO"),
    (re.compile(rb"PK\x03\x04"), "a zip archive", "Unpack it"),
)


def sniff(lines: Lines) -> str | None:
    """Return the format of the block, judged by its first lines, which are not taken; None if it has comments only.

    Lines that start with ``#`` or ``;`` are comments, but for these: ``# STOCKHOLM`` and ``#=GF``, ``#=GC``, ``#=GS``,
    ``#=GR`` are Stockholm, any other ``#=XX`` is SELEX. The first line that is none decides: ``>`` is the FASTA family,
    returned as ``fasta``; CLUSTAL, MUSCLE, MSAPROBS, PROBCONS or Kalign, or the words "multiple sequence alignment",
    are Clustal. If all the first lines are single words of capital letters and gaps, it is PSICOV's format; if all are
    two words, the second of letters and gaps, and of one length down to the first blank line, it is SELEX.

    Raises MSAError for anything else, and names the format where it is a known one.
    """
    head = [(number, line) for number, line in lines.peek() if line.strip()]
    for number, line in head:
        if line[:11].upper() == b"# STOCKHOLM" or line[:4] in (b"#=GF", b"#=GC", b"#=GS", b"#=GR"):
            return "stockholm"
        if line.startswith(b"#="):
            return "selex"
        if line.startswith(b">") and not _PIR.match(line):
            return "fasta"
        if line.startswith((b"#", b";")) and not line.upper().startswith(b"#NEXUS"):
            continue
        if _CLUSTAL_HEADER.match(line):
            return "clustal"
        _refuse_known(number, line)
        rest = [other for _, other in head if not other.startswith((b"#", b";"))]
        if all(_UPPER_ROW.fullmatch(other.strip()) for other in rest):
            return "psicov"
        if _is_selex(lines.peek()):
            return "selex"
        raise MSAError(
            f"starts no known format: {shown(line)}. A FASTA or a3m record starts with '>', a Stockholm file with "
            "'# STOCKHOLM 1.0', a Clustal file with 'CLUSTAL'. Remove any text before the first record, convert the "
            "file, or name its format if it is one of " + ", ".join(FORMATS) + ".",
            line=number,
        )
    return None


def _refuse_known(number: int, line: bytes) -> None:
    for pattern, what, remedy in _NOT_ALIGNMENTS:
        if pattern.match(line):
            raise MSAError(f"the file is {what}, which is not read: {shown(line)}. {remedy}.", line=number)
    if packed_as(line) or sum(byte < 9 or 13 < byte < 32 for byte in line[:200]) > len(line[:200]) // 10:
        raise MSAError(f"the file is no text: {shown(line)}. Give the alignment itself.", line=number)


def _is_selex(head: Iterable[Line]) -> bool:
    widths: list[int] = []
    for _, line in head:
        fields = line.split()
        if not fields and widths:
            break
        if not fields or line.startswith((b"#", b";")):
            continue
        if len(fields) != 2 or not re.fullmatch(rb"[A-Za-z.*_~-]+", fields[1]):
            return False
        widths.append(len(fields[1]))
    return len(widths) > 1 and len(set(widths)) == 1


# --- the FASTA family ------------------------------------------------------------------------------------------------


def read_fasta(lines: Lines, rows: Rows) -> None:
    """FASTA, aligned FASTA, a2m and a3m: wrapped lines are joined; ``;`` lines, and ``#`` lines at the top, are skipped."""
    header: bytes | None = None
    start = 0
    pieces: list[bytes] = []
    for number, line in lines.block():
        if line[:1] == b">":
            if header is not None:
                rows.add_record(header, pieces, start)
            header, pieces, start = line[1:], [], number
        elif line[:1] == b";":
            rows.count("comment lines (skipped)")
        elif header is not None:
            if line[:1] == b"#":
                raise MSAError(
                    f"a '#' line stands between the records: {shown(line)}. It may be the first line of another alignment "
                    "that was joined to this one: write each to a file of its own, or start a comment with ';'.",
                    line=number,
                )
            pieces.append(line.translate(None, _WHITE))
        elif line[:1] == b"#":
            _first_line(number, line, rows)
        elif line.strip():
            raise MSAError(f"text before the first '>' record: {shown(line)}. Remove it, or start it with ';'.", line=number)
    if header is not None:
        rows.add_record(header, pieces, start)


_CHAINS: Final = re.compile(rb"#(\d+(?:,\d+)*)\t(\d+(?:,\d+)*)\s*$")


def _first_line(number: int, line: bytes, rows: Rows) -> None:
    """The chain lengths and copy numbers of ColabFold (``#59,40<TAB>2,1``); any other ``#`` line is a comment."""
    found = _CHAINS.match(line)
    if found is None or rows.chain_lengths:
        rows.count("comment lines (skipped)")
        return
    lengths, copies = (tuple(int(number[:18]) for number in group.split(b",")) for group in found.groups())
    if len(lengths) != len(copies) or 0 in lengths or 0 in copies:
        raise MSAError(
            f"the first line, {shown(line)}, has {len(lengths)} chain lengths and {len(copies)} copy numbers, which must "
            "be as many, and none of them 0. Correct it, or remove it if the alignment has one chain.",
            line=number,
        )
    rows.chain_lengths, rows.chain_copies = lengths, copies


# --- name and row on one line ----------------------------------------------------------------------------------------


def read_stockholm(lines: Lines, rows: Rows) -> None:
    """Stockholm, up to ``//``, to the next ``# STOCKHOLM`` or to the end: interleaved blocks are joined."""
    table = InterleavedRows(rows)
    ended = begun = False
    for number, line in lines.block():
        if line[:1] == b"#":
            if line[:2] == b"#=":
                _mark_up(number, line, table)
            elif line[:11].upper() == b"# STOCKHOLM":
                if table.begun:
                    lines.put_back((number, line))
                    break
                begun = True
        elif line[:2] == b"//":
            ended = True
            break
        elif not line.strip():
            table.end_block()
        elif table.begun or line[:1] != b";":
            table.add(*_name_and_piece(number, line), number)
    if not begun:
        rows.count("no '# STOCKHOLM 1.0' at the top")
    if not ended:
        rows.count("no '//' at the end")
    table.finish()


def _mark_up(number: int, line: bytes, table: InterleavedRows) -> None:
    kind = line[2:4]
    fields = line.split(None, {b"GF": 2, b"GC": 2, b"GS": 3, b"GR": 3}.get(kind, 0))
    if kind == b"GF" and len(fields) >= 2:
        table.mark_file(fields[1], fields[2] if len(fields) > 2 else b"")
    elif kind == b"GC" and len(fields) == 3:
        table.mark_columns(fields[1], fields[2].translate(None, _WHITE))
    elif kind == b"GS" and len(fields) == 4:
        table.mark_row(fields[1], fields[2], fields[3])
    elif kind == b"GR" and len(fields) == 4:
        table.mark_residues(fields[1], fields[2], fields[3].translate(None, _WHITE))
    else:
        table.rows.count("lines of annotation without content (skipped)")


def read_clustal(lines: Lines, rows: Rows) -> None:
    """Clustal and its dialects: blocks are joined; the header, consensus lines and residue counts are left out."""
    table = InterleavedRows(rows)
    begun = False
    for number, line in lines.block():
        if not begun and (not line.strip() or line.startswith((b"#", b";"))):
            continue
        if not begun and _CLUSTAL_HEADER.match(line):
            begun = True
        # The consensus line starts with white space; an editor may have stripped it, and then it is marks alone.
        elif line[:1].isspace() or not line.strip(b"*:. \t"):
            table.end_block()
        else:
            begun = True
            table.add(*_name_and_piece(number, line, counted=True), number)
    table.finish()


_OTHER_GAPS: Final = bytes.maketrans(b"_~", b"--")


def _name_and_piece(number: int, line: bytes, *, counted: bool = False) -> tuple[bytes, bytes]:
    fields = line.split()
    if counted and len(fields) == 3 and fields[2].isdigit():
        fields.pop()
    if len(fields) != 2:
        raise MSAError(f"no name followed by a sequence: {shown(line)}.", line=number)
    return fields[0], fields[1].translate(_OTHER_GAPS)


def read_selex(lines: Lines, rows: Rows) -> None:
    """SELEX: blocks of ``name row`` lines, where a space within the columns of the block is a gap."""
    table = InterleavedRows(rows)
    block = _SelexBlock(table)
    for number, line in lines.block():
        if line.startswith(b"#=") and len(line.split(None, 1)) == 2:
            block.mark(line.expandtabs(8))
        elif line.startswith((b"#", b"%", b";")):
            continue
        elif line[:2] == b"//":
            break
        elif not line.strip():
            block.end()
        elif line[:1] == b">":
            raise MSAError(f"a '>' record in a file of '{'name row'}' lines: {shown(line)}. Remove what stands before it.", line=number)
        else:
            block.add(number, line.expandtabs(8))
    block.end()
    table.finish()


class _SelexBlock:
    """Its columns reach from the leftmost to the rightmost character of all its rows, so they are cut when it ends.

    Until then the lines of the kept rows wait; those of the others do no more than widen the block.
    """

    _COLUMN_TAGS: Final = {b"RF": b"RF", b"CS": b"SS_cons", b"MM": b"MM"}
    _RESIDUE_TAGS: Final = (b"SS", b"SA")

    def __init__(self, table: InterleavedRows) -> None:
        self._table = table
        self._begin()

    def _begin(self) -> None:
        self._start, self._stop = 1 << 60, 0
        self._row: int | None = None
        self._lines: dict[int, bytes] = {}
        self._marks: dict[int, list[tuple[bytes, bytes]]] = {}  # of each row: tag and line
        self._columns: list[tuple[bytes, bytes]] = []

    def mark(self, line: bytes) -> None:
        tag, text = line[2:4], b" " * 4 + line[4:]
        if tag in self._COLUMN_TAGS:
            self._columns.append((self._COLUMN_TAGS[tag], text))
        elif tag not in self._RESIDUE_TAGS:
            self._table.mark_file(tag, text.strip())
            return
        elif self._row is not None:
            self._marks[self._row].append((tag, text))
        self._widen(text, 4)

    def add(self, number: int, line: bytes) -> None:
        name = line.split(None, 1)[0]
        skip = line.index(name) + len(name)
        self._widen(line, skip)
        self._row = self._table.row(name, number)
        if self._row is not None:
            self._lines[self._row], self._marks[self._row] = b" " * skip + line[skip:], []

    def _widen(self, line: bytes, skip: int) -> None:
        if rest := line[skip:].strip():
            start = line.index(rest[:1], skip)
            self._start, self._stop = min(self._start, start), max(self._stop, start + len(rest))

    def _cut(self, line: bytes) -> bytes:
        return line[self._start : self._stop].ljust(max(0, self._stop - self._start))

    def end(self) -> None:
        for row, line in self._lines.items():
            self._table.extend(row, self._cut(line).replace(b" ", b"-").translate(_OTHER_GAPS))
            for tag, text in self._marks[row]:
                self._table.extend_marks(row, tag, self._cut(text).replace(b" ", b"."))
        for tag, text in self._columns:
            self._table.mark_columns(tag, self._cut(text).replace(b" ", b"."))
        self._begin()
        self._table.end_block()


def read_psicov(lines: Lines, rows: Rows) -> None:
    """One row a line and nothing else, the ``.aln`` of PSICOV and CCMpred; the rows get the names seq1, seq2, ..."""
    for number, line in lines.block():
        text = line.strip()
        if not text or line.startswith((b"#", b";")):
            continue
        if line[:1] == b">" or len(text.split()) > 1:
            raise MSAError(f"more than a bare row in a file of bare rows: {shown(line)}. Remove what stands before it.", line=number)
        rows.add_record(b"seq%d" % (rows.seen + 1), [text], number)
    if rows.seen:
        rows.count("rows without names (named seq1, seq2, ...)", rows.seen)


PARSERS: Final[dict[str, Callable[[Lines, Rows], None]]] = {
    "a3m": read_fasta,
    "a2m": read_fasta,
    "fasta": read_fasta,
    "stockholm": read_stockholm,
    "clustal": read_clustal,
    "selex": read_selex,
    "psicov": read_psicov,
}
