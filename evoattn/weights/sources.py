"""Files of parameters as names, shapes and tensors read one at a time. Nothing in a file is executed."""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor

from evoattn.errors import WeightsError
from evoattn.weights import af3_parts, af3_records, checkpoints
from evoattn.weights.family import Shapes

Arrays = Mapping[str, Any]
CHUNK = 1 << 20  # bytes
NUMPY = b"\x93NUMPY"
KINDS = "npz, torch checkpoint, safetensors, AlphaFold 3's .bin.zst"


@dataclass(frozen=True)
class Source:
    """The arrays of a file, or of a mapping, before they are read.

    Attributes:
        name: for messages. kind: the format, in words.
        shapes: of every array. dtypes: likewise, as torch or numpy call them.
        read: names -> (name, tensor) of each, one at a time; in the order asked for, or in that of the file where it can only be read so.
        check: names -> raises WeightsError where the file is damaged there; read afterwards does not fail.
        taken: which of several sets of parameters in the file this is, and by what rule; "" where there is one.
        metadata: what the file says of itself, for safetensors.
    """

    name: str
    kind: str
    shapes: Shapes
    dtypes: Mapping[str, str]
    read: Callable[[Iterable[str]], Iterator[tuple[str, Tensor]]]
    check: Callable[[Iterable[str]], None] = lambda names: None
    taken: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def open_source(source: "Source | str | Path | Arrays", entry: str | None = None) -> Source:
    """Look into a file of parameters, or take a mapping of names to arrays, nested as in a checkpoint or flat.

    The format is told by what the file holds, not by its name. AlphaFold 3's parameters may be in several files (``af3.0.bin.zst``, ...):
    name any of them, their folder, or the name without the number. `entry` names one of several sets of parameters in a torch checkpoint,
    such as "state_dict" or "ema.params"; by default see :func:`evoattn.weights.checkpoints.choose`.

    Raises:
        WeightsError: there is no such file, or it is damaged, or holds no arrays of numbers.
    """
    if isinstance(source, Source):
        return source
    if isinstance(source, Mapping):
        return _from_mapping("the mapping", "mapping", source, entry)
    path = Path(source)
    parts = af3_parts.parts(path)
    if parts and parts != [path] and not _is_of_another_format(_head(parts[0])):
        af3_parts.refuse_gaps(parts)
        return _open_records(path, parts)
    head = _head(path)
    if head[8:9] == b"{":  # after the length of its header, of which the first bytes may look like anything
        return _open_safetensors(path)
    if head.startswith(b"PK") and not _is_checkpoint(path):
        return _open_npz(path)
    if head.startswith((b"PK", b"\x80")):  # the latter a bare pickle: how torch saved until release 1.6
        return _from_mapping(str(path), "torch checkpoint", checkpoints.read(path), entry)
    if head.startswith(af3_records.ZSTD_MAGIC) or path.name.endswith(".bin"):
        return _open_records(path, [path])
    if head.startswith(NUMPY):
        raise WeightsError(f"{path} cannot be read as parameters: it is a single array without a name. Save it in an npz.")
    what = f"it begins with {head!r}" if head else "it is empty"
    raise WeightsError(f"{path} cannot be read as parameters: {what}; give one of: {KINDS}.")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except FileNotFoundError:
        raise WeightsError(f"there is no file {path}; give the path of a parameter file ({KINDS}), e.g. a params_model_*.npz.") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error}); give the path of a parameter file ({KINDS}).") from error


def _is_of_another_format(head: bytes) -> bool:
    """Not AlphaFold 3's, whatever the name says: torch checkpoints are called ``.bin`` too."""
    return head[8:9] == b"{" or head.startswith((b"PK", b"\x80", NUMPY))


def _is_checkpoint(path: Path) -> bool:
    """Whether a file is a zip archive of torch.save, and not an npz."""
    try:
        with ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, BadZipFile) as error:
        raise WeightsError(f"{path} cannot be read as an npz or a torch checkpoint: {_damage(error)}") from error


def _open_npz(path: Path) -> Source:
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
            if strangers := [name for name in names if not name.endswith(".npy")]:
                raise ValueError(f"its entry {strangers[0]} is no array")
            headers = {name.removesuffix(".npy"): _npy_header(archive, name) for name in names}
    except (OSError, EOFError, ValueError, BadZipFile, zlib.error) as error:
        raise WeightsError(f"{path} cannot be read as an npz of plain arrays: {_damage(error)}") from error
    if strangers := [name for name, (_, dtype) in headers.items() if dtype.kind not in "biufc"]:
        raise WeightsError(f"{strangers[0]} is no array of numbers (it holds {headers[strangers[0]][1]}) in {path}; nothing was read.")

    def read(wanted: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        with ZipFile(path) as archive:
            for name in wanted:
                with archive.open(f"{name}.npy") as member:
                    yield name, _tensor(name, np.lib.format.read_array(member, allow_pickle=False))

    def check(wanted: Iterable[str]) -> None:
        """Every byte against its checksum."""
        with ZipFile(path) as archive:
            for name in wanted:
                try:
                    with archive.open(f"{name}.npy") as member:
                        while member.read(CHUNK):
                            pass
                except (OSError, EOFError, BadZipFile, zlib.error) as error:
                    raise WeightsError(f"{path} is damaged at {name}: {_damage(error)}") from error

    shapes = {name: shape for name, (shape, _) in headers.items()}
    return Source(str(path), "npz", shapes, {name: str(dtype) for name, (_, dtype) in headers.items()}, read, check)


def _damage(error: Exception) -> str:
    return f"{error}. If the file was cut short or changed on its way (truncated download), get it again."


def _npy_header(archive: ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = header(member)
        return shape, dtype


def _open_safetensors(path: Path) -> Source:
    from safetensors import SafetensorError, safe_open  # here: importing evoattn loads torch alone

    try:
        file = safe_open(path, framework="pt")  # open, and mapped, for as long as somebody may read
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        dtypes = {name: part.get_dtype() for name, part in slices.items()}
        metadata = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors: {_damage(error)}") from error

    def read(wanted: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, file.get_tensor(name)) for name in wanted)

    return Source(str(path), "safetensors", shapes, dtypes, read, metadata=metadata)


def _open_records(path: Path, parts: Sequence[Path]) -> Source:
    try:
        headers = {header.name: header for header in af3_records.headers(parts)}
    except (ValueError, struct.error, OSError) as error:
        raise WeightsError(f"{path} cannot be read as AlphaFold 3's records: {_damage(error)}") from error

    def read(wanted: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return af3_records.tensors(parts, set(wanted))

    shapes = {name: header.shape for name, header in headers.items()}
    kind = "AlphaFold 3 records" + (f" in {len(parts)} files" if len(parts) > 1 else "")
    return Source(str(path), kind, shapes, {name: header.dtype for name, header in headers.items()}, read)


def _from_mapping(name: str, kind: str, content: Arrays, entry: str | None) -> Source:
    arrays, taken = content, ""
    if kind != "mapping" or entry is not None or any(isinstance(value, Mapping) for value in content.values()):
        arrays, taken = checkpoints.choose(content, name, entry)
    tensors = {key: _tensor(key, array) for key, array in arrays.items()}

    def read(wanted: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((key, tensors[key]) for key in wanted)

    shapes = {key: tuple(x.shape) for key, x in tensors.items()}
    return Source(name, kind, shapes, {key: str(x.dtype).removeprefix("torch.") for key, x in tensors.items()}, read, taken=taken)


def _tensor(name: str, array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # a copy only where torch needs one
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{name} is no array of numbers ({error}); nothing was read.") from error


