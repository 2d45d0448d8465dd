"""Runs every Python block of README.md and docs/: documentation that does not run is wrong.

The blocks of one file share their names and run in order, in an empty folder that has the project's `data/` in it. A
block opened with ```python no-run (one that needs a GPU, or hours) is only compiled.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python(?P<no_run> no-run)?[ ]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


def python_blocks(text: str) -> list[tuple[str, bool]]:
    """(source, to be run) of each Python block; empty lines before it keep the file's line numbers in a traceback."""
    return [
        ("\n" * text.count("\n", 0, block.start("code")) + block["code"], block["no_run"] is None)
        for block in BLOCK.finditer(text)
    ]


def execute(file: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for source, to_be_run in python_blocks(file.read_text(encoding="utf-8")):
        code = compile(source, str(file), "exec")
        if to_be_run:
            exec(code, names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_python_blocks_run(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    execute(file)


def test_blocks_share_names_and_fail_on_their_own_line(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text(
        "# P\n```python\nx = 1\n```\n```python no-run\nx = 2\n```\n```text\n...\n```\n```python\nassert x == 2\n```\n"
    )
    with pytest.raises(AssertionError) as failure:
        execute(file)
    assert failure.traceback[-1].lineno + 1 == 12
