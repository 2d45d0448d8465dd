"""What every test gets: shapes checked at run time, fixed seeds, two threads, and the reference files if present."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch

from tests.helpers import GOLDEN, Read

# Nothing above imports evoattn: from here on, every module of it is loaded with its annotations enforced on each call.
jaxtyping.install_import_hook("evoattn", "beartype.beartype")

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("MPLBACKEND", "Agg")  # no test opens a window
os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton: kernels run as Python, on any machine
torch.set_num_threads(1)  # tests are small: threads only wait for each other, and one gives the same order of sums everywhere
if not torch.cuda.is_available():  # some CUDA kernels under test have no deterministic form
    torch.use_deterministic_algorithms(True)  # also fills torch.empty with NaN, which shows reads of unwritten memory


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference numbers and alignments beside the project; skips the test where it is absent."""
    path = ROOT.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"no reference files at {path}")
    return path


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


@pytest.fixture
def no_type_checks() -> Iterator[None]:
    """Annotations unchecked, as in a user's session: for tests of the errors that evoattn itself raises."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
