"""AlphaFold 3's MSA features, against loops over rows and columns."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from evoattn import profile
from evoattn.errors import ConfigError
from evoattn.io import MSA, alphafold3_features, pad_features, read_msa
from tests.io.alignments import alignment, random_alignment

ROOT = Path(__file__).resolve().parents[2]


def check(msa: MSA) -> None:
    found = alphafold3_features(msa)
    codes, deletions = msa.residues.tolist(), msa.deletions.tolist()
    for n in range(msa.n_res):
        profile = [sum(row[n] == code for row in codes) / msa.n_seq for code in range(32)]
        np.testing.assert_allclose(found["profile"][n].numpy(), profile, rtol=0, atol=1e-6)
        assert found["deletion_mean"][n].item() == pytest.approx(sum(row[n] for row in deletions) / msa.n_seq, abs=1e-5)
        assert found["restype"][n].tolist() == [code == codes[0][n] for code in range(32)]
        for s in range(msa.n_seq):
            assert found["msa"][s, n].tolist() == [code == codes[s][n] for code in range(32)]
            assert found["has_deletion"][s, n] == (deletions[s][n] > 0)
            assert found["deletion_value"][s, n].item() == pytest.approx(2 / math.pi * math.atan(deletions[s][n] / 3), abs=1e-6)
    assert found["msa_mask"].all() and found["msa_mask"].shape == (msa.n_seq, msa.n_res) and found["seq_mask"].all()


def test_a_random_alignment() -> None:
    check(random_alignment())


def test_a_real_family() -> None:
    check(read_msa(ROOT / "data/globins4.a3m"))


def test_nucleic_acids() -> None:
    found = alphafold3_features(alignment(["ACGUN", "-----"], alphabet="rna"))
    assert found["restype"].argmax(dim=1).tolist() == [22, 24, 23, 25, 30]
    assert found["profile"][:, 21].tolist() == [0.5] * 5


def family(tmp_path: Path) -> MSA:
    """Insertions of 0, 1 and 6 residues, a gap, and letters that systems read each in their own way."""
    (tmp_path / "family.a3m").write_text(">q\nAUR\n>a\nAgggggg-R\n>b\naABR\n>c\nAZgR\n")
    return read_msa(tmp_path / "family.a3m")


COUNTS = [[0, 0, 0], [0, 6, 0], [1, 0, 0], [0, 0, 1]]
CLASSES = {  # of the columns A, U - B Z and R; the amino acids in the order of their names, ALA ARG ASN ASP CYS GLN GLU ...
    "alphafold3": ([0, 0, 0, 0], [4, 21, 3, 6], [1, 1, 1, 1]), "protenix": ([0, 0, 0, 0], [4, 31, 3, 6], [1, 1, 1, 1]),
    "openfold3": ([0, 0, 0, 0], [20, 31, 20, 20], [1, 1, 1, 1]), "rosettafold3": ([0, 0, 0, 0], [20, 31, 20, 20], [1, 1, 1, 1]),
    "boltz": ([2, 2, 2, 2], [22, 1, 22, 22], [3, 3, 3, 3]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_each_system_reads_letters_and_insertions_in_its_own_way(name: str, tmp_path: Path) -> None:
    found = alphafold3_features(family(tmp_path), profile=profile(name), dtype=torch.float64)
    width = 33 if name == "boltz" else 32
    assert found["msa"].shape == (4, 3, width) and found["restype"].shape == found["profile"].shape == (3, width)
    assert found["msa"].argmax(dim=-1).T.tolist() == [list(column) for column in CLASSES[name]]
    assert found["restype"].argmax(dim=-1).tolist() == [column[0] for column in CLASSES[name]]
    np.testing.assert_allclose(found["profile"], found["msa"].mean(dim=0), atol=1e-7)
    factor = math.pi / 2 if name == "boltz" else 2 / math.pi
    values = [[factor * math.atan(count / 3) for count in row] for row in COUNTS]
    np.testing.assert_allclose(found["deletion_value"], values, atol=1e-6)
    assert found["has_deletion"].tolist() == [[min(count, 1) for count in row] for row in COUNTS]
    of_counts, of_values = (np.mean(numbers, axis=0) for numbers in (COUNTS, values))
    mean = {"boltz": of_values, "rosettafold3": factor * np.arctan(of_counts / 3)}.get(name, of_counts)
    np.testing.assert_allclose(found["deletion_mean"], mean, atol=1e-6)


@pytest.mark.parametrize("name", ["alphafold2", "esmfold", "msa_transformer"])
def test_systems_with_other_features_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the profile is '{name}', whose system takes other features; .* make_features makes"):
        alphafold3_features(random_alignment(), profile=profile(name))


def test_rows_are_drawn_and_the_profile_is_of_all() -> None:
    msa = random_alignment()
    whole, part = alphafold3_features(msa), alphafold3_features(msa, max_seqs=8, seed=1)
    assert part["msa"].shape == (8, 9, 32)
    torch.testing.assert_close(part["msa"][0], whole["msa"][0])
    torch.testing.assert_close(part["profile"], whole["profile"])
    torch.testing.assert_close(part["deletion_mean"], whole["deletion_mean"])
    torch.testing.assert_close(alphafold3_features(msa, max_seqs=8, seed=1)["msa"], part["msa"])
    assert not torch.equal(alphafold3_features(msa, max_seqs=8, seed=1, recycle=1)["msa"], part["msa"])


def test_copies_and_padding() -> None:
    msa = alignment(["ARN", "A-N"], chain_lengths=(3,), chain_copies=(2,))
    found = alphafold3_features(msa, dtype=torch.float64)
    assert found["residue_index"].tolist() == [0, 1, 2, 0, 1, 2] and found["sym_id"].tolist() == [1, 1, 1, 2, 2, 2]
    padded = pad_features(found, n_res=8, n_seq=5)
    assert padded["msa"].shape == (5, 8, 32) and padded["profile"].shape == (8, 32) and padded["asym_id"].tolist()[-2:] == [0, 0]
    torch.testing.assert_close(padded["msa"][:2, :6], found["msa"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": torch.int64}, "floating-point"),
        ({"seed": -1}, "seed is -1"),
        ({"max_seqs": 0}, "n_rows is 0"),
    ],
)
def test_settings_outside_what_is_allowed(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        alphafold3_features(random_alignment(), **settings)
