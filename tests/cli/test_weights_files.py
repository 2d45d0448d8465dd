"""``evoattn weights``: inspect, convert and list."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evoattn.weights import FAMILIES
from tests.cli.commands import ROOT, evoattn, there
from tests.helpers import GOLDEN

MINI = GOLDEN / "params_model_1_mini.npz"


def test_inspect_a_published_file() -> None:
    result = evoattn("weights", "inspect", MINI)
    assert result.exit_code == 0, result.output
    for words in (
        "params_model_1_mini.npz: npz\n", "AlphaFold 2 monomer, numerics 'alphafold2'", "336 arrays (336 float32)", "45 structure module"
    ):  # fmt: skip
        assert words in result.stdout
    said = json.loads(evoattn("weights", "inspect", MINI, "--json", "--names").stdout)
    with np.load(MINI) as file:
        assert said["shapes"] == {name: list(file[name].shape) for name in file.files}
        assert said["numbers"] == sum(file[name].size for name in file.files)
    assert said["identity"] == [{"family": "alphafold2", "version": "monomer", "profile": "alphafold2"}]


def test_inspect_what_cannot_be_told(work: Path) -> None:
    with np.load(MINI) as file:
        block = {name.split("/evoformer_iteration/")[1]: file[name] for name in file.files if "/evoformer_iteration/" in name}
    np.savez("block.npz", **block)
    said = evoattn("weights", "inspect", "block.npz").stdout
    assert "AlphaFold 2 monomer" in said and "multimer_v1_v2" in said and "the names cannot tell which" in said
    torch.save({"state_dict": {"x": torch.ones(2)}, "model": {"y": torch.ones(3)}}, "other.ckpt")
    said = evoattn("weights", "inspect", "other.ckpt").stdout
    assert "read      the entry 'state_dict'; not 'model'" in said and "of no family known" in said
    assert "3 numbers" in evoattn("weights", "inspect", "other.ckpt", "--entry", "model").stdout


def test_convert_there_and_back(work: Path) -> None:
    result = evoattn("weights", "convert", MINI, "ours.safetensors")
    assert result.exit_code == 0, result.output
    assert "ours.safetensors: alphafold2 monomer, 473 arrays converted, 59 kept as they are" in result.stdout and not result.stderr
    assert "safetensors converted by evoattn" in evoattn("weights", "inspect", "ours.safetensors").stdout
    assert evoattn("weights", "convert", "ours.safetensors", "theirs.npz").exit_code == 0
    with np.load(MINI) as file, np.load("theirs.npz") as again:
        assert sorted(file.files) == sorted(again.files)
        assert all(np.array_equal(file[name], again[name]) for name in file.files)
    again_refused = evoattn("weights", "convert", MINI, "ours.safetensors")
    assert again_refused.exit_code == 1 and "ours.safetensors exists" in again_refused.stderr
    assert evoattn("weights", "convert", MINI, "ours.safetensors", "--force").exit_code == 0
    assert there(work) == ["ours.safetensors", "theirs.npz"]


def test_terms_that_forbid_passing_on_are_told(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "alphafold2", replace(FAMILIES["alphafold2"], forbids_conversion=True))
    result = evoattn("weights", "convert", MINI, "ours.safetensors")
    assert result.exit_code == 0 and "do not pass it on" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inspect", "absent.npz"), "there is no file absent.npz"),
        (("convert", MINI, "x.npz"), "does not end in a format"),
        (("convert", MINI, "x.safetensors", "--family", "nobody"), "there is no family 'nobody'"),
    ],
)
def test_what_is_refused(arguments: tuple[object, ...], words: str, work: Path) -> None:
    result = evoattn("weights", *arguments)
    assert result.exit_code == 1 and words in result.stderr
    assert there(work) == []


def test_list() -> None:
    said = evoattn("weights", "list").stdout
    rows = json.loads(evoattn("weights", "list", "--json").stdout)
    assert [row["family"] for row in rows] == list(FAMILIES)
    for family in FAMILIES.values():
        assert all(text in said for text in (family.title, family.source, family.licence, family.line))


def test_the_page_has_every_family() -> None:
    page = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
    for family in FAMILIES.values():
        versions = ", ".join(f"`{version}`" for version in family.versions)
        assert f"| {family.title} | `{family.name}` | {versions} | {family.source} | {family.licence} |" in page


def test_the_terms_of_alphafold3_are_known() -> None:
    family = FAMILIES["alphafold3"]
    assert family.forbids_conversion and "Terms of Use" in family.licence and "passed on" in family.licence
