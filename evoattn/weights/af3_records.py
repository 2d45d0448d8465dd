"""AlphaFold 3's parameter file: records one after the other, usually compressed with zstandard; or several files that are one together.

A record is five little-endian int32 (bytes of scope, name and dtype; number of axes; bytes of data), then scope, name, dtype, the sizes of
the axes as int32, and the data in C order (google-deepmind/alphafold3, ``model/params.py``). We call its array ``<scope>//<name>``.
"""

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from evoattn.errors import WeightsError
from evoattn.weights.af3_parts import joined

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Header:
    """What stands before the data of a record; `size` is its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[io.BufferedIOBase]:
    """The records of all parts, decompressed on the way."""
    with joined(paths) as files:
        plain = io.BufferedReader(files, CHUNK)
        if not plain.peek(4).startswith(ZSTD_MAGIC):
            yield plain
            return
        zstandard = _zstandard(paths[0])
        try:
            with zstandard.ZstdDecompressor().stream_reader(plain, read_across_frames=True) as stream:
                yield io.BufferedReader(stream, CHUNK)
        except zstandard.ZstdError as error:
            raise ValueError(f"zstandard: {error}") from error


def headers(paths: Sequence[Path]) -> Iterator[Header]:
    """The header of every record. Raises ValueError where a record is incomplete or contradicts itself."""
    with opened(paths) as stream:
        while (header := _header(stream)) is not None:
            left = header.size
            while left:
                got = stream.read(min(left, CHUNK))
                if not got:
                    raise ValueError(f"the file ends in the data of {header.name}")
                left -= len(got)
            yield header


def tensors(paths: Sequence[Path], names: set[str]) -> Iterator[tuple[str, Tensor]]:
    """The arrays called `names`, in the order of the file."""
    with opened(paths) as stream:
        while (header := _header(stream)) is not None:
            data = _exactly(stream, header.size, header.name)
            if header.name in names:
                flat = torch.frombuffer(data, dtype=_dtype(header)) if data else torch.empty(0, dtype=_dtype(header))
                yield header.name, flat.reshape(header.shape)


def write(path: Path, arrays: Iterable[tuple[str, Tensor]], *, compressed: bool) -> None:
    """Write arrays called ``<scope>//<name>`` as records. Raises WeightsError if zstandard is needed and not there."""
    with path.open("wb") as file:
        stream = _zstandard(path).ZstdCompressor().stream_writer(file, closefd=False) if compressed else file
        for name, array in arrays:
            words = [*(part.encode("utf-8") for part in name.rsplit("//", 1)), str(array.dtype).removeprefix("torch.").encode("utf-8")]
            data = array.contiguous().reshape(-1).view(torch.uint8).numpy()
            lengths = struct.pack("<5i", *map(len, words), array.dim(), data.size)
            stream.write(lengths + b"".join(words) + struct.pack(f"<{array.dim()}i", *array.shape))
            stream.write(data.data)
        if compressed:
            stream.close()


def _zstandard(path: Path) -> Any:
    try:
        import zstandard  # optional: the extra `weights`
    except ImportError:
        raise WeightsError(f"{path} is compressed with zstandard; for that, pip install 'evoattn[weights]' (or zstandard).") from None
    return zstandard


def _header(stream: io.BufferedIOBase) -> Header | None:
    first = stream.read(1)
    if not first:
        return None
    lengths = struct.unpack("<5i", first + _exactly(stream, 19, "a record"))
    if min(lengths) < 0 or max(lengths[:4]) > 1 << 16:
        raise ValueError(f"a record begins with the lengths {lengths}: these are no AlphaFold 3 records")
    scope, name, dtype = (_exactly(stream, length, "a name").decode("utf-8") for length in lengths[:3])
    shape = struct.unpack(f"<{lengths[3]}i", _exactly(stream, 4 * lengths[3], "a shape"))
    header = Header(f"{scope}//{name}", dtype, shape, lengths[4])
    if prod(shape) * _dtype(header).itemsize != header.size:
        raise ValueError(f"{header.name} has {header.size} bytes, which is not {shape} of {dtype}")
    return header


def _dtype(header: Header) -> torch.dtype:
    found = getattr(torch, header.dtype, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{header.name} has dtype {header.dtype!r}, which is no array of numbers")
    return found


def _exactly(stream: io.BufferedIOBase, size: int, what: str) -> bytearray:
    data = bytearray(size)
    free = memoryview(data)
    while free:
        got = stream.readinto(free)
        if not got:
            raise ValueError(f"the file ends in the middle of {what}")
        free = free[got:]
    return data
