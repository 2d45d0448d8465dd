"""The classes of published systems, against their vocabularies written out token by token."""

from pathlib import Path

import numpy as np
import pytest

from evoattn import MSAError, read_msa
from evoattn.config import PROFILES
from evoattn.io.residue_tables import RESIDUE_TABLES
from evoattn.io.residues import MASKED, N_CODES
from tests.io.alignments import alignment

AMINO_ACIDS = {
    "ALA": "A", "ARG": "R", "ASN": "N", "ASP": "D", "CYS": "C", "GLN": "Q", "GLU": "E", "GLY": "G", "HIS": "H", "ILE": "I", "LEU": "L",
    "LYS": "K", "MET": "M", "PHE": "F", "PRO": "P", "SER": "S", "THR": "T", "TRP": "W", "TYR": "Y", "VAL": "V",
}  # fmt: skip
PROTEIN = [*sorted(AMINO_ACIDS), "UNK"]
AGCU, ACGU = ["A", "G", "C", "U"], ["A", "C", "G", "U"]
AGCT, ACGT = ["DA", "DG", "DC", "DT"], ["DA", "DC", "DG", "DT"]
ORDER = {  # table -> its classes in order, as the published code lists them
    "alphafold3": [*PROTEIN, "-", *AGCU, *AGCT, "N or DN"],
    "protenix": [*PROTEIN, *AGCU, "N", *AGCT, "DN", "-"],
    "openfold3": [*PROTEIN, *AGCU, "N", *AGCT, "DN", "-"],
    "rosettafold3": [*PROTEIN, *ACGU, "N", *ACGT, "DN", "-"],
    "boltz": ["<pad>", "-", *PROTEIN, *AGCU, "N", *AGCT, "DN"],
}
N_CLASSES = {"alphafold2": 23, "alphafold3": 32, "protenix": 32, "openfold3": 32, "rosettafold3": 32, "boltz": 33, "esm": 33}
LETTERS = "".join(AMINO_ACIDS[name] for name in sorted(AMINO_ACIDS)) + "BZUJOX*-"
ALPHAFOLDS = {"B": "D", "Z": "E", "U": "C", "J": "X", "O": "X", "*": "X"}
ALL_UNKNOWN = dict.fromkeys("BZUJO*", "X")
READS = {"alphafold3": ALPHAFOLDS, "protenix": ALPHAFOLDS, "openfold3": ALL_UNKNOWN, "rosettafold3": ALL_UNKNOWN, "boltz": ALL_UNKNOWN}


def classes(table: str, text: str, tmp_path: Path, kind: str = "protein") -> list[int]:
    """Of the second row of a file whose query is plain, so that every letter may stand there."""
    path = tmp_path / "family.afa"
    path.write_text(f">query\n{'A' * len(text)}\n>hit\n{text}\n")
    return RESIDUE_TABLES[table].classes(read_msa(path, alphabet=kind))[1].tolist()


def test_every_profile_has_a_table_and_every_table_a_size() -> None:
    assert {profile.residues for profile in PROFILES.values()} == RESIDUE_TABLES.keys()
    assert {name: table.n_classes for name, table in RESIDUE_TABLES.items()} == N_CLASSES


@pytest.mark.parametrize("name", ORDER)
def test_proteins(name: str, tmp_path: Path) -> None:
    three = {one: long for long, one in AMINO_ACIDS.items()} | {"X": "UNK", "-": "-"}
    expected = [ORDER[name].index(three[READS[name].get(letter, letter)]) for letter in LETTERS]
    assert classes(name, LETTERS, tmp_path) == expected


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize(("kind", "letters"), [("rna", "ACGUN-"), ("dna", "ACGTN-")])
def test_nucleic_acids(name: str, kind: str, letters: str, tmp_path: Path) -> None:
    before = "D" if kind == "dna" else ""
    tokens = ["-" if letter == "-" else f"{before}{letter}" for letter in letters]
    order = ORDER[name]
    expected = [order.index("N or DN" if token in ("N", "DN") and token not in order else token) for token in tokens]
    assert classes(name, letters, tmp_path, kind) == expected


def test_alphafold2_has_the_codes_themselves() -> None:
    codes = np.arange(N_CODES, dtype=np.uint8)[None]
    msa = alignment(["A" * N_CODES])
    object.__setattr__(msa, "residues", codes)
    assert RESIDUE_TABLES["alphafold2"].classes(msa).tolist() == codes.tolist()


def test_unusual_letters_follow_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "family.a3m"
    path.write_text(">q\nMAUK\n>a\nMaB-K\n>b\nZAUK\n")
    msa = read_msa(path)
    boltz = RESIDUE_TABLES["boltz"]
    assert boltz.classes(msa).tolist() == [[14, 2, 22, 13], [14, 22, 1, 13], [22, 2, 22, 13]]
    assert boltz.classes(msa, slice(1, 3)).tolist() == boltz.classes(msa).tolist()[1:]
    assert boltz.classes(msa.take([2, 0])).tolist() == [boltz.classes(msa).tolist()[row] for row in (2, 0)]


def test_hidden_cells_and_other_molecules() -> None:
    msa = alignment(["ARN", "ARN"])
    msa.residues[1, 1] = MASKED
    assert RESIDUE_TABLES["alphafold2"].classes(msa)[1].tolist() == [0, 22, 2]
    assert RESIDUE_TABLES["esm"].classes(msa)[1].tolist() == [5, 32, 17]
    with pytest.raises(MSAError, match="hidden cells, '\\?', for which the residue table 'boltz' has no class"):
        RESIDUE_TABLES["boltz"].classes(msa)
    with pytest.raises(MSAError, match="the alignment is of rna; the residue table 'esm' is of protein alone"):
        RESIDUE_TABLES["esm"].classes(alignment(["ACGU"], alphabet="rna"))
