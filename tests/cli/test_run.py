"""What ``evoattn run`` writes and says."""

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from evoattn import EvoformerTrunk, make_features, preset, read_msa, set_execution
from evoattn.ops import ATTENTION
from evoattn.primitives import redraw_
from evoattn.runs import pipeline
from tests.cli.commands import DATA, FAMILY, by_hand, evoattn, run, there


@pytest.mark.parametrize("name", ["globins4.a3m", "globins4.sto"])
def test_run_is_the_library(name: str, work: Path) -> None:
    record = run(DATA / name, "--max-seqs", 3, "--max-extra", 1, "--seed", 7)
    folder = work / "globins4_evoattn"
    assert there(folder) == ["representations.safetensors", "run.json"] and there(work) == [folder.name]
    assert json.loads((folder / "run.json").read_text()) == record
    tensors = load_file(folder / "representations.safetensors")
    for key, expected in by_hand(DATA / name, seed=7, max_seqs=3, max_extra=1).items():
        assert torch.equal(tensors.pop(key), expected), key
    msa = read_msa(DATA / name)
    assert torch.equal(tensors.pop("aatype"), torch.from_numpy(msa.residues[0]))
    assert torch.equal(tensors.pop("residue_index"), torch.arange(146))
    assert torch.equal(tensors.pop("chain_id"), torch.zeros(146, dtype=torch.int64))
    assert torch.equal(tensors.pop("msa_mask"), torch.ones(3, 146, dtype=torch.bool))
    assert not tensors
    with safe_open(folder / "representations.safetensors", framework="pt") as file:
        assert file.metadata() == {"names": json.dumps(list(msa.names[:3])), "query": msa.query, "weights": "random"}


def test_the_record_says_what_was_done(work: Path) -> None:
    record = run(FAMILY, "--max-seqs", 2, "--max-extra", 1, "--blocks", 3, "--recycles", 1, "--seed", 5)
    source = record["input"]
    assert (source["format"], source["rows"], source["columns"]) == ("a3m", 4, 14)
    assert source["query"] == {"name": "query", "letters": "MKVAWCDEFGHIKL"}
    assert source["files"] == [{"path": str(FAMILY), "sha256": hashlib.sha256(FAMILY.read_bytes()).hexdigest()}]
    assert source["account"] == {"rows_in": 4, "rows_kept": 4, "dropped": {}, "mapped": {"B": 1}, "notes": []}
    assert (record["rows"]["kept"], record["rows"]["extra"], record["rows"]["profile_only"]) == (2, 1, 1)
    assert record["model"]["config"]["evoformer"]["n_blocks"] == 3
    assert record["model"]["parameters"] == sum(p.numel() for p in EvoformerTrunk(preset("tiny").with_blocks(3)).parameters())
    assert record["model"]["weights"] == {"source": "random", "seed": 5}
    calls = record["execution"]["attention"]
    assert [(call["kind"], call["backend"]) for call in calls][:2] == [("MSA row", "sdpa"), ("MSA global column", "sdpa")]
    assert set(calls[0]["reasons_against"]) == set(ATTENTION.names)
    assert set(record["seconds"]) == {"read alignment", "features", "build model", "extra-MSA stack", "Evoformer", "write"}
    assert record["peak_memory_bytes"]["process"] > 50 * 2**20
    assert record["output"]["tensors"]["msa"] == {"shape": [2, 14, 32], "dtype": "float32"}
    assert any("coordinates" in warning for warning in record["warnings"]), "recycling is not AlphaFold 2's"


def test_the_summary_says_it_in_words() -> None:
    result = evoattn("run", FAMILY, "--preset", "tiny", "--max-seqs", 2, "--max-extra", 1, "--seed", 5)
    said = " ".join(result.stdout.split())
    for text in (
        "4 rows x 14 columns, query 'query'",
        "letters read as another: B x1",
        "2 of 4: kept are the query and the 1 row after it in file order",
        "to the extra-MSA stack: the 1 row after those; only in the profiles of the kept rows: the last 1 row",
        "RANDOM, seed 5: the numbers mean nothing biological",
        "Evoformer: sdpa for MSA row, MSA column, triangle (starting node)",
        "pip install 'evoattn[viz]'",
    ):
        assert text in said
    assert result.stderr == "", "no progress bar where there is no terminal"


def test_npz_holds_what_safetensors_holds(work: Path) -> None:
    run(FAMILY, "--out", "a", "--max-seqs", 3)
    run(FAMILY, "--out", "b", "--max-seqs", 3, "--format", "npz")
    assert there(work / "b") == ["representations.npz", "run.json"]
    tensors = load_file(work / "a" / "representations.safetensors")
    with np.load(work / "b" / "representations.npz", allow_pickle=False) as arrays:
        assert set(arrays.files) == {*tensors, "names", "query", "weights"}
        for name, tensor in tensors.items():
            assert np.array_equal(arrays[name], tensor.numpy()) and arrays[name].dtype == tensor.numpy().dtype
        assert list(arrays["names"]) == ["query", "second", "third"]
        assert str(arrays["query"]) == "MKVAWCDEFGHIKL"


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp64", torch.float64)])
def test_the_whole_model_runs_in_the_dtype(name: str, dtype: torch.dtype, work: Path) -> None:
    run(FAMILY, "--dtype", name, "--out", "a")
    got = load_file(work / "a" / "representations.safetensors")
    for key, expected in by_hand(FAMILY, seed=0, max_seqs=128, dtype=dtype).items():
        assert got[key].dtype == dtype and torch.equal(got[key], expected)


def test_mixed_is_float32_with_products_in_bfloat16(work: Path) -> None:
    record = run(FAMILY, "--dtype", "mixed", "--out", "a")
    got, exact = load_file(work / "a" / "representations.safetensors"), by_hand(FAMILY, seed=0, max_seqs=128, dtype=torch.float64)
    assert all("bfloat16" in call["call"] for call in record["execution"]["attention"])
    for key, expected in exact.items():
        assert got[key].dtype == torch.float32
        assert 1e-5 < (got[key] - expected).norm() / expected.norm() < 0.02


def test_npz_of_bfloat16_is_float32_and_says_so(work: Path) -> None:
    record = run(FAMILY, "--dtype", "bf16", "--format", "npz")
    with np.load(work / "family_evoattn" / "representations.npz") as arrays:
        expected = by_hand(FAMILY, seed=0, max_seqs=128, dtype=torch.bfloat16)["pair"]
        assert np.array_equal(arrays["pair"], expected.float().numpy())
    assert any("numpy has no bfloat16" in warning for warning in record["warnings"])


def test_save_leaves_out_what_is_large(work: Path) -> None:
    run(FAMILY, "--save", "single, pair")
    tensors = load_file(work / "family_evoattn" / "representations.safetensors")
    assert set(tensors) == {"pair", "single", "aatype", "residue_index", "chain_id", "msa_mask"}


def test_one_sequence_and_a_gzipped_name(work: Path) -> None:
    record = run(DATA / "dhfr_ecoli.fasta")
    assert record["output"]["tensors"]["msa"]["shape"] == [1, 158, 32]
    assert any("without relatives" in warning for warning in record["warnings"])
    assert pipeline.RunSettings(DATA / "dhfr.a3m.gz").folder == work / "dhfr_evoattn"


def test_chains_of_a_complex(work: Path) -> None:
    (work / "complex.a3m").write_text("#3,2\t1,1\n>both\nMKVAC\n>other\nMKVA-\n")
    run(work / "complex.a3m")
    tensors = load_file(work / "complex_evoattn" / "representations.safetensors")
    assert tensors["chain_id"].tolist() == [0, 0, 0, 1, 1]
    assert tensors["residue_index"].tolist() == [0, 1, 2, 203, 204]


def test_report_is_drawn_where_matplotlib_is(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra viz")
    monkeypatch.setattr(pipeline, "find_spec", find_spec)
    record = run(FAMILY)
    assert (work / "family_evoattn" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert record["output"]["files"] == ["representations.safetensors", "report.png", "run.json"]
    assert not any("matplotlib" in warning for warning in record["warnings"])
    looked_at = load_file(work / "family_evoattn" / "representations.safetensors")
    assert torch.equal(looked_at["pair"], by_hand(FAMILY, seed=0, max_seqs=128)["pair"]), "looking changes nothing"


def test_a_backend_by_name(work: Path) -> None:
    record = run(FAMILY, "--backend", "reference", "--max-seqs", 3)
    assert {call["backend"] for call in record["execution"]["attention"]} == {"reference"}
    model = set_execution(redraw_(EvoformerTrunk(preset("tiny")), 0).eval(), backend="reference")
    with torch.no_grad():
        expected = model(make_features(read_msa(FAMILY), max_seqs=3))
    assert torch.equal(load_file(work / "family_evoattn" / "representations.safetensors")["msa"], expected.msa)


def test_progress_counts_every_block_of_every_pass() -> None:
    seen: list[tuple[int, int]] = []
    pipeline.run(pipeline.RunSettings(FAMILY, preset="tiny", recycles=1), lambda done, total: seen.append((done, total)))
    assert seen == [(done, 6) for done in range(7)]
