"""Sizes of memory in the words that people use."""

import math
import re

from evoattn.errors import ConfigError

_UNITS = {"": 1, "B": 1, **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}}
_UNITS |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", 1)}


def parse_bytes(size: int | str) -> int:
    """Bytes of a size such as ``"8GiB"``, ``"500 MB"`` or a plain number of bytes; binary units have an i.

    Raises:
        ConfigError: it is no such size, or not above 0.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    if isinstance(size, bool) or found is None or found[2].upper() not in _UNITS or not float(found[1]):
        raise ConfigError(f"a memory size is {size!r}; write a number above 0 with a unit: 8GiB, 500MiB, 16GB, or plain bytes.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def show_bytes(size: int) -> str:
    """The size in GiB, or MiB below 1 GiB; rounded up, since it is compared with what there is."""
    gib = size / 2**30
    if gib >= 10:
        return f"{math.ceil(gib):,} GiB"
    return f"{math.ceil(gib * 100) / 100:.2f} GiB" if gib >= 1 else f"{math.ceil(size / 2**20):,} MiB"
