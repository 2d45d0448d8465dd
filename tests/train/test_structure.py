"""Structures in the columns of the query, against files written by hand and the shipped crystal structure."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from evoattn import read_msa
from evoattn.errors import StructureError
from evoattn.io.residues import AMINO_ACIDS
from evoattn.train.structure import AMINO_ACID_NAMES, read_chains, read_structure

DATA = Path(__file__).resolve().parents[2] / "data"
NAME_OF = {letter: name for name, letter in AMINO_ACID_NAMES.items()}
QUERY = "MKVAWCDEFGHIKLNPQRST"


def atom(
    number: int | str, name: str = "ALA", at: str = "CA", x: float = 0.0, y: float = 0.0, *, chain: str = "A", alt: str = " ",
    occupancy: float = 1.0, hetero: bool = False,
) -> str:  # fmt: skip
    digits = str(number).rstrip("ABC")
    code = str(number)[len(digits) :] or " "
    record = "HETATM" if hetero else "ATOM  "
    place = f"{x:8.3f}{y:8.3f}{0.0:8.3f}"
    return f"{record}    1  {at:<3}{alt}{name} {chain}{digits:>4}{code}   {place}{occupancy:6.2f}{0.0:6.2f}          {at[0]:>2}"


def residue(number: int | str, name: str, place: int, **settings: object) -> list[str]:
    """C-alpha on the x axis, 3.8 Angstrom per place; C-beta 1.5 Angstrom above it."""
    atoms = [atom(number, name, "CA", 3.8 * place, 0.0, **settings)]  # type: ignore[arg-type]
    return atoms if name == "GLY" else [*atoms, atom(number, name, "CB", 3.8 * place, 1.5, **settings)]  # type: ignore[arg-type]


def chain(letters: str, *, start: int = 1, name: str = "A") -> list[str]:
    return [line for i, letter in enumerate(letters) for line in residue(start + i, NAME_OF[letter], start + i, chain=name)]


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join([*lines, "END"]) + "\n")
    return path


def test_letters_numbers_and_places(tmp_path: Path) -> None:
    found = read_structure(written(tmp_path / "a.pdb", chain(QUERY)), QUERY)
    assert found.letters == QUERY and found.numbers == tuple(str(i) for i in range(1, 21))
    above = np.array([0.0 if letter == "G" else 1.5 for letter in QUERY])
    assert np.allclose(found.cb, np.stack([3.8 * np.arange(1, 21), above, np.zeros(20)], axis=1), atol=1e-3)
    assert found.distances[0, 3] == pytest.approx(3 * 3.8, abs=1e-3) and found.resolved.all()
    assert found.account.identity == 1 and found.account.chosen == "the only chain"


def test_missing_residues_stay_where_their_numbers_say(tmp_path: Path) -> None:
    """Without the numbers the residues on both sides of the loop could be anywhere in a run of equal letters."""
    query = "MKVAAAAAAAAAAAAWCDEF"
    lines = chain(query[:5]) + chain(query[12:], start=13)
    found = read_structure(written(tmp_path / "a.pdb", lines), query)
    assert found.letters == "MKVAA-------AAAWCDEF"
    assert found.account.unobserved == (6, 7, 8, 9, 10, 11, 12)
    assert np.isnan(found.distances[5]).all() and not np.isnan(found.distances[4, 12])


def test_a_jump_in_the_numbers_of_a_whole_chain_means_nothing(tmp_path: Path) -> None:
    lines = [line for i, letter in enumerate(QUERY) for line in residue(i + (1 if i < 10 else 101), NAME_OF[letter], i)]
    assert read_structure(written(tmp_path / "a.pdb", lines), QUERY).letters == QUERY


def test_modified_residues_are_read_as_their_parents(tmp_path: Path) -> None:
    lines = [*residue(1, "MSE", 1, hetero=True), *chain(QUERY[1:], start=2)]
    ligands = [(301, "GLU", "CA"), (302, "ATP", "CA"), (303, "HOH", "O")]
    lines += [atom(number, name, at, 5, 5, hetero=True) for number, name, at in ligands]
    found = read_structure(written(tmp_path / "a.pdb", lines), QUERY)
    assert found.letters == QUERY and found.account.left_out == ()
    assert "modified residues: MSE 1 as M" in found.account.notes


@pytest.mark.parametrize("inserted", [1, 2])
def test_insertion_codes(inserted: int, tmp_path: Path) -> None:
    """Number 5 is the query's residue, 5A is extra, though both have the same letter."""
    lines = chain(QUERY[:5])
    for code in "AB"[:inserted]:
        lines += residue(f"5{code}", NAME_OF[QUERY[4]], 5)
    found = read_structure(written(tmp_path / "a.pdb", lines + chain(QUERY[5:], start=6)), QUERY)
    assert found.letters == QUERY and found.numbers[4:6] == ("5", "6")
    assert found.account.left_out == tuple(f"W5{code}" for code in "AB"[:inserted])


def test_the_fullest_alternative_counts(tmp_path: Path) -> None:
    two = [atom(3, "VAL", "CA", 11.4, 0, alt=alt, occupancy=part) for alt, part in (("A", 0.4), ("B", 0.6))]
    two += [atom(3, "VAL", "CB", 11.4, y, alt=alt, occupancy=part) for alt, y, part in (("A", 1.5, 0.4), ("B", -1.5, 0.6))]
    tie = [atom(4, "ALA", at, 15.2, y, alt=alt, occupancy=0.5) for at, alt, y in (("CA", "A", 0), ("CB", "A", 1.5), ("CB", "B", -1.5))]
    found = read_structure(written(tmp_path / "a.pdb", chain(QUERY[:2]) + two + tie + chain(QUERY[4:], start=5)), QUERY)
    assert found.cb[2, 1] == pytest.approx(-1.5) and found.cb[3, 1] == pytest.approx(1.5)
    assert "residues with alternative locations (the fullest is taken): 2" in found.account.notes


def test_two_kinds_of_residue_at_one_place(tmp_path: Path) -> None:
    lines = [line for alt, name, part in (("A", "SER", 0.3), ("B", "VAL", 0.7)) for line in residue(3, name, 3, alt=alt, occupancy=part)]
    found = read_structure(written(tmp_path / "a.pdb", chain(QUERY[:2]) + lines + chain(QUERY[3:], start=4)), QUERY)
    assert found.letters == QUERY


def test_a_residue_without_c_beta_is_not_resolved(tmp_path: Path) -> None:
    lines = [line for line in chain(QUERY) if not (" CB " in line and int(line[22:26]) == 4)]
    found = read_structure(written(tmp_path / "a.pdb", lines), QUERY)
    assert found.letters == QUERY and np.flatnonzero(~found.resolved).tolist() == [3]
    assert "residues without C-beta: 1" in found.account.notes


def test_chains(tmp_path: Path) -> None:
    """The one most like the query is taken, others of its sequence are copies, further ones are neither."""
    mutant = "A" + QUERY[1:]
    shifted = [line.replace("   0.000   0.000  1.00", "   0.000   6.000  1.00") for line in chain(QUERY, name="C")]
    lines = chain("".join(reversed(AMINO_ACIDS)), name="P") + chain(mutant, name="A") + chain(QUERY, name="B") + shifted
    path = written(tmp_path / "a.pdb", lines)
    found = read_structure(path, QUERY)
    assert found.account.chain == "B" and found.account.chosen == "of 4 the one most like the query"
    assert found.account.copies == ("A", "C") and "copies of the chain: A, C" in str(found.account)
    asked = read_structure(path, QUERY, chain="A")
    assert asked.account.differ == ("M1A",) and asked.account.chosen == "as asked"
    with pytest.raises(StructureError, match=r"a.pdb has no protein chain 'X'; it has P \(20 residues\), A \(20 residues\)"):
        read_structure(path, QUERY, chain="X")
    with pytest.raises(StructureError, match=r"chain P is not of this family: .* and 30 % of those be identical"):
        read_structure(path, QUERY, chain="P")


def test_distances_across_chains(tmp_path: Path) -> None:
    """Chain B stands 5 Angstrom beside A, three residues further along."""
    beside = [f"{line[:30]}{float(line[30:38]) + 11.4:8.3f}{line[38:46]}{5.0:8.3f}{line[54:]}" for line in chain(QUERY, name="B")]
    found = read_structure(written(tmp_path / "a.pdb", chain(QUERY) + beside), QUERY, chain="A")
    assert found.distances_across[4, 1] == pytest.approx(5.0, abs=1e-3) == found.distances_across[1, 4]
    alone = read_structure(written(tmp_path / "b.pdb", chain(QUERY)), QUERY)
    assert np.isinf(alone.distances_across).all()


def test_the_first_of_several_models(tmp_path: Path) -> None:
    other = [line.replace("   1.500", "   9.500") for line in chain(QUERY)]
    lines = ["MODEL        1", *chain(QUERY), "ENDMDL", "MODEL        2", *other, "ENDMDL"]
    found = read_structure(written(tmp_path / "a.pdb", lines), QUERY)
    assert found.cb[0, 1] == pytest.approx(1.5) and "models of the file: 2; the first is read" in found.account.notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as PDB or mmCIF"),
        (b"not a structure\n", "has no protein chain"),
        (b"data_x\n#\n", "mmCIF"),
        (gzip.compress(b"x", mtime=0)[:8], "cannot be read"),
        (b"\xff\xfea\0t\0o\0m\0" * 9, "UTF-16"),
    ],
)
def test_what_is_no_structure_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.pdb").write_bytes(content)
    with pytest.raises(StructureError, match=message):
        read_chains(tmp_path / "a.pdb")


def test_a_query_that_is_no_protein(tmp_path: Path) -> None:
    with pytest.raises(StructureError, match="the query has the letters U; a structure is laid on a protein"):
        read_structure(written(tmp_path / "a.pdb", chain(QUERY)), "ACGUACGU")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(StructureError, match=r"none.pdb: the file cannot be read: No such file"):
        read_chains(tmp_path / "none.pdb")


def test_the_shipped_structure() -> None:
    """Against its README, and a reader of fixed columns that takes the fullest C-beta."""
    msa = read_msa(DATA / "dhfr.a3m.gz", max_rows=1)
    found = read_structure(DATA / "3ql0.pdb.gz", msa.query)
    assert found.numbers == tuple(str(i) for i in range(1, 159))
    assert (found.account.identical, found.account.observed) == (156, 158)
    assert found.account.differ == ("N23P", "S148A") and found.account.left_out == ("P23A", "R159")
    best: dict[str, tuple[float, list[float]]] = {}
    for line in gzip.decompress((DATA / "3ql0.pdb.gz").read_bytes()).decode().splitlines():
        wanted = "CA" if line[17:20] == "GLY" else "CB"
        if line.startswith("ATOM") and line[12:16].strip() == wanted and line[26] == " ":
            number, part = line[22:26].strip(), float(line[54:60])
            if part > best.get(number, (0.0, []))[0]:
                best[number] = part, [float(line[i : i + 8]) for i in (30, 38, 46)]
    assert np.allclose(found.cb, [best[number][1] for number in found.numbers], atol=1e-3)
    assert np.count_nonzero(np.triu(found.distances <= 8, 6)) == 348


@pytest.mark.parametrize(
    ("structure", "alignment", "chain", "observed", "copies"),
    [
        ("ras_721p/721p-assembly1.cif", "ras_721p/721p_A.a3m", "A", 166, ("B",)),
        ("ptsIIA_1a3a/1a3a.pdb", "ptsIIA_1a3a/1a3a_1_A.a3m", "A", 145, ("B", "C", "D")),
        ("bcl3_1k1a/1k1a.cif", "bcl3_1k1a/1k1a.a3m", "A", 228, ()),
        ("par3_4i6p/4i6p.cif", "par3_4i6p/bfd_uniclust_hits.a3m", "A", 84, ("B",)),
        ("myoglobin_102m/101m.pdb", "myoglobin_102m/102m.a3m", "A", 154, ()),
    ],
)
def test_real_structures(structure: str, alignment: str, chain: str, observed: int, copies: tuple[str, ...], shared: Path) -> None:
    families = shared / "data" / "families"
    found = read_structure(families / structure, read_msa(families / alignment, max_rows=1).query)
    assert (found.account.chain, found.account.observed, found.account.copies) == (chain, observed, copies)
    assert found.account.identity > 0.98
