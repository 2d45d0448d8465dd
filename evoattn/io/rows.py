"""The rows of one alignment as a parser collects them: text and names of those that are kept, a count of all."""

from collections import Counter
from typing import Final

from evoattn.errors import MSAError

_WHITE: Final = b" \t\v\f"
# Secondary structure and solvent accessibility, which HH-suite stores as records among the sequences.
HHSUITE: Final = (b"ss_pred", b"ss_conf", b"ss_dssp", b"sa_dssp", b"sa_pred", b"aa_pred", b"aa_dssp")


class Rows:
    """What a file says about its rows. Of at most ``max_rows`` the text is kept, of all others nothing.

    The row named ``query`` is always among the kept: it takes the place of the last one if it comes later.
    """

    def __init__(self, max_rows: int | None = None, query: str | None = None) -> None:
        self.max_rows, self.query = max_rows, query
        self.names: list[str] = []
        self.descriptions: list[str] = []
        self.tabbed: list[bool] = []
        self.lines: list[int] = []
        self.lengths: list[int] = []
        self.text = bytearray()
        """The rows one after another, without white space, but with every gap, insertion and ':'."""
        self.seen = 0
        self.hhsuite = 0
        self.equal_lengths = True
        """All rows of the file, kept or not, are of one length, ':' not counted."""
        self.query_row: int | None = None
        self.chain_lengths: tuple[int, ...] = ()
        self.chain_copies: tuple[int, ...] = ()
        self.gf: dict[str, list[str]] = {}
        self.gc: dict[str, bytes] = {}
        self.gs: dict[str, dict[int, list[str]]] = {}
        self.gr: dict[str, dict[int, bytes]] = {}
        self.quirks: Counter[str] = Counter()
        self._length: int | None = None

    def count(self, quirk: str, n: int = 1) -> None:
        self.quirks[quirk] += n

    @property
    def titles(self) -> list[str]:
        """What the file calls the alignment, and the name of its first row."""
        return [*self.gf.get("ID", [])[:1], *self.gf.get("AC", [])[:1], *self.names[:1]]

    def place(self, name: str) -> int | None:
        """Where among the kept rows the next row goes if it has that name; None if it is not kept."""
        if name == self.query and self.query_row is None:
            self.query_row = min(len(self.names), (self.max_rows or len(self.names) + 1) - 1)
            return self.query_row
        return len(self.names) if self.max_rows is None or len(self.names) < self.max_rows else None

    def add_record(self, header: bytes, pieces: list[bytes], line: int) -> None:
        """Take one record of a FASTA file: its header without ``>`` and the lines of its sequence."""
        if header.startswith(HHSUITE):
            self.hhsuite += 1
            return
        text = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        length = len(text) - text.count(b":")
        if self._length is None:
            self._length = length
        elif length != self._length:
            self.equal_lengths = False
        self.seen += 1
        if self.max_rows is not None and len(self.names) >= self.max_rows and self.query is None:
            return
        name, description, tabbed = split_header(as_text(header))
        place = self.place(name)
        if place is None:
            return
        if place < len(self.names):
            for of_rows in (self.names, self.descriptions, self.tabbed, self.lines):
                of_rows.pop()
            del self.text[len(self.text) - self.lengths.pop() :]
        self.names.append(name)
        self.descriptions.append(description)
        self.tabbed.append(tabbed)
        self.lines.append(line)
        self.lengths.append(len(text))
        self.text += text


class InterleavedRows:
    """Collects ``name piece`` lines over the blocks of a file into :class:`Rows`.

    Blank lines end a block. A name may stand for several rows (Pfam repeats names, Clustal cuts them short): its k-th
    line in each block belongs to its k-th row.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._row_of: dict[tuple[bytes, int], int] = {}
        self._pieces: list[bytes | bytearray] = []
        self._in_block: dict[bytes, int] = {}
        self._not_kept = self._not_kept_most = self._not_kept_all = 0
        self._continued = False
        self._gs_lines = 0
        self._gs: dict[bytes, list[tuple[str, str]]] = {}
        self._gr: dict[tuple[str, int], bytearray] = {}
        self._gc: dict[str, bytearray] = {}

    @property
    def begun(self) -> bool:
        return bool(self._pieces)

    def add(self, name: bytes, piece: bytes, line: int) -> None:
        row = self.row(name, line)
        if row is not None:
            self.extend(row, piece)

    def row(self, name: bytes, line: int) -> int | None:
        """The row that a line with this name belongs to, counted from 0; None if it is not kept."""
        occurrence = self._in_block.get(name, 0)
        key = (name, occurrence)
        row = self._row_of.get(key)
        if row is not None:
            self._continued = True
        else:
            row = self._new_row(key, line)
            self._not_kept += row is None
        if row is not None or occurrence:  # of names that are not kept at all nothing is remembered
            self._in_block[name] = occurrence + 1
        return row

    def extend(self, row: int, piece: bytes) -> None:
        own = self._pieces[row]
        if not own:
            self._pieces[row] = piece
            return
        if isinstance(own, bytes):
            own = self._pieces[row] = bytearray(own)
        own += piece

    def _new_row(self, key: tuple[bytes, int], line: int) -> int | None:
        name = as_text(key[0])
        row = self.rows.place(name)
        if row is None:
            return None
        if row < len(self._pieces):  # the query, which comes late: the last row gives it its place
            self._row_of = {other: at for other, at in self._row_of.items() if at != row}
            self._gr = {other: text for other, text in self._gr.items() if other[1] != row}
            self.rows.names[row], self.rows.lines[row], self._pieces[row] = name, line, b""
            self._not_kept += 1
        else:
            self._pieces.append(b"")
            self.rows.names.append(name)
            self.rows.lines.append(line)
        self._row_of[key] = row
        return row

    def end_block(self) -> None:
        self._in_block = {}
        self._not_kept_most = max(self._not_kept_most, self._not_kept)
        self._not_kept_all += self._not_kept
        self._not_kept = 0

    def mark_file(self, tag: bytes, text: bytes) -> None:
        self.rows.gf.setdefault(as_text(tag), []).append(as_text(text.strip()))

    def mark_columns(self, tag: bytes, piece: bytes) -> None:
        self._gc.setdefault(as_text(tag), bytearray()).extend(piece)

    def mark_row(self, name: bytes, tag: bytes, text: bytes) -> None:
        # These lines stand before the rows, in the order of the rows: those of rows that will not be kept are passed over.
        if self.rows.max_rows is not None and name not in self._gs and len(self._gs) > 2 * self.rows.max_rows + 100:
            self._gs_lines += 1
        else:
            self._gs.setdefault(name, []).append((as_text(tag), as_text(text.strip())))

    def mark_residues(self, name: bytes, tag: bytes, piece: bytes) -> None:
        row = self._row_of.get((name, max(0, self._in_block.get(name, 0) - 1)))
        if row is not None:
            self.extend_marks(row, tag, piece)

    def extend_marks(self, row: int, tag: bytes, piece: bytes) -> None:
        self._gr.setdefault((as_text(tag), row), bytearray()).extend(piece)

    def finish(self) -> None:
        """Give the rows, joined, to :attr:`rows`."""
        self.end_block()
        rows = self.rows
        # Of rows that are not kept there are no names: if blocks continue each other, each block has all rows.
        rows.seen = len(self._pieces) + (self._not_kept_most if self._continued else self._not_kept_all)
        for i, piece in enumerate(self._pieces):
            rows.text += piece
            rows.lengths.append(len(piece))
            self._pieces[i] = b""
        rows.equal_lengths = len({*rows.lengths}) <= 1
        rows.descriptions = [""] * len(rows.names)
        rows.tabbed = [False] * len(rows.names)
        for (name, _), row in self._row_of.items():
            for tag, text in self._gs.get(name, ()):
                if tag == "DE" and not rows.descriptions[row]:
                    rows.descriptions[row] = text
                else:
                    rows.gs.setdefault(tag, {}).setdefault(row, []).append(text)
        if self._gs_lines:
            rows.count("#=GS lines (passed over: they stand after those of the first rows, max_rows)", self._gs_lines)
        rows.gc = {tag: bytes(text) for tag, text in self._gc.items()}
        for (tag, row), marks in self._gr.items():
            rows.gr.setdefault(tag, {})[row] = bytes(marks)


def split_header(header: str) -> tuple[str, str, bool]:
    """Name, description, and whether a tab parts them."""
    fields = header.split(None, 1)
    if len(fields) < 2:
        return (fields[0] if fields else ""), "", False
    name, description = fields
    return name, description.rstrip(), header.startswith(name + "\t") or header.lstrip().startswith(name + "\t")


def as_text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # every byte is a character there: an old file keeps its accented names


def shown(line: bytes) -> str:
    text = as_text(line[:300].strip())
    return repr(text if len(text) <= 60 else text[:57] + "...")


def refuse_row(rows: Rows, row: int, message: str, *, found: object = None, expected: object = None) -> MSAError:
    """The error about one of the kept rows, counted from 0."""
    name = rows.names[row] if len(rows.names[row]) <= 60 else rows.names[row][:57] + "..."
    return MSAError(message, line=rows.lines[row] or None, row=row + 1, name=name, found=found, expected=expected)
