"""The page of largest errors: what is collected, what counts as skipped, what the page shows."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests import parity


def lines(*records: tuple[str, str, str, float]) -> list[str]:
    return [json.dumps(record) for record in records]


def test_records_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "RECORDS", tmp_path / "parity.jsonl")
    parity.record("a", "rand", "out/pair", 1e-6)
    parity.record("a", "rand", "out/msa", 4e-5)
    parity.record("a", "rand", "out/msa", 3e-6)  # the test ran again
    assert parity.errors((tmp_path / "parity.jsonl").read_text().splitlines()) == {"a": {("rand", "out"): 3e-6}}
    with pytest.raises(ValueError, match="'pair' must begin with one of out, sub"):
        parity.record("a", "rand", "pair", 1e-6)


def test_contents_of_a_file(tmp_path: Path) -> None:
    keys = ["in/x", "param/out//w", "rand/mask", "rand/out/x", "row/pad/out", "pad/grad_valid/x", "sub/norm/out", "meta_json"]
    np.savez(tmp_path / "a.npz", **{key: np.zeros(1) for key in keys})
    assert parity.contents(tmp_path / "a.npz") == {("rand", "out"), ("row/pad", "out"), ("pad", "grad_valid"), ("", "sub")}


def test_what_was_not_compared_is_skipped() -> None:
    files = {"a": {("rand", "out"), ("rand", "grad")}, "b": {("", "sub")}}
    largest = parity.errors(lines(("a", "rand", "out/x", 1e-6)))
    assert parity.skipped(files, largest) == ["a: rand/grad", "b: sub"]


def test_the_page() -> None:
    files = {"a": {("rand", "out"), ("pad", "grad_valid")}, "b": {("ones", "out")}}
    some = parity.page(files, parity.errors(lines(("a", "rand", "out/x", 2e-6), ("a", "pad", "grad_valid/x", 3e-6))))
    assert "| a | 2.0e-06 |  | 3.0e-06 |  |" in some and "| b | not compared |" in some and "1 skipped comparisons:\n- b: ones/out" in some
    whole = parity.page({"a": files["a"]}, parity.errors(lines(("a", "rand", "out/x", 2e-6), ("a", "pad", "grad_valid/x", 3e-6))))
    assert "1 files, 0 skipped comparisons.\n" in whole
