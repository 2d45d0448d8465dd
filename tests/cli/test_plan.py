"""``evoattn plan``: sizes by hand or of a file, what fits, and what would."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import FAMILY, evoattn


def test_a_table() -> None:
    result = evoattn("plan", "--n-res", 4096, "--n-seq", 128, "--budget", "24GiB", "--device", "cpu")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["pair", "representation", "8.00", "GiB"] in lines and ["budget", "24", "GiB", "fits"] in lines
    assert [line[1] for line in lines if line[:1] == ["Evoformer,"]][:3] == ["msa_row", "msa_column", "msa_transition"]


def test_sizes_of_a_file() -> None:
    """The rows that `run` takes of it: 4 of 14 columns, none left for the extra stack."""
    result = evoattn("plan", FAMILY, "--preset", "tiny", "--budget", "1GiB", "--json")
    found = json.loads(result.stdout)
    assert found["sizes"] == {"n_seq": 4, "n_res": 14, "n_extra": 0, "n_templates": 0, "batch": 1}
    assert found["fits"] and found["slices"]["Evoformer, tri_mul_out"] == 14 and found["advice"] == []
    fewer = json.loads(evoattn("plan", FAMILY, "--preset", "tiny", "--n-seq", 3, "--json").stdout)
    assert (fewer["sizes"]["n_seq"], fewer["sizes"]["n_extra"]) == (3, 1)


@pytest.mark.parametrize(("name", "n_res"), [("titin_human_N2B_26926", "26,926"), ("A0A8A9J5M6_SARS2_ORF1ab", "7,096")])
def test_long_proteins_do_not_fit(name: str, n_res: str, shared: Path) -> None:
    result = evoattn("plan", shared / "data" / "long" / f"{name}.fasta", "--budget", "24GiB")
    assert result.exit_code == 3 and f"x {n_res} residues" in result.stdout and "DOES NOT FIT" in result.stdout
    assert "In bfloat16 it needs" in result.stdout and "residues fit" in result.stdout


def test_training() -> None:
    result = evoattn("plan", "--n-res", 24, "--n-seq", 4, "--n-extra", 4, "--preset", "tiny", "--training", "--budget", "1GiB")
    assert result.exit_code == 0 and result.stdout.startswith("training of tiny") and "kept for the backward pass" in result.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give the number of residues, --n-res, or an alignment"),
        ((FAMILY, "--n-res", 5), "one of them"),
        (("--n-res", 5, "--dtype", "fp8"), "dtype is 'fp8'"),
        (("--n-res", 5, "--device", "tpu"), "device is 'tpu'; allowed are cpu, and cuda"),
        (("--n-res", 5, "--preset", "af9"), "no preset 'af9'"),
        (("--n-res", 5, "--budget", "lots"), "a memory size is 'lots'"),
    ],
)
def test_wrong_usage(options: tuple[object, ...], words: str) -> None:
    result = evoattn("plan", *options)
    assert result.exit_code == 2 and words in " ".join(result.stderr.replace("│", " ").split())
