"""``evoattn info``, ``evoattn explain``, help and version."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from evoattn.ops import ATTENTION, deepspeed, packages
from evoattn.ops.packages import missing_package
from evoattn.runs.environment import OPTIONAL
from tests.cli.commands import GLOBINS, ROOT, evoattn


def test_info() -> None:
    said = evoattn("info").stdout
    assert all(text in said for text in (f"torch      {torch.__version__}", "cpu", "sdpa", "matplotlib", "missing; pip install 'evoattn["))
    found = json.loads(evoattn("info", "--json").stdout)
    by_name = {backend["name"]: backend for backend in found["backends"]}
    assert list(by_name) == ATTENTION.names
    assert by_name["sdpa"] == {
        "name": "sdpa", "found": True, "version": torch.__version__, "usable": True, "why_not": {"cpu": []}, "missing": None, "doubts": {},
    } or torch.cuda.is_available()  # fmt: skip


def test_info_names_the_missing_part_of_each_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    missing_package.cache_clear()
    deepspeed.missing.cache_clear()
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    by_name = {backend["name"]: backend for backend in json.loads(evoattn("info", "--json").stdout)["backends"]}
    said = evoattn("info").stdout
    for name, package in {
        "cuequivariance": "cuequivariance_torch", "deepspeed": "deepspeed", "flash_attn": "flash_attn", "flex": "triton",
    }.items():  # fmt: skip
        assert f"{package} is not installed; pip install" in by_name[name]["missing"] and by_name[name]["missing"] in said
        assert not by_name[name]["found"] and by_name[name]["version"] is None
    missing_package.cache_clear()
    deepspeed.missing.cache_clear()


def test_optional_packages_are_those_of_the_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for optional in OPTIONAL:
        assert any(requirement.startswith(optional.package) for requirement in extras[optional.extra]), optional


def test_explain_one_attention() -> None:
    said = evoattn("explain", "--q-len", 256, "--batch", "1,128", "--heads", 8, "--d", 32).stdout
    assert "batch [1, 128], q 256, k 256, 8 heads of 32, biases [1, 1, 8, 256, 256], no mask, float32 on cpu, no gradients" in said
    assert "-> sdpa" in said
    options = ["--k-len", 9, "--batch", "", "--bias", "none", "--mask", "--dtype", "fp64", "--device", "cuda", "--grad"]
    said = evoattn("explain", *options).stdout
    assert "batch [], q 256, k 9, 8 heads of 32, no bias, mask [1, 1, 9], float64 on cuda, gradients" in said
    assert "-> streaming" in said and "no fused kernel for torch.float64 on cuda" in said
    assert "biases [4, 8, 256, 256]" in evoattn("explain", "--batch", "4", "--bias", "full").stdout


def test_explain_a_card_that_is_not_here() -> None:
    options = ["--n-seq", 512, "--n-res", 384, "--dtype", "bf16", "--device", "cuda", "--arch", "sm_90", "--grad"]
    said = evoattn("explain", *options).stdout
    assert "batch [1, 512], q 384, k 384" in said and "bfloat16 on cuda (sm_90), gradients incl. biases" in said
    assert all(name in said for name in ATTENTION.names) and "on cuda its gradient of a bias is expanded" in said
    assert "serves NVIDIA cards, not gfx942" in evoattn("explain", "--device", "cuda", "--arch", "gfx942").stdout
    assert "-> streaming" in evoattn("explain", "--device", "mps").stdout


def test_explain_an_architecture() -> None:
    said = evoattn("explain", "--preset", "af2", "--n-seq", 128, "--n-res", 256).stdout
    assert said.count("-> sdpa") == 8
    assert "Evoformer, MSA row\nattention of batch [128], q 256, k 256, 8 heads of 32, biases [1, 8, 256, 256]" in said


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--batch", "1,x"], "1,128"),
        (["--bias", "odd"], "pair"),
        (["--device", "tpu"], "cuda"),
        (["--preset", "af9"], "af2"),
        (["--device", "cuda", "--arch", "h100"], "sm_90"),
        (["--arch", "sm_90"], "--device cuda"),
        (["--dtype", "x"], "bf16"),
    ],
)
def test_explain_refuses(options: list[str], word: str) -> None:
    result = evoattn("explain", *options)
    assert result.exit_code == 2 and word in result.stderr


def test_help_and_version() -> None:
    assert evoattn("--version").stdout == "evoattn 0.1.0\n"
    said = " ".join(evoattn("run", "--help").stdout.split())
    assert "Exit codes: 0 done; 1 refused" in said and "--max-seqs" in said and "in file order" in said


def test_python_m_evoattn_in_a_process_of_its_own(work: Path) -> None:
    arguments = ["run", str(GLOBINS), "--preset", "tiny", "--json", "--out", str(work / "out"), "--save", "single"]
    command = [sys.executable, "-m", "evoattn", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"]["folder"] == str(work / "out")
