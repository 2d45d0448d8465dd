"""AlphaFold 3's parameters in several files, cut anywhere: which files they are, and reading them as one."""

import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from evoattn.errors import WeightsError

NAME = re.compile(r"(?P<model>.+?)(\.(?P<number>\d+))?(?P<ending>\.bin(\.zst)?)(\.(?P<last>\d+))?")
"""``af3.bin.zst``, or parts called ``af3.0.bin.zst`` or ``af3.bin.zst.0``; likewise ``.bin``."""


def parts(path: Path) -> list[Path]:
    """The files, in order, of which `path` is one; or for which it stands, as their folder or as their name without the number.

    A file by itself is its only part; [] where `path` is no file of such a name and stands for none.

    Raises:
        WeightsError: the folder holds several models.
    """
    place = _place(path)
    if path.is_dir():
        found = _models(path)
        if len(found) > 1:
            raise WeightsError(f"{path} holds the parameters of several models: {', '.join(sorted(found))}; give the path of one.")
    elif place is None or not path.parent.is_dir():
        return []
    else:
        found = {place[0]: _models(path.parent).get(place[0], {})}
    files = next(iter(found.values()), {})
    whole = files.pop(None, None)
    if whole is not None and (path == whole or path.is_dir()):
        return [whole]
    return [files[number] for number in sorted(number for number in files if number is not None)]


def refuse_gaps(files: Sequence[Path]) -> None:
    """Raise WeightsError if a number between those of the parts, or 0 before them, has no file."""
    numbers = [place[1] for place in map(_place, files) if place is not None and place[1] is not None]
    missing = sorted(set(range(max(numbers, default=0))) - {*numbers, *([0] if 1 in numbers else [])})
    if missing:
        there = ", ".join(file.name for file in files)
        raise WeightsError(f"parts of AlphaFold 3's parameters are missing: there are {there}, but not {', '.join(map(str, missing))}.")


def _models(folder: Path) -> dict[str, dict[int | None, Path]]:
    """Model and ending -> number of the part, or None for a whole file -> file."""
    found: dict[str, dict[int | None, Path]] = defaultdict(dict)
    for file in folder.iterdir():
        if (place := _place(file)) is not None and file.is_file():
            found[place[0]][place[1]] = file
    return dict(found)


def _place(path: Path) -> tuple[str, int | None] | None:
    match = NAME.fullmatch(path.name)
    if match is None:
        return None
    number = match["number"] or match["last"]
    return f"{match['model']}{match['ending']}", None if number is None else int(number)


class Joined(io.RawIOBase):
    """Open files, one read after the other."""

    def __init__(self, files: Sequence[io.RawIOBase]) -> None:
        self._left = list(files)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while self._left:
            if got := self._left[0].readinto(buffer):
                return got
            del self._left[0]
        return 0


@contextmanager
def joined(paths: Sequence[Path]) -> Iterator[Joined]:
    with ExitStack() as stack:
        yield Joined([stack.enter_context(path.open("rb", buffering=0)) for path in paths])
