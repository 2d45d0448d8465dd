"""From a file or stream to its lines: unpacked, numbered, and parted into the blocks that NUL bytes separate."""

import bz2
import gzip
import lzma
import os
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from evoattn.errors import MSAError

Source = str | os.PathLike[str] | Any  # Any: an open stream, binary or text
Line = tuple[int, bytes]

_CHUNK: Final = 1 << 18
_LONGEST_LINE: Final = 1 << 30
"""No sequence is this long, but a line of a file that is no text may be, and a packed one costs its sender nothing."""


class Lines:
    """The lines of a source, each with its number from 1, without line ends; :meth:`block` gives those of one block.

    A NUL byte ends a block: MMseqs2 ends each entry of a result database with one, and alignment servers pass it on.
    """

    def __init__(self, stream: Any) -> None:
        self.quirks: list[str] = []
        unpacked = _unpacked(stream, self.quirks)
        self._events = _events(unpacked, self.quirks)
        self._held: deque[Line | None] = deque()

    def block(self) -> Iterator[Line]:
        """The lines up to the end of the block. If the caller stops early, the next call goes on from there."""
        while self._held:
            held = self._held.popleft()
            if held is None:
                return
            yield held
        for line in self._events:
            if line is None:
                return
            yield line

    def put_back(self, line: Line) -> None:
        """Give a line again; the caller goes on with a new :meth:`block`."""
        self._held.appendleft(line)

    def peek(self, n_lines: int = 200, n_bytes: int = 1 << 16) -> list[Line]:
        """The next lines of the block, without taking them: at most so many, or little more than so many bytes."""
        seen: list[Line | None] = []
        while len(seen) < n_lines and n_bytes > 0 and None not in seen[-1:]:
            line = self._held.popleft() if self._held else next(self._events, None)
            seen.append(line)
            n_bytes -= len(line[1]) if line else 0
        self._held.extendleft(reversed(seen))
        return [line for line in seen if line is not None]

    def next_block(self) -> bool:
        """Go to the next line that is not blank, over the end of blocks if need be; False if there is none."""
        while self._held and not (self._held[0] and self._held[0][1].strip()):
            self._held.popleft()
        if self._held:
            return True
        for line in self._events:
            if line and line[1].strip():
                self._held.appendleft(line)
                return True
        return False


@contextmanager
def opened(source: Source) -> Iterator[tuple[Lines, str]]:
    """The lines of a path, of ``"-"`` (standard input) or of an open stream, and the name for messages.

    Raises MSAError, with that name, if it cannot be opened; :class:`Lines` raises it if it cannot be read.
    """
    if hasattr(source, "read"):
        yield Lines(source), str(getattr(source, "name", "<stream>"))
    elif source == "-":
        yield Lines(sys.stdin.buffer), "<stdin>"
    else:
        name = os.fspath(source)
        try:
            stream = open(name, "rb")  # noqa: SIM115
        except (OSError, ValueError) as error:
            raise MSAError(_unreadable(error), file=name) from error
        with stream:
            yield Lines(stream), name


def _unreadable(error: BaseException) -> str:
    return f"the file cannot be read: {getattr(error, 'strerror', None) or error}."


_MAGIC: Final = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstandard"}


def packed_as(head: bytes) -> str | None:
    """The name of the compression that data with this beginning has, or None."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


class _Rewound:
    """A binary stream whose first bytes have been read and are given again; text is turned into bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._head = b""
        while len(self._head) < 6 and (piece := self._read(6)):
            self._head += piece
        self.head = self._head

    def read(self, n: int = -1) -> bytes:
        if not self._head:
            return self._read(n)
        n = len(self._head) if n < 0 else n
        piece, self._head = self._head[:n], self._head[n:]
        return piece

    def _read(self, n: int) -> bytes:
        data = self._stream.read(n)
        if isinstance(data, str):
            return data.encode("utf-8", "surrogateescape")
        if isinstance(data, bytes | bytearray | memoryview):
            return bytes(data)
        raise MSAError(f"the stream gave {type(data).__name__} and not bytes or text; open the file with mode 'rb'.")


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "gzip": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    "bzip2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}


def _unpacked(stream: Any, quirks: list[str]) -> Iterator[bytes]:
    """The content in pieces."""
    try:
        rewound = _Rewound(stream)
        kind = packed_as(rewound.head)
        reader: Any = rewound
        unpacking_errors: tuple[type[Exception], ...] = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
        if kind == "zstandard":
            reader, zstd_error = _zstd_reader(rewound)
            unpacking_errors += (zstd_error,)
        elif kind is not None:
            reader = _READERS[kind](rewound)
    except (OSError, ValueError) as error:
        if isinstance(error, MSAError):
            raise
        raise MSAError(_unreadable(error)) from error
    if kind is not None:
        quirks.append(f"compressed ({kind})")
    while True:
        try:
            piece = reader.read(_CHUNK)
        except MSAError:
            raise
        except unpacking_errors as error:
            raise MSAError(_unreadable(error)) from error
        if not piece:
            return
        yield piece


def _zstd_reader(stream: _Rewound) -> tuple[Any, type[Exception]]:
    try:
        from compression import zstd  # Python 3.14 and later

        return zstd.ZstdFile(stream, mode="rb"), zstd.ZstdError
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        raise MSAError(
            "the file is compressed with zstandard, and the package that unpacks it is not installed. Install it with "
            "pip install 'evoattn[msa]', or unpack the file with the program zstd."
        ) from None
    return _ZstdReader(stream, zstandard), zstandard.ZstdError


class _ZstdReader:
    """What ``zstandard``'s own reader is, but for this: it notices a file that ends too early."""

    def __init__(self, stream: _Rewound, zstandard: Any) -> None:
        self._stream = stream
        self._frames = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._frame: Any = None
        self._packed = b""

    def read(self, n: int) -> bytes:
        """The next piece, of any size; b"" at the end."""
        while True:
            self._packed = self._packed or self._stream.read(n)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
                return b""
            self._frame = self._frame or self._frames.decompressobj()
            few, self._packed = self._packed[:1024], self._packed[1024:]  # a byte may unpack to 30 kB
            piece = self._frame.decompress(few)
            if self._frame.eof:
                self._packed = self._frame.unused_data + self._packed
                self._frame = None
            if piece:
                return bytes(piece)


def _events(pieces: Iterator[bytes], quirks: list[str]) -> Iterator[Line | None]:
    """Lines without their ends, numbered, and None for each NUL byte."""
    found: set[str] = set()
    number = 1
    for text in _whole_lines(_without_mark(pieces, quirks)):
        if b"\r" in text:
            found.add("line ends of Windows or old Macs (CR)")
        if b"\0" in text:
            found.add("NUL bytes (taken for the end of a block)")
        for i, part in enumerate(text.split(b"\0")):
            if i:
                yield None
            lines = part.splitlines()
            yield from enumerate(lines, number)
            number += len(lines)
    quirks.extend(sorted(found))


def _without_mark(pieces: Iterator[bytes], quirks: list[str]) -> Iterator[bytes]:
    """Take a byte order mark away, and refuse what is no text of single bytes."""
    first = b""
    while len(first) < 256 and (piece := next(pieces, b"")):  # a stream may give a few bytes at a time
        first += piece
    if first.startswith((b"\xff\xfe", b"\xfe\xff")) or first[:256].count(b"\0") * 3 > len(first[:256]) > 3:
        raise MSAError("the text is UTF-16, or no text at all; save it as UTF-8 or ASCII.")
    if (kind := packed_as(first)) is not None:
        raise MSAError(f"the file is compressed twice: what was unpacked is compressed with {kind}. Unpack it once.")
    if first.startswith(b"\xef\xbb\xbf"):
        quirks.append("a byte order mark")
        first = first[3:]
    yield first
    yield from pieces


def _whole_lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same text, cut between lines only."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        # A CR at the very end may be half of a CR LF: it waits for the next piece.
        searched = piece.removesuffix(b"\r")
        cut = max(map(searched.rfind, (b"\n", b"\r", b"\0"))) + 1
        held.append(piece[:cut] if cut else piece)
        size += len(held[-1])
        if size > _LONGEST_LINE:
            raise MSAError("a line is longer than 1 GB, so this is no alignment.")
        if cut:
            yield b"".join(held)
            held, size = [piece[cut:]], len(piece) - cut
    yield b"".join(held)
