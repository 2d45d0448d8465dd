"""Chains of a complex: their columns, their numbers, and their copies."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evoattn.errors import MSAError
from evoattn.io import MSA, SparseLetters, chain_ids, expand_copies, join_chains, pair_rows, read_msa, split_chains
from evoattn.io.chains import chain_slices
from tests.io.alignments import alignment, random_alignment, texts


def complex_of(texts: list[str], lengths: tuple[int, ...], copies: tuple[int, ...], letters: list[list[tuple[int, str]]]) -> MSA:
    return alignment(texts, insertions=SparseLetters.of_rows(letters), chain_lengths=lengths, chain_copies=copies)


def letters(msa: MSA) -> list[list[tuple[int, str]]]:
    return [[(int(column), chr(letter)) for column, letter in zip(*msa.insertions.row(i), strict=True)] for i in range(msa.n_seq)]


LETTERS = [[], [(0, "A"), (2, "GG"), (5, "W")], [(3, "K")]]


@pytest.fixture
def dimer() -> MSA:
    return complex_of(["ARNDC", "AR-D-", "--NDC"], (2, 3), (1, 2), LETTERS)


def test_slices() -> None:
    assert chain_slices(random_alignment()) == [slice(0, 9)]
    assert chain_slices(alignment(["ARNDC"], chain_lengths=(2, 3), chain_copies=(1, 1))) == [slice(0, 2), slice(2, 5)]


def test_ids_count_sequences_and_their_copies() -> None:
    msa = alignment(["ARNARR"], chain_lengths=(2, 1, 2, 1), chain_copies=(1, 1, 1, 1))
    ids = chain_ids(msa)
    assert ids.asym_id.tolist() == [1, 1, 2, 3, 3, 4]
    assert ids.entity_id.tolist() == [1, 1, 2, 1, 1, 3]
    assert ids.sym_id.tolist() == [1, 1, 1, 2, 2, 1]
    assert ids.residue_index.tolist() == [0, 1, 0, 0, 1, 0]


def test_copies_get_columns(dimer: MSA) -> None:
    found = expand_copies(dimer)
    assert texts(found) == ["ARNDCNDC", "AR-D--D-", "--NDCNDC"]
    assert (found.chain_lengths, found.chain_copies) == ((2, 3, 3), (1, 1, 1))
    # insertions left of a chain's columns go with every copy, those after the last column with the last copy
    assert letters(found) == [[], [(0, "A"), (2, "G"), (2, "G"), (5, "G"), (5, "G"), (8, "W")], [(3, "K"), (6, "K")]]
    assert found.names == dimer.names and found.account == dimer.account
    assert expand_copies(found) is found


def test_chains_split(dimer: MSA) -> None:
    first, second = split_chains(dimer)
    assert texts(first) == ["AR", "AR"] and texts(second) == ["NDC", "-D-", "NDC"]
    assert first.names == ("r0", "r1") and first.account.dropped == {"no residue in this chain": 1}
    assert letters(first) == [[], [(0, "A")]] and letters(second) == [[], [(0, "G"), (0, "G"), (3, "W")], [(1, "K")]]
    assert (first.chain_lengths, second.chain_lengths, second.chain_copies) == ((2,), (3,), (2,))


def test_split_and_joined_is_the_same(dimer: MSA) -> None:
    chains = split_chains(dimer, drop_empty=False)
    joined = join_chains(chains, pairs=pair_rows(chains, by="row"))
    assert texts(joined) == texts(dimer) and letters(joined) == letters(dimer)
    assert (joined.names, joined.descriptions) == (dimer.names, dimer.descriptions)
    assert (joined.chain_lengths, joined.chain_copies) == (dimer.chain_lengths, dimer.chain_copies)


def test_letters_read_as_others_go_along(dimer: MSA) -> None:
    msa = replace(dimer, unusual=SparseLetters.of_rows([[(4, "U")], [], []]))
    assert expand_copies(msa).unusual.row(0)[0].tolist() == [4, 7]
    chains = split_chains(msa, drop_empty=False)
    assert len(chains[0].unusual) == 0 and chains[1].unusual.row(0)[0].tolist() == [2]
    assert join_chains(chains).unusual.row(0)[0].tolist() == [4]


def test_a_chain_without_query_is_refused() -> None:
    msa = alignment(["AR---", "ARNDC"], chain_lengths=(2, 3), chain_copies=(1, 1))
    with pytest.raises(MSAError, match=r"row 0 \('r0'\), has no residue in chain 2, columns 2..4"):
        split_chains(msa)


def test_two_copies_of_a_server_file(shared: Path) -> None:
    msa = read_msa(shared / "data/derived/4OT_homodimer.colabfold.a3m")  # its first line is #59<TAB>2
    found = expand_copies(msa)
    assert found.n_res == 2 * msa.n_res == 118
    assert chain_ids(found).sym_id.tolist() == [1] * 59 + [2] * 59 and (chain_ids(found).entity_id == 1).all()
    np.testing.assert_array_equal(found.residues[:, 59:], msa.residues)
