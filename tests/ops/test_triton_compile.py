"""The Triton kernels compile for cards that are not there, within the limits of those cards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.compile_kernels import COVERING, DTYPES, SHARED_MEMORY, Usage

pytest.importorskip("triton", reason="triton is not installed")


def test_kernels_fit_every_architecture() -> None:
    """In a process of its own: in this one kernels run as Python."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "tests.ops.compile_kernels", "--covering"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    per_op = {"attention": 4, "triangle": 2}
    assert len(done.stdout.splitlines()) == sum(per_op[variant.op] for variant in COVERING) <= 24


def test_some_cover_every_architecture_and_dtype() -> None:
    assert {variant.arch for variant in COVERING} == set(SHARED_MEMORY)
    assert {variant.dtype for variant in COVERING} == set(DTYPES)


def test_limits() -> None:
    assert Usage("forward", 255, 64, 99 * 1024).over(86) == []
    broken = ["spills 65 bytes per thread, at most 64", "needs 102400 bytes of shared memory, there are 101376"]
    assert Usage("forward", 255, 65, 100 * 1024).over(86) == broken
    assert Usage("forward", 255, 0, 100 * 1024).over(90) == []
