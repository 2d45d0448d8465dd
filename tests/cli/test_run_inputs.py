"""``evoattn run`` on complexes, drawn features, databases and folders; and on what cannot fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from evoattn import EvoformerTrunk, Recycled, make_features, preset, read_msa
from evoattn.errors import MemoryLimitError
from evoattn.io import MSA, draw_features, expand_copies, feature_preset, join_chains, pair_rows, read_sequences, search_database
from evoattn.memory import plan, planning
from evoattn.primitives import redraw_
from evoattn.runs import Batch, RunSettings, batch, inputs, join_alignments, pipeline, run_folder
from tests.cli.commands import FAMILY, FAMILY_TEXT, GLOBINS, evoattn, run, there
from tests.io.test_search import FASTA
from tests.io.test_search import GLOBINS as SEQUENCES

OTHER = ">sp|A|A_HUMAN\nWWKL\n>sp|C|C_MOUSE\nWW-L\n>sp|B|B_PIG\nWRKL\n"
FIRST = ">sp|Q|Q_HUMAN\nMKVAWC\n>sp|R|R_PIG\nMKVRWC\n>sp|S|S_MOUSE\nMKeeVA-C\n"


def expected(msa: MSA, **options: Any) -> torch.Tensor:
    """The pair representation that the library gives of an alignment."""
    model = redraw_(EvoformerTrunk(preset("tiny")), 0).eval()
    with torch.no_grad():
        return model(make_features(msa, **options)).pair


def written(folder: Path, name: str) -> torch.Tensor:
    return load_file(folder / "representations.safetensors")[name]


def test_drawn_features_are_drawn_for_each_pass(work: Path) -> None:
    """As a loop over the recycles does it: all rows take part in the draw, each pass has its own, names are those of the last."""
    options = ["--features", "af2_model_3", "--max-seqs", 3, "--max-extra", 2, "--recycles", 2, "--seed", 4]
    record = run(GLOBINS, *options)
    msa, config = read_msa(GLOBINS), replace(feature_preset("af2_model_3"), max_seqs=3, max_extra=2)
    model, previous = redraw_(EvoformerTrunk(preset("tiny")), 4).eval(), None
    with torch.no_grad():
        for recycle in range(3):
            out = model(make_features(msa, config, seed=4, recycle=recycle), previous=previous)
            previous = Recycled(out.msa[0], out.pair)
    assert torch.equal(written(work / "globins4_evoattn", "pair"), out.pair)
    with safe_open(work / "globins4_evoattn" / "representations.safetensors", framework="pt") as file:
        names = json.loads(file.metadata()["names"])
    draws = [draw_features(msa, config, seed=4, recycle=recycle).centres.tolist() for recycle in range(3)]
    assert names == [msa.names[row] for row in draws[2]] and len({tuple(draw) for draw in draws}) > 1
    assert "drawn at random (seed 4, anew for each pass)" in record["rows"]["rule"] and "15 % of the cells" in record["rows"]["rule"]
    assert record["features"]["preset"] == "af2_model_3" and record["features"]["sampling"] == "random"


@pytest.mark.parametrize(
    ("preset", "features"),
    [("af2_model_3", "af2_model_3"), ("af2_multimer_v3", "af2_multimer_1"), ("af2", "plain"), ("tiny", "plain"), (None, "plain")],
)
def test_a_published_preset_brings_its_features(preset: str | None, features: str, work: Path) -> None:
    settings = RunSettings(FAMILY, preset=preset)
    assert settings.features_name == features
    assert RunSettings(FAMILY, preset="af2_model_3", features="plain").features_name == "plain"


def test_the_number_of_rows_is_that_of_the_features(work: Path) -> None:
    (work / "twice.a3m").write_text(FAMILY_TEXT + ">again\nMKV-WCDEFGHIKL\n")
    record = run(Path("twice.a3m"), "--features", "af2_model_1")
    assert (record["features"]["max_seqs"], record["features"]["max_extra"]) == (508, 5120)
    assert record["rows"]["repeats"] == 1 and "left out as repeats of an earlier row: 1" in record["rows"]["rule"]
    assert (RunSettings(FAMILY).feature_config.max_seqs, RunSettings(FAMILY, max_seqs=7).feature_config.max_seqs) == (128, 7)


def test_features_without_a_trunk_are_refused(work: Path) -> None:
    result = evoattn("run", FAMILY, "--preset", "tiny", "--features", "af2_multimer_1")
    assert result.exit_code == 2 and "chain ids" in result.stderr and "Fitting are plain, af2_model_1" in result.stderr
    result = evoattn("run", FAMILY, "--features", "af4")
    assert result.exit_code == 2 and "af2_model_5" in result.stderr and there(work) == []


@pytest.mark.parametrize("pair", ["none", "best", "rank", "row"])
def test_files_are_the_chains_of_a_complex(pair: str, work: Path) -> None:
    (work / "a.a3m").write_text(FIRST)
    (work / "b.fasta").write_text(OTHER)
    record = run(Path("a.a3m"), "b.fasta", "--pair", pair)
    chains = [read_msa("a.a3m"), read_msa("b.fasta")]
    pairs = {"none": None, "row": pair_rows(chains, by="row")}.get(pair, pair_rows(chains))
    joined = join_chains(chains, pairs=pairs)
    assert joined.n_seq == (5 if pair == "none" else 3)
    assert torch.equal(written(work / "a+b_evoattn", "pair"), expected(joined))
    assert written(work / "a+b_evoattn", "chain_id").tolist() == [0] * 6 + [1] * 4
    assert [Path(file["path"]).name for file in record["input"]["files"]] == ["a.a3m", "b.fasta"]
    assert record["input"]["chain_lengths"] == [6, 4] and record["input"]["rows"] == joined.n_seq


def test_a_file_given_twice_is_two_copies(work: Path) -> None:
    """Each row stands in both copies, also where another chain comes between them, and whether or not it has a partner there."""
    (work / "a.a3m").write_text(FIRST)
    run(Path("a.a3m"), "a.a3m", "--out", "out")
    a = read_msa("a.a3m")
    assert torch.equal(written(work / "out", "pair"), expected(expand_copies(replace(a, chain_lengths=(6,), chain_copies=(2,)))))
    (work / "b.fasta").write_text(OTHER.replace("C_MOUSE", "C_RAT"))
    joined = join_alignments([a, read_msa("b.fasta"), a], "best")
    first, last = joined.residues[:, :6], joined.residues[:, 10:]
    assert joined.chain_lengths == (6, 4, 6) and np.array_equal(first, last)
    assert joined.names == ("sp|Q|Q_HUMAN+sp|A|A_HUMAN", "sp|R|R_PIG+sp|B|B_PIG", "sp|S|S_MOUSE", "sp|C|C_RAT")


def test_chains_in_one_file(work: Path) -> None:
    (work / "dimer.fasta").write_text(">ab\nMKVAWC:WWKL\n")
    run(Path("dimer.fasta"))
    assert written(work / "dimer_evoattn", "chain_id").tolist() == [0] * 6 + [1] * 4
    assert written(work / "dimer_evoattn", "residue_index")[6] == 206
    (work / "copies.a3m").write_text("#6\t2\n" + FIRST)
    record = run(Path("copies.a3m"))
    assert any("one copy" in warning and "af2_model_1" in warning for warning in record["warnings"])
    record = run(Path("copies.a3m"), "--features", "af2_model_1", "--force")
    assert written(work / "copies_evoattn", "chain_id").tolist() == [0] * 6 + [1] * 6
    assert not any("one copy" in warning for warning in record["warnings"])
    assert "chains: 6 residues x2" in evoattn("run", "copies.a3m", "--preset", "tiny", "--out", "c").stdout


def test_settings_that_do_not_fit_the_files(work: Path) -> None:
    result = evoattn("run", FAMILY, FAMILY, "--query", "second")
    assert result.exit_code == 2 and "single file" in result.stderr
    result = evoattn("run", FAMILY, "--pair", "best")
    assert result.exit_code == 1 and "one for each chain" in result.stderr
    result = evoattn("run", FAMILY, "--pair", "closest")
    assert result.exit_code == 2 and "none, best, rank, row" in result.stderr
    result = evoattn("run", FAMILY, work, "--preset", "tiny")
    assert result.exit_code == 1 and "a folder is given by itself" in result.stderr and there(work) == []


def test_another_query_and_format(work: Path) -> None:
    record = run(FAMILY, "--query", "third", "--msa-format", "a3m")
    assert record["input"]["query"]["name"] == "third"
    assert torch.equal(written(work / "family_evoattn", "pair"), expected(read_msa(FAMILY, query="third")))


def test_search_and_run_in_one_go(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "db.fasta").write_text(FASTA)
    (work / "q.fasta").write_text(f">q\n{SEQUENCES.sequences[0]}\n")
    record = run(Path("q.fasta"), "--db", "db.fasta", "--blocks", 1)
    found = search_database(read_sequences("q.fasta"), "db.fasta")
    assert there(work / "q_evoattn") == ["alignment.a3m", "representations.safetensors", "run.json"]
    assert record["input"]["rows"] == found.n_seq
    assert record["input"]["database"] == "db.fasta" and "search database" in record["seconds"]
    kept = read_msa(work / "q_evoattn" / "alignment.a3m")
    assert kept.names == found.names and np.array_equal(kept.residues, found.residues) and np.array_equal(kept.deletions, found.deletions)
    run(work / "q_evoattn" / "alignment.a3m", "--out", "again", "--blocks", 1)
    assert torch.equal(written(work / "again", "pair"), written(work / "q_evoattn", "pair")), "the alignment that was run"

    searches = []
    monkeypatch.setattr(inputs, "search_database", lambda *given, **options: searches.append(given) or search_database(*given, **options))
    sequence = SEQUENCES.sequences[1]
    (work / "dimer.fasta").write_text(f">d\n{sequence}:{sequence}\n")
    dimer = inputs.read_input(RunSettings(Path("dimer.fasta"), database=Path("db.fasta")))
    assert len(searches) == 1 and dimer.chain_lengths == (len(sequence),) * 2 and dimer.n_seq > 8


@pytest.fixture
def folder(work: Path) -> Path:
    path = work / "families"
    path.mkdir()
    (path / "a.a3m").write_text(FAMILY_TEXT)
    (path / "b.fasta").write_text(OTHER)
    (path / "c.sto").write_text("no alignment\n")
    (path / "README.md").write_text("hello\n")
    (path / ".hidden.a3m").write_text("")
    return path


def run_all(*options: object) -> tuple[dict[str, Any], str]:
    result = evoattn("run", "families", "--preset", "tiny", "--json", *options)
    found = json.loads(result.stdout)
    assert result.exit_code == (1 if found["failed"] else 0)
    return found, result.stderr


def test_a_folder_is_run_file_by_file_and_goes_on(folder: Path, work: Path) -> None:
    found, said = run_all()
    assert (found["done"], found["skipped"], found["left_alone"]) == (["a.a3m", "b.fasta"], [], ["README.md"])
    assert list(found["failed"]) == ["c.sto"] and "starts no known format" in found["failed"]["c.sto"]
    assert there(work / "families_evoattn") == ["a.a3m", "b.fasta"]
    assert "[1/3] a.a3m: 4 rows x 14 columns" in said and "[3/3] c.sto: FAILED" in said
    assert torch.equal(written(work / "families_evoattn" / "a.a3m", "pair"), expected(read_msa(FAMILY)))

    (folder / "c.sto").write_text("# STOCKHOLM 1.0\nx MKV\n//\n")  # mended
    (folder / "b.fasta").write_text(OTHER + ">z\nWWWW\n")  # changed
    found, said = run_all()
    assert (found["done"], found["skipped"]) == (["c.sto"], ["a.a3m"]) and "a.a3m: done before" in said
    assert list(found["failed"]) == ["b.fasta"] and "another content of the file; give another --out" in found["failed"]["b.fasta"]
    found, _ = run_all("--force")
    assert (found["done"], found["failed"]) == (["a.a3m", "b.fasta", "c.sto"], {})
    found, _ = run_all("--seed", 1)
    assert len(found["failed"]) == 3 and "with another seed;" in found["failed"]["a.a3m"]


def test_whatever_goes_wrong_with_a_file_the_others_are_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {"a.a3m": ZeroDivisionError("a bug"), "b.fasta": torch.OutOfMemoryError("CUDA out of memory"), "c.sto": None}

    def fails(settings: RunSettings, *_: object) -> dict[str, Any]:
        if error := errors[settings.input.name]:
            raise error
        return {"input": {"rows": 1, "columns": 1}, "seconds": {}}

    monkeypatch.setattr(batch, "run", fails)
    found = run_folder(RunSettings(folder, preset="tiny"))
    assert found.done == ["c.sto"] and "Traceback" in found.failed["a.a3m"] and found.failed["b.fasta"].startswith("out of memory (CUDA")
    said = str(found)
    assert said.index("Done") < said.index("Left alone") < said.index("Failed") and "1 file whose suffix is of no alignment: README" in said
    assert "none" in str(Batch("out")).splitlines()[-1]


def test_an_interrupted_folder_stops(folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "run", stops)
    assert evoattn("run", "families", "--preset", "tiny").exit_code == 130 and there(work) == ["families"]


def test_a_folder_without_alignments(work: Path) -> None:
    (work / "empty").mkdir()
    (work / "empty" / "x.cif").write_text("")
    result = evoattn("run", "empty", "--preset", "tiny")
    assert result.exit_code == 1 and "has no alignment" in result.stderr and ".a3m" in result.stderr


def test_what_cannot_fit_is_refused_before_any_work(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("work was begun")

    parts = plan(preset("tiny"), 4, 14, budget="1GiB")
    least = parts.floor + parts.estimate.parts["parameters"] + parts.estimate.parts["features"]
    monkeypatch.setattr(planning, "free_memory", lambda device: least)
    run(FAMILY, "--out", "fits")
    monkeypatch.setattr(planning, "free_memory", lambda device: least - 1)
    monkeypatch.setattr(pipeline, "build", never)
    result = evoattn("run", FAMILY, "--preset", "tiny")
    assert result.exit_code == 3 and "14 residues do not fit: at least" in result.stderr and "In bfloat16" in result.stderr
    assert "pair representation" in result.stderr and there(work) == ["fits"]


def test_a_budget_and_what_it_came_to_are_in_the_record(work: Path) -> None:
    run(FAMILY, "--out", "within", "--memory-budget", "1GiB")
    memory = json.loads((work / "within" / "run.json").read_text())["memory"]
    assert memory["floor"] <= memory["planned"] <= memory["budget"] == 2**30
    assert memory["parts"]["pair representation"] == 14 * 14 * 16 * 4 and memory["slices"]["Evoformer, tri_mul_out"] == 14
    assert memory["measured"] is None or memory["measured"] < memory["budget"]
    result = evoattn("run", FAMILY, "--preset", "tiny", "--memory-budget", "lots")
    assert result.exit_code == 2 and "write a number above 0 with a unit: 8GiB" in " ".join(result.stderr.split())
    result = evoattn("run", FAMILY, "--preset", "tiny", "--memory-budget", "20MiB")
    assert result.exit_code == 3 and "20 MiB are given or free" in result.stderr


@pytest.mark.parametrize(("name", "n_res"), [("titin_human_N2B_26926", 26926), ("A0A8A9J5M6_SARS2_ORF1ab", 7096)])
def test_long_proteins(name: str, n_res: int, shared: Path, work: Path) -> None:
    settings = RunSettings(shared / "data" / "long" / f"{name}.fasta", memory_budget="24GiB")
    with pytest.raises(MemoryLimitError, match=f"{n_res:,} residues do not fit: .* and 24 GiB are given or free"):
        pipeline.run(settings)
    assert there(work) == []
