"""``evoattn contacts``: what it writes, says and refuses."""

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evoattn.contacts import pipeline
from evoattn.io import write_msa
from tests.cli.commands import DATA, evoattn, there
from tests.contacts.potts import CONTACTS, planted_family
from tests.train.test_structure import chain, written

FAST = "--heads", 8, "--steps", 20, "--batch", 64


@pytest.fixture
def family(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A family with planted contacts beside the folder in which the test runs, with two chains of a structure; no matplotlib."""
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None)
    msa = planted_family(400)
    write_msa(msa, work.parent / "planted.a3m")
    written(work.parent / "planted.pdb", chain(msa.query[:20]) + chain(msa.query, name="B"))
    return work.parent / "planted.a3m"


def contacts(*arguments: object) -> dict[str, Any]:
    result = evoattn("contacts", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "contacts.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_is_written(family: Path, work: Path) -> None:
    record = contacts(family, *FAST, "--seed", 3)
    folder = work / "planted_contacts"
    assert there(folder) == ["contacts.csv", "contacts.npz", "run.json"] and there(work) == [folder.name]
    assert json.loads((folder / "run.json").read_text()) == record
    assert record["input"]["files"] == [{"path": str(family), "sha256": hashlib.sha256(family.read_bytes()).hexdigest()}]
    assert record["settings"]["fit"]["seed"] == 3 and len(record["losses"]) == 20 and record["precision"] == []
    assert set(record["seconds"]) == {"read", "weigh rows", "fit", "write"}
    query = record["input"]["query"]["letters"]
    with np.load(folder / "contacts.npz") as arrays:
        assert sorted(arrays) == ["query", "scores"] and str(arrays["query"]) == query
        scores = arrays["scores"]
    assert np.array_equal(scores, scores.T) and (np.diag(scores) == 0).all()
    rows = table(folder)
    assert len(rows) == 18 * 19 // 2 and [int(row["rank"]) for row in rows] == list(range(1, len(rows) + 1))
    for before, row in zip([None, *rows], rows, strict=False):
        i, j = int(row["i"]) - 1, int(row["j"]) - 1
        assert (row["letter_i"], row["letter_j"], int(row["separation"])) == (query[i], query[j], j - i) and j - i >= 6
        assert float(row["score"]) == pytest.approx(scores[i, j], rel=1e-5)
        assert before is None or float(before["score"]) >= float(row["score"])


def test_the_same_seed_gives_the_same_files(family: Path, work: Path) -> None:
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        contacts(family, *FAST, "--seed", seed, "--out", out, "--structure", family.with_suffix(".pdb"))
    for name in ("contacts.csv", "contacts.npz"):
        a, b, c = ((work / out / name).read_bytes() for out in "abc")
        assert a == b and a != c, name


def test_dca_finds_the_planted_contacts(family: Path, work: Path) -> None:
    record = contacts(family, "--method", "dca")
    far = {(i + 1, j + 1) for i, j in CONTACTS if j - i >= 6}
    best = {(int(row["i"]), int(row["j"])) for row in table(work / "planted_contacts")[: len(far)]}
    assert len(best & far) >= len(far) - 2 and record["losses"] == [] and record["settings"]["fit"] is None


def test_with_a_structure(family: Path, work: Path) -> None:
    """Chain A lacks the last four residues; in a straight chain only |i - j| <= 2 touch, and the copy lies upon it."""
    record = contacts(family, *FAST, "--structure", family.with_suffix(".pdb"), "--chain", "A")
    account = record["structure"]["account"]
    assert account["observed"] == 20 and account["unobserved"] == [21, 22, 23, 24] and account["copies"] == ["B"]
    assert [(row["range"], row["top"]) for row in record["precision"]][:3] == [("all", "L"), ("all", "L/2"), ("all", "L/5")]
    assert all(row["correct"] == 0 for row in record["precision"])
    rows = table(work / "planted_contacts")
    assert {row["contact"] for row in rows} == {"", "0"} and {row["contact_across_chains"] for row in rows} == {"0"}
    row = next(row for row in rows if (row["i"], row["j"]) == ("2", "9"))
    assert (row["number_i"], row["number_j"]) == ("2", "9") and float(row["distance"]) == pytest.approx(7 * 3.8, abs=0.5)
    row = next(row for row in rows if row["j"] == "23")
    assert row["number_j"] == "" == row["distance"]


def test_the_summary(family: Path) -> None:
    result = evoattn("contacts", family, *FAST, "--structure", family.with_suffix(".pdb"))
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.split())  # where lines are broken depends on the length of the folder's name
    for words in (
        "400 rows x 24 columns, query 'r0'", "chain B (of 2 the one most like the query)", "8 heads of 32, 20 steps of 64 rows, seed 0",
        "Precision |i - j|", "long (>= 24)", "no pairs", "contacts.png was not drawn",
    ):  # fmt: skip
        assert words in shown, words


def test_a_shallow_alignment_is_told(family: Path) -> None:
    assert any("too shallow for contacts: Neff/N_res is 0.027" in said for said in contacts(DATA / "globins4.a3m", *FAST)["warnings"])


def test_the_picture(family: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.undo()
    monkeypatch.chdir(work)
    for more in ([], ["--structure", family.with_suffix(".pdb"), "--force"]):
        record = contacts(family, *FAST, *more)
        assert "contacts.png" in record["output"]["files"] and "draw" in record["seconds"]
        assert (work / "planted_contacts" / "contacts.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.a3m"], 1, "none.a3m: the file cannot be read"),
        ([DATA / "dhfr_ecoli.fasta"], 1, "has one row"),
        (["../rna.a3m"], 1, "is an alignment of rna"),
        (["../short.a3m"], 1, "has 6 columns; with fewer than 7 no pair has |i - j| >= 6"),
        (["../planted.a3m", "--chain", "A"], 2, "chain is 'A', and there is no structure"),
        (["../planted.a3m", "--method", "plm"], 2, "method is 'plm'; allowed are attention, dca"),
        (["../planted.a3m", "--structure", "none.pdb"], 1, "none.pdb: the file cannot be read"),
        (["../planted.a3m", "--structure", DATA / "3ql0.pdb.gz"], 1, "chain A is not of this family"),
        (["../planted.a3m", "--structure", "../planted.pdb", "--chain", "Z"], 1, "has no protein chain 'Z'"),
        (["../planted.a3m", "--out", ".."], 1, "holds files that evoattn did not write"),
    ],
)
def test_what_is_refused(arguments: list[object], code: int, message: str, family: Path, work: Path) -> None:
    (work.parent / "rna.a3m").write_text(">a\nACGUACGUACGU\n>b\nACGUACGAACGU\n")
    (work.parent / "short.a3m").write_text(">a\nMKVAWC\n>b\nMKVAWD\n")
    result = evoattn("contacts", *arguments, *FAST)
    assert result.exit_code == code and message in result.output.replace("\n", " "), result.output
    assert there(work) == []


def test_an_earlier_run_stays_without_force(family: Path) -> None:
    contacts(family, *FAST)
    assert "holds an earlier run" in evoattn("contacts", family, *FAST).output
    contacts(family, *FAST, "--force")
