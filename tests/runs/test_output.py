"""A run's folder appears whole or not at all, and nothing of others is lost."""

import os
from pathlib import Path

import pytest

from evoattn.errors import ConfigError
from evoattn.runs.output import new_folder, refuse_output


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write(folder: Path, text: str, *, force: bool = False) -> None:
    with new_folder(folder, force=force) as temporary:
        (temporary / "run.json").write_text(text)


def test_appears_when_the_body_ends(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with new_folder(target, force=False) as temporary:
        (temporary / "run.json").write_text("1")
        assert not target.exists()
        assert temporary.parent == target.parent, "beside it, or the move would copy"
    assert names(tmp_path) == ["a", "a/b", "a/b/run.json"]


def test_an_empty_folder_is_no_earlier_run(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", "1")
    assert names(tmp_path) == ["out", "out/run.json"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_nothing_is_left_when_the_body_fails(failure: type[BaseException], tmp_path: Path) -> None:
    write(tmp_path / "out", "before")
    with pytest.raises(failure), new_folder(tmp_path / "out", force=True) as temporary:
        (temporary / "run.json").write_text("half")
        raise failure
    assert names(tmp_path) == ["out", "out/run.json"]
    assert (tmp_path / "out" / "run.json").read_text() == "before"


def test_the_earlier_run_comes_back_when_the_move_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", "before")
    replace = os.replace

    def failing(source: Path, target: Path) -> None:
        if source.name.endswith(".new"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", "after", force=True)
    assert names(tmp_path) == ["out", "out/run.json"]
    assert (tmp_path / "out" / "run.json").read_text() == "before"


def test_force_replaces_the_whole_folder(tmp_path: Path) -> None:
    write(tmp_path / "out", "before")
    (tmp_path / "out" / "representations.npz").write_text("of the earlier run")
    with pytest.raises(ConfigError, match=r"holds an earlier run.*--force"):
        refuse_output(tmp_path / "out", force=False)
    write(tmp_path / "out", "after", force=True)
    assert names(tmp_path) == ["out", "out/run.json"]
    assert (tmp_path / "out" / "run.json").read_text() == "after"


def test_what_others_wrote_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "out", "before")
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"did not write \(thesis.tex\).*--out"):
        refuse_output(tmp_path / "out", force=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="exists and is no folder"):
        refuse_output(tmp_path / "file", force=True)


def test_a_run_that_ended_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds an earlier run"), new_folder(tmp_path / "out", force=False):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "run.json").write_text("of another process")
    assert (tmp_path / "out" / "run.json").read_text() == "of another process"
    assert names(tmp_path) == ["out", "out/run.json"]
