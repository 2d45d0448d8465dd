"""The residue table."""

import re
import string

import numpy as np
import pytest

from evoattn.errors import MSAError
from evoattn.io import residues


def test_codes_are_those_of_alphafold2() -> None:
    assert residues.encode("ARNDCQEGHILKMFPSTWYVX-").tolist() == list(range(22))
    assert residues.encode("arndcqeghilkmfpstwyvx.").tolist() == list(range(22))


def test_letters_that_are_read_as_others() -> None:
    # HHBLITS_AA_TO_ID of AlphaFold 2 gives B, Z, U the numbers of D, E, C, and J, O that of X.
    np.testing.assert_array_equal(residues.encode("BZUJO*bzujo"), residues.encode("DECXXXDECXX"))


def test_every_letter_of_the_alphabet_has_a_code_and_nothing_else_has() -> None:
    allowed = {chr(byte) for byte in range(256) if residues.CODE_OF_BYTE[byte] != residues.INVALID}
    assert allowed == {*string.ascii_letters, "-", ".", "*"}


def test_decode_returns_the_letters() -> None:
    assert residues.decode(np.arange(23)) == "ARNDCQEGHILKMFPSTWYVX-?"


@pytest.mark.parametrize(("text", "position", "character"), [("MK1L", 3, "1"), ("é", 1, "é"), ("Mé?", 2, "é"), ("A:C", 2, ":")])
def test_other_characters_are_named(text: str, position: int, character: str) -> None:
    with pytest.raises(MSAError, match=re.escape(f"character {character!r} at position {position} is neither a residue nor a gap")):
        residues.encode(text)


def test_nucleotides_have_alphafold3s_codes() -> None:
    # _RNA_TO_ID and _DNA_TO_ID of AlphaFold 3: gap 21, RNA from 22, DNA from 26, unknown 30.
    assert residues.encode("AGCUN-.", "rna").tolist() == [22, 23, 24, 25, 30, 21, 21]
    assert residues.encode("agctn-.", "dna").tolist() == [26, 27, 28, 29, 30, 21, 21]
    assert residues.encode("TRYX*", "rna").tolist() == [25, 30, 30, 30, 30]
    assert residues.encode("UKMB*", "dna").tolist() == [29, 30, 30, 30, 30]
    assert residues.decode(np.array([22, 23, 24, 25, 30, 21]), "rna") == "AGCUN-"
    assert residues.decode(np.array([26, 27, 28, 29, 30, 21]), "dna") == "AGCTN-"


@pytest.mark.parametrize("alphabet", residues.ALPHABETS.values(), ids=repr)
def test_every_alphabet_reads_every_letter(alphabet: residues.Alphabet) -> None:
    allowed = {chr(byte) for byte in range(256) if alphabet.code_of_byte[byte] != residues.INVALID}
    assert allowed == {*string.ascii_letters, "-", ".", "*"}
    own = {letter for letter in alphabet.letters if letter != "?"}
    assert own | alphabet.read_as.keys() == {*string.ascii_uppercase, "-", "*"}
