"""Kernels with a mistake in them: what tests of kernels must find out."""

import importlib.util
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from evoattn.ops.triton import launch


def break_kernels(monkeypatch: pytest.MonkeyPatch, module: str, right: str, wrong: str) -> None:
    """Until the test ends, `module` of evoattn.ops.triton is itself with `wrong` in place of `right`, which must stand there once."""
    source = Path(launch.__file__).with_name(f"{module}.py").read_text()
    assert source.count(right) == 1
    with TemporaryDirectory() as folder:  # triton reads the source of a kernel from its file
        path = Path(folder) / f"{module}.py"
        path.write_text(source.replace(right, wrong))
        spec = importlib.util.spec_from_file_location(f"broken_{module}", path)
        assert spec is not None and spec.loader is not None
        broken = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(broken)
    monkeypatch.setattr(f"evoattn.ops.triton.{module}", broken, raising=False)
