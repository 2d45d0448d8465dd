"""Where the tests of the commands run."""

from pathlib import Path

import pytest

from evoattn.runs import pipeline
from tests.cli.commands import FAMILY_TEXT


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and no matplotlib: a picture takes longer than all the rest of a small run."""
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None)
    (tmp_path / "family.a3m").write_text(FAMILY_TEXT)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
