"""Reference files of stacks: from the shared folder, or the part of them that the project has itself."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.helpers import GOLDEN

Read = Callable[[str, str], dict[str, np.ndarray]]


@pytest.fixture
def read(request: pytest.FixtureRequest) -> Read:
    """(name, needed) -> the arrays of a reference file; skips where none with keys that begin with `needed` is at hand."""

    def arrays(name: str, needed: str) -> dict[str, np.ndarray]:
        full = GOLDEN.parents[2] / "shared" / "golden" / f"{name}.npz"
        path = full if full.exists() else GOLDEN / f"{name}.npz"
        found: dict[str, np.ndarray] = {}
        if path.exists():
            with np.load(path, allow_pickle=False) as file:
                found = {key: file[key] for key in file.files}
        if not any(key.startswith(needed) for key in found):
            request.getfixturevalue("shared")
        return found

    return arrays
