"""``evoattn run --weights``: what is loaded, what is left out, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from evoattn import EvoformerTrunk, load_weights, make_features, read_msa
from evoattn.config import PRESETS, EvoformerConfig, TrunkConfig
from evoattn.runs import pipeline
from tests.cli.commands import FAMILY, evoattn, there
from tests.helpers import GOLDEN

MINI = TrunkConfig(  # of tests/golden/params_model_1_mini.npz
    evoformer=EvoformerConfig(
        n_blocks=2, c_m=32, c_z=24, c_s=28, n_head_msa_row=4, n_head_msa_column=2, n_head_tri_start=3, n_head_tri_end=2,
        c_hidden_mul=20, c_hidden_opm=10,
    ),
    extra=EvoformerConfig(
        n_blocks=2, c_m=16, c_z=24, c_s=None, n_head_msa_row=4, n_head_msa_column=2, n_head_tri_start=3, n_head_tri_end=2,
        c_hidden_mul=20, c_hidden_opm=10, msa_column="global",
    ),
    max_relative=4,
)  # fmt: skip


def test_weights_with_template_arrays(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out with a word, since AlphaFold 2 without templates does not use them either."""
    monkeypatch.setitem(PRESETS, "mini", MINI)
    file = GOLDEN / "params_model_1_mini.npz"
    result = evoattn("run", FAMILY, "--preset", "mini", "--weights", file, "--max-seqs", 2)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "RANDOM" not in said and "arrays used" in said and "embed templates" in said and "AlphaFold 2 without templates" in said
    model = EvoformerTrunk(MINI).eval()
    account = load_weights(model, file, strict=False)
    with torch.no_grad():
        expected = model(make_features(read_msa(FAMILY), max_seqs=2))
    assert torch.equal(load_file(work / "family_evoattn" / "representations.safetensors")["pair"], expected.pair)
    source = json.loads((work / "family_evoattn" / "run.json").read_text())["model"]["weights"]
    assert source["account"]["used"] == len(account.used) and source["account"]["missing"] == 0
    assert all("/template_" in name for name in source["unused"])


def test_weights_of_more_blocks_than_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "mini", MINI)
    said = evoattn("run", FAMILY, "--preset", "mini", "--blocks", 1, "--weights", GOLDEN / "params_model_1_mini.npz").stdout
    assert "only the first blocks of the parameter file are used" in " ".join(said.split())


def test_weights_that_do_not_fit(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "mini", MINI)
    with np.load(GOLDEN / "params_model_1_mini.npz") as file:
        arrays = {name: file[name] for name in file.files}
    lost = "alphafold/alphafold_iteration/evoformer/preprocess_msa//weights"
    np.savez(work / "less.npz", **{name: array for name, array in arrays.items() if name != lost})
    np.savez(work / "more.npz", **arrays, **{"alphafold/alphafold_iteration/evoformer/extra_thing//weights": np.zeros(3)})
    for file_name, options, text in (
        ("less.npz", ["--preset", "mini"], lost),
        ("more.npz", ["--preset", "mini"], "extra_thing//weights"),
        ("less.npz", ["--preset", "tiny"], "wrong shape"),
        ("none.npz", ["--preset", "mini"], "there is no file"),
    ):
        result = evoattn("run", FAMILY, "--weights", file_name, *options)
        assert result.exit_code == 1 and text in result.stderr, result.output
        assert there(work) == ["less.npz", "more.npz"]


def test_the_default_preset_is_whole_with_weights() -> None:
    assert pipeline.RunSettings(FAMILY).preset_name == "af2-4"
    assert pipeline.RunSettings(FAMILY, weights=FAMILY).preset_name == "af2"
