"""``evoattn msa``: the table against counting by hand, and each command against the library."""

import gzip
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from evoattn import msa_cli
from evoattn.io import MSA, filter_rows, read_msa, read_sequences, search_database, subsample
from evoattn.runs.msa_report import ranges
from tests.cli.commands import DATA, FAMILY, GLOBINS, evoattn, there
from tests.io.test_search import FASTA
from tests.io.test_search import GLOBINS as SEQUENCES

DHFR = DATA / "dhfr.a3m.gz"


def same(a: MSA, b: MSA) -> bool:
    return a.names == b.names and np.array_equal(a.residues, b.residues) and np.array_equal(a.deletions, b.deletions)


def info(*arguments: object) -> dict:
    result = evoattn("msa", "info", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def neff_by_hand(rows: list[str], threshold: float, *, shared: bool) -> float:
    total = 0.0
    for a in rows:
        neighbours = 0
        for b in rows:
            pairs = [(x, y) for x, y in zip(a, b, strict=True) if not shared or "-" not in (x, y)]
            neighbours += bool(pairs) and sum(x == y for x, y in pairs) / len(pairs) >= threshold
        total += 1 / neighbours
    return total


ROWS = ["MKVAWCDEFGHIKL", "MKV-WCDEFGHIKL", "MRVAWCD-FGHIKM", "-RVAWDDEFGHI--"]  # of FAMILY, B read as D


def test_info_counts_as_by_hand() -> None:
    found = info(FAMILY)
    assert (found["rows"], found["rows_different"], found["columns"], found["format"]) == (4, 4, 14, "a3m")
    assert found["query"] == {"name": "query", "description": "of a small family", "letters": ROWS[0]}
    assert found["column_coverage"]["of_columns"] == [sum(row[i] != "-" for row in ROWS) / 4 for i in range(14)]
    identity = [sum(x == y for x, y in zip(ROWS[0], row, strict=True)) / (14 - row.count("-")) for row in ROWS[1:]]
    assert found["query_identity"]["least"] == min(identity) and found["query_identity"]["most"] == max(identity) == 1.0
    assert found["query_identity"]["median"] == sorted(identity)[1] and found["query_identity"]["counts"] == [0, 0, 0, 0, 3]
    assert found["row_coverage"]["least"] == 11 / 14
    assert found["insertions"] == {"residues": 2, "rows": 1, "longest": 2}
    assert found["account"]["mapped"] == {"B": 1} and found["species"]["rows"] == 0


@pytest.mark.parametrize(("columns", "threshold"), [("shared", 80), ("all", 80), ("shared", 95), ("all", 62)])
def test_info_names_the_neff_that_it_gives(columns: str, threshold: int) -> None:
    options = ["--neff-columns", columns, "--threshold", threshold]
    neff = info(FAMILY, *options)["neff"]
    assert neff["value"] == pytest.approx(neff_by_hand(ROWS, threshold / 100, shared=columns == "shared"))
    assert neff["per_column"] == pytest.approx(neff["value"] / 14)
    assert (neff["columns"], neff["threshold"]) == (columns, threshold / 100)
    said = " ".join(evoattn("msa", "info", FAMILY, *options).stdout.split())
    assert f"Neff {neff['value']:.1f} effective rows, Neff/L {neff['value'] / 14:.2f} sum over the rows of 1 / (number of rows of" in said
    assert f"{threshold} % identity or more" in said and {"shared": "AlphaFold 2", "all": "direct coupling"}[columns] in said


def test_info_is_a_table_in_words() -> None:
    said = " ".join(evoattn("msa", "info", GLOBINS).stdout.split())
    for text in (
        "globins4.a3m (a3m, protein)",
        "Columns 146, of the query 'HBB_HUMAN'",
        "Coverage of a column (rows with a residue / rows): from 50 % to 100 %, median 100 %",
        "Identity to the query (equal residues / residues of the row): from 25 % to 45 %, median 26 % 0-20 % 20-40 % 40-60 %",
        "Species 3 by UniProt code, named in 4 of 4 rows; most rows: HUMAN (2)",
        "Verdict too shallow for contacts by coevolution (Neff/N_res = 0.027, below 1) shallow for AlphaFold 2",
    ):
        assert text in said
    (one := Path("one.fasta")).write_text(">a\nMKV\n")
    assert "there is no row but the query" in evoattn("msa", "info", one).stdout
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10" and ranges([]) == ""


def test_info_draws_a_picture(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Picture     a.png" in evoattn("msa", "info", FAMILY, "--png", "a.png").stdout
    before = (work / "a.png").read_bytes()
    assert before.startswith(b"\x89PNG") and there(work) == ["a.png"]
    result = evoattn("msa", "info", FAMILY, "--out", "a.png")
    assert result.exit_code == 1 and "--force" in result.stderr and (work / "a.png").read_bytes() == before
    monkeypatch.setattr(msa_cli, "find_spec", lambda name: None)
    result = evoattn("msa", "info", FAMILY, "--png", "b.png")
    assert result.exit_code == 1 and "pip install 'evoattn[viz]'" in result.stderr and result.stdout == ""


@pytest.mark.parametrize("suffix", ["a3m", "sto", "fasta", "aln", "a3m.gz"])
def test_convert_there_and_back(suffix: str, work: Path) -> None:
    said = evoattn("msa", "convert", DATA / "globins4.sto", f"g.{suffix}").stdout
    assert "rows in the file: 4, kept: 4" in said and f"written: g.{suffix} (4 rows x 146 columns)" in said
    assert same(read_msa(f"g.{suffix}"), read_msa(DATA / "globins4.sto"))
    assert evoattn("msa", "convert", f"g.{suffix}", "back.txt", "--to", "a3m").exit_code == 0
    assert same(read_msa("back.txt"), read_msa(GLOBINS)) and there(work) == sorted([f"g.{suffix}", "back.txt"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["convert", FAMILY, "out.xyz"], "'auto' for a name that ends in .a3m"),
        (["convert", FAMILY, "no/out.a3m"], "make the folder first"),
        (["convert", FAMILY, "there.a3m"], "there.a3m exists; give another name, or --force"),
        (["convert", FAMILY, "."], "is a folder"),
        (["convert", "none.a3m", "out.a3m"], "none.a3m"),
        (["convert", FAMILY, "out.a3m", "--query", "sekond"], "'second'"),
        (["convert", FAMILY, "out.a3m", "--format", "stockholm"], "line 1"),
        (["search", FAMILY, "--db", "there.a3m", "--out", "out.xyz"], "'auto'"),
        (["align", "there.a3m", "--out", "out.a3m"], "nothing to align"),
    ],
)
def test_refused_in_words_and_nothing_is_left(arguments: list[object], words: str, work: Path) -> None:
    (work / "there.a3m").write_text(">a\nMKV\n")
    result = evoattn("msa", *arguments)
    assert result.exit_code == 1 and words in result.stderr and result.stdout == "", result.output
    assert there(work) == ["there.a3m"] and (work / "there.a3m").read_text() == ">a\nMKV\n"


def test_force_and_reading_options(work: Path) -> None:
    (work / "two.sto").write_text("# STOCKHOLM 1.0\na MKV-\nb MKVA\n//\n# STOCKHOLM 1.0\n#=GF ID other\nc MK.V\nd MKAV\n#=GC RF xx.x\n//\n")
    read = {"--block": "other", "--anchor": "rf", "--query": "d"}
    options = [part for pair in read.items() for part in pair]
    (work / "out.a3m").write_text("old")
    assert evoattn("msa", "convert", "two.sto", "out.a3m", "--force", *options).exit_code == 0
    assert (work / "out.a3m").read_text() == ">d\nMKaV\n>c\nMKV\n"
    assert info("two.sto", "--block", 1)["rows"] == 2
    result = evoattn("msa", "convert", "two.sto", "x.a3m")
    assert result.exit_code == 1 and "holds 2 alignments" in result.stderr


def test_names_that_a_format_cannot_hold(work: Path) -> None:
    (work / "twins.a3m").write_text(">a\nMKV\n>a\nMRV\n")
    assert evoattn("msa", "convert", "twins.a3m", "twins.sto").exit_code == 1
    assert "another name" in evoattn("msa", "convert", "twins.a3m", "twins.sto", "--rename").stdout
    assert len(set(read_msa("twins.sto").names)) == 2


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        (["--id", 60], {"max_identity": 0.6}),
        (["--cov", 95, "--qid", 40], {"min_coverage": 0.95, "min_query_identity": 0.4}),
        (["--diff", 20], {"diff": 20}),
        (["--diff", 0, "--max-gaps", 2, "--max-rows", 50], {"max_gaps": 0.02, "max_rows": 50}),
    ],
)
def test_filter_is_the_library_in_percent(options: list[object], bounds: dict, work: Path) -> None:
    (work / "some.a3m").write_text("".join(gzip.decompress(DHFR.read_bytes()).decode().splitlines(keepends=True)[:600]))
    said = evoattn("msa", "filter", "some.a3m", "out.a3m", *options).stdout
    everything, expected = read_msa("some.a3m"), filter_rows(read_msa("some.a3m"), **bounds)
    assert 1 < expected.n_seq < everything.n_seq and same(read_msa("out.a3m"), expected)
    assert str(expected.account) in said


def test_filter_without_a_bound_is_wrong_usage(work: Path) -> None:
    result = evoattn("msa", "filter", FAMILY, "out.a3m", "--diff", 0)
    assert result.exit_code == 2 and "--id, --cov, --qid, --diff" in result.stderr and there(work) == []
    (work / "twice.a3m").write_text(">a\nMKV\n>b\nMKV\n>c\nMRV\n")
    assert "drop_repeats" in evoattn("msa", "filter", "twice.a3m", "out.a3m", "--drop-repeats").stdout
    assert read_msa("out.a3m").names == ("a", "c")


@pytest.mark.parametrize(("method", "seed"), [("random", 3), ("diverse", 0)])
def test_subsample_is_the_library(method: str, seed: int) -> None:
    assert evoattn("msa", "subsample", FAMILY, "out.a3m", "-n", 2, "--method", method, "--seed", seed).exit_code == 0
    assert same(read_msa("out.a3m"), subsample(read_msa(FAMILY), 2, method=method, seed=seed))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["subsample", FAMILY, "x.a3m", "-n", 2, "--method", "best"], "diverse"),
        (["subsample", FAMILY, "x.a3m"], "-n"),
        (["convert", FAMILY, "x.a3m", "--anchor", "first"], "rf"),
        (["convert", FAMILY, "x.a3m", "--alphabet", "klingon"], "protein"),
        (["info", FAMILY, "--neff-columns", "some"], "shared"),
        (["filter", FAMILY, "x.a3m", "--id", 101], "100"),
        (["search", FAMILY, "--out", "x.a3m"], "--db"),
    ],
)
def test_wrong_usage(arguments: list[object], word: str, work: Path) -> None:
    result = evoattn("msa", *arguments)
    assert result.exit_code == 2 and word in result.stderr and there(work) == []


def test_search_and_align(work: Path) -> None:
    (work / "db.fasta").write_text(FASTA)
    (work / "q.fasta").write_text(f">q\n{SEQUENCES.sequences[0]}\n")
    result = evoattn("msa", "search", "q.fasta", "--db", "db.fasta", "--out", "q.a3m", "--iterations", 2, "--threads", 1)
    assert "found by jackhmmer" in result.stdout and result.stderr == "", "no progress bar where there is no terminal"
    assert same(read_msa("q.a3m"), search_database(read_sequences("q.fasta"), "db.fasta", iterations=2))
    said = evoattn("msa", "align", "db.fasta", "--out", "db.a3m", "--query", "lamprey", "--threads", 1).stdout
    assert "aligned by FAMSA" in said and read_msa("db.a3m").names[0] == "lamprey"
    (work / "other.fasta").write_text(">x\nWWWWWWWWWWWWWWWWWWWW\n")
    said = evoattn("msa", "search", "q.fasta", "--db", "other.fasta", "--out", "none.a3m").stdout
    assert "no homolog was found" in said and read_msa("none.a3m").n_seq == 1


def test_the_packages_that_are_not_there(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "db.fasta").write_text(FASTA)
    (work / "q.fasta").write_text(">q\nMKV\n")
    for package, arguments in (("pyhmmer", ["search", "q.fasta", "--db", "db.fasta"]), ("pyfamsa", ["align", "db.fasta"])):
        monkeypatch.setitem(sys.modules, package, None)
        result = evoattn("msa", *arguments, "--out", "out.a3m")
        assert result.exit_code == 1 and f"needs the package {package}" in result.stderr and "evoattn[msa]" in result.stderr
    assert there(work) == ["db.fasta", "q.fasta"]


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    with FAMILY.open("rb") as file:
        monkeypatch.setattr("evoattn.io.sources.sys", SimpleNamespace(stdin=SimpleNamespace(buffer=file)))
        assert info("-")["rows"] == 4
