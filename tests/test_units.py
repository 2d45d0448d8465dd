"""Sizes of memory, read and shown."""

import pytest

from evoattn import ConfigError
from evoattn.units import parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 * 2**30), ("1.5 gib", 3 * 2**29), ("500MB", 500_000_000), (" 2 TiB", 2**41), ("7", 7), (7, 7), ("3b", 3)]
)
def test_read(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "0", "8 gigs", "1,5GiB", True, "nanGiB"])
def test_refused(text: str | int) -> None:
    with pytest.raises(ConfigError, match=r"a memory size is .*; write a number above 0 with a unit: 8GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(("size", "text"), [(1, "1 MiB"), (2**20 + 1, "2 MiB"), (2**30, "1.00 GiB"), (2**34, "16 GiB")])
def test_shown(size: int, text: str) -> None:
    assert show_bytes(size) == text
