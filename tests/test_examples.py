"""Runs every file in examples/: an example that does not run is wrong."""

import runpy
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[1]
SAYS = {
    "build_stack.py": ["msa [2, 16, 24, 64], pair [2, 24, 24, 32], single [2, 24, 96]", "all with a gradient: True"],
    "run_on_msa.py": ["4 rows x 146 columns", "msa    [4, 146, 32]", "evoformer.blocks.1.msa_row.attn, query row, head 0: residue"],
}


def test_every_example_is_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_runs_and_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In an empty folder that has the project's data/."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    printed = capsys.readouterr().out
    assert [text for text in SAYS[name] if text not in printed] == []
    if name == "run_on_msa.py":
        assert load_file("representations.safetensors")["pair"].shape == (146, 146, 16)
