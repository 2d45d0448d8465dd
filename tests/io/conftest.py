"""What the tests of the reader share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from evoattn.io import MSA, read_msa


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., MSA]:
    """(content, name, options of read_msa) -> the alignment that a file with that content and name holds."""

    def read(content: str | bytes, *, name: str = "family.txt", **options: object) -> MSA:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_msa(path, **options)

    return read
