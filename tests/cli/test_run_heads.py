"""Output heads of a parameter file, written by ``evoattn run``; and what is written without one."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from evoattn import EvoformerTrunk, load_weights, make_features, read_msa
from evoattn.config import PRESETS
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.runs import RunSettings, pipeline
from evoattn.runs.figure import draw_contacts
from evoattn.runs.heads import read_heads
from evoattn.weights import convert
from tests.cli.commands import FAMILY, evoattn, run, there
from tests.cli.test_weights import MINI
from tests.helpers import GOLDEN

FILE = GOLDEN / "params_model_1_mini.npz"


@pytest.fixture(autouse=True)
def mini(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "mini", MINI)


def written(*options: object, weights: Path = FILE) -> dict[str, torch.Tensor]:
    result = evoattn("run", FAMILY, "--preset", "mini", "--weights", weights, "--force", *options)
    assert result.exit_code == 0, result.output
    return load_file("family_evoattn/representations.safetensors")


def test_contacts_and_logits_are_those_of_the_heads(work: Path) -> None:
    """Against the modules called by hand, and the contacts against the mass of the 19 bins that end below 8 A."""
    found = written("--save", "contacts,masked_msa_logits")
    trunk, distogram, masked = EvoformerTrunk(MINI).eval(), DistogramHead(24), MaskedMSAHead(32)
    for model, strict in ((trunk, False), (distogram, True), (masked, True)):
        load_weights(model, FILE, strict=strict)
    with torch.no_grad():
        out = trunk(make_features(read_msa(FAMILY)))
        mass = distogram(out.pair).softmax(-1)[..., :19].sum(-1)
        torch.testing.assert_close(found["contacts"], mass)
        torch.testing.assert_close(found["masked_msa_logits"], masked(out.msa))
    assert found["contacts"].shape == (14, 14) and found["masked_msa_logits"].shape == (4, 14, 23)
    assert found.keys() == {"contacts", "masked_msa_logits", "aatype", "residue_index", "chain_id", "msa_mask"}
    record = json.loads((work / "family_evoattn" / "run.json").read_text())
    assert record["model"]["weights"]["heads"] == ["distogram", "masked_msa"]
    assert record["output"]["tensors"]["contacts"] == {"shape": [14, 14], "dtype": "float32"}


def test_a_converted_file_has_the_same_heads(work: Path) -> None:
    convert(FILE, work / "mini.safetensors")
    expected = written("--save", "contacts,masked_msa_logits")
    assert torch.equal(written("--save", "contacts")["contacts"], expected["contacts"])
    found = written("--save", "contacts,masked_msa_logits", weights=Path("mini.safetensors"))
    assert torch.equal(found["contacts"], expected["contacts"])
    assert torch.equal(found["masked_msa_logits"], expected["masked_msa_logits"])


def test_contacts_by_default_logits_on_request() -> None:
    assert written().keys() >= {"msa", "pair", "single", "contacts"}
    assert "masked_msa_logits" not in written()
    assert written("--dtype", "bf16")["contacts"].dtype == torch.float32


def test_without_weights_no_contacts(work: Path) -> None:
    record = run(FAMILY)
    assert "contacts" not in record["output"]["tensors"] and "heads" not in record["model"]["weights"]
    said = " ".join(evoattn("run", FAMILY, "--preset", "tiny", "--force").stdout.split())
    assert "mean nothing biological, and no contacts are written" in said
    result = evoattn("run", FAMILY, "--preset", "tiny", "--save", "masked_msa_logits", "--force")
    assert result.exit_code == 2 and "give --weights too" in " ".join(result.output.split())


def test_a_file_without_heads(work: Path) -> None:
    with np.load(FILE) as file:
        np.savez(work / "trunk.npz", **{name: file[name] for name in file.files if "_head/" not in name})
    assert "contacts" not in written(weights=Path("trunk.npz"))
    assert "no distogram head" in (work / "family_evoattn" / "run.json").read_text()
    result = evoattn("run", FAMILY, "--preset", "mini", "--weights", "trunk.npz", "--save", "masked_msa_logits", "--force")
    assert result.exit_code == 1 and "has no masked MSA head" in result.stderr


def test_the_picture(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    assert draw_contacts(work, torch.eye(14), "a family").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(pipeline, "find_spec", lambda name: name)
    monkeypatch.setattr(pipeline, "draw", lambda folder, report: folder / "run.json")
    written("--save", "contacts")
    assert "contacts.png" in there(work / "family_evoattn")


def test_heads_under_openfold_names(work: Path) -> None:
    torch.manual_seed(0)
    shapes = {"aux_heads.distogram.linear": (64, 128), "aux_heads.masked_msa.linear": (23, 256)}
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    torch.save(state | {"evoformer.blocks.0.msa_att_row.mha.linear_q.weight": torch.ones(2, 2)}, work / "openfold.pt")
    save = ("contacts", "masked_msa_logits")
    heads = read_heads(RunSettings(FAMILY, preset="openfold_no_templates", weights=work / "openfold.pt", save=save))
    assert heads.distogram is not None and heads.masked_msa is not None
    assert torch.equal(heads.distogram.half_logits.weight, state["aux_heads.distogram.linear.weight"])
    assert torch.equal(heads.masked_msa.logits.bias, state["aux_heads.masked_msa.linear.bias"])
