"""Runs every file in examples/: an example that does not run is wrong."""

import json
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from evoattn import EvoformerConfig, PairformerConfig, profile, read_msa, write_msa
from evoattn.io.chains import crop_columns
from tests.helpers import assert_golden, golden

ROOT = Path(__file__).resolve().parents[1]
SAYS = {
    "build_stack.py": ["msa [2, 16, 24, 64], pair [2, 24, 24, 32], single [2, 24, 96]", "all with a gradient: True"],
    "run_on_msa.py": ["4 rows x 146 columns", "msa    [4, 146, 32]", "evoformer.blocks.1.msa_row.attn, query row, head 0: residue"],
}
DROP_IN = {  # and the module whose layers are replaced
    "drop_in_openfold.py": "openfold3.core.model.latent.evoformer",
    "drop_in_boltz.py": "boltz.model.layers.pairformer",
}


def test_every_example_is_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*SAYS, *DROP_IN, "train_contacts.py"}


def test_trains_on_families_and_compares_with_dca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_type_checks: None
) -> None:
    """Two families, both a part of the shipped one; two steps."""
    part = crop_columns(read_msa(ROOT / "data/dhfr.a3m.gz", max_rows=40), slice(0, 40))
    for name in ("one", "two"):
        (tmp_path / "families" / name).mkdir(parents=True)
        write_msa(part, tmp_path / "families" / name / "part.a3m")
        (tmp_path / "families" / name / "3ql0.pdb.gz").symlink_to(ROOT / "data/3ql0.pdb.gz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train_contacts.py", "families", "--held-out", "two", "--steps", "2", "--potts", "3"])
    runpy.run_path(str(ROOT / "examples" / "train_contacts.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "1 alignments of 1 families and 3 sampled ones to train on" in printed
    rows = {line.split()[0]: line.split()[2:4] for line in printed.splitlines()[-2:]}
    assert rows == {"one": ["trained", "on"], "two": ["held", "out"]}


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


@pytest.mark.parametrize(("name", "module"), DROP_IN.items())
@pytest.mark.filterwarnings("ignore")  # theirs warn of kernels that are absent
def test_replaces_in_their_model(name: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    package = module.split(".")[0]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    assert "largest difference" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "module"), DROP_IN.items())
def test_says_how_to_install_what_is_absent(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=f"pip install --no-deps {module.split('.')[0]}=="):
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")


def drop_in(example: str, file: dict[str, Any], config: EvoformerConfig | PairformerConfig, **which: str) -> nn.Module:
    """The example's replacement, from recorded parameters."""
    arrays = {name.removeprefix("param/"): torch.from_numpy(array) for name, array in file.items() if name.startswith("param/")}
    return runpy.run_path(str(ROOT / "examples" / example))["DropIn"](arrays, config, **which).eval()


def test_drop_in_openfold_gives_the_recorded_numbers() -> None:
    """Of a block of OpenFold itself, whose transitions are not masked; of such a block, names do not tell the monomer's from multimer's."""
    file = golden("openfold_evoformer_block")
    k = json.loads(str(file["meta_json"]))["kwargs"]
    config = EvoformerConfig(
        c_m=k["c_m"], c_z=k["c_z"], n_head_msa_row=k["no_heads_msa"], n_head_msa_column=k["no_heads_msa"], c_head_msa=k["c_hidden_msa_att"],
        n_head_tri_start=k["no_heads_pair"], n_head_tri_end=k["no_heads_pair"], c_head_tri=k["c_hidden_pair_att"],
        c_hidden_mul=k["c_hidden_mul"], c_hidden_opm=k["c_hidden_opm"], msa_transition_n=k["transition_n"],
        pair_transition_n=k["transition_n"], profile=profile("openfold"),
    )  # fmt: skip
    block = drop_in("drop_in_openfold.py", file, config, version="monomer")
    inputs = [torch.from_numpy(file[name]) for name in ("in/m", "in/z", "rand/msa_mask", "rand/pair_mask")]
    for name, got in zip(("msa", "pair"), block(*inputs, chunk_size=4, _mask_trans=False), strict=True):
        assert_golden(name, got, file[f"rand/out/{name}"])
    with pytest.raises(ValueError, match="_mask_trans is True"):
        block(*inputs)


def test_drop_in_boltz_gives_the_recorded_numbers() -> None:
    file = golden("boltz2_pairformer_layer")
    k = json.loads(str(file["meta_json"]))["kwargs"]
    config = PairformerConfig(
        c_s=k["token_s"], c_z=k["token_z"], n_head_single=k["num_heads"], n_head_tri_start=k["pairwise_num_heads"],
        n_head_tri_end=k["pairwise_num_heads"], c_head_tri=k["pairwise_head_width"], c_hidden_mul=k["token_z"], profile=profile("boltz"),
    )  # fmt: skip
    layer = drop_in("drop_in_boltz.py", file, config)
    inputs = [torch.from_numpy(file[name]) for name in ("in/s", "in/z", "rand/mask", "rand/pair_mask")]
    for name, got in zip(("s", "z"), layer(*inputs, 512, use_kernels=False), strict=True):
        assert_golden(name, got, file[f"rand/out/{name}"])
