"""Chains paired by species or by row, on cases made by hand."""

from dataclasses import replace

import numpy as np
import pytest

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, SparseLetters, join_chains, pair_rows, species_of
from tests.io.alignments import alignment, texts


def chain(rows: dict[str, str], **changes: object) -> MSA:
    """Header -> row."""
    headers = [header.partition(" ") for header in rows]
    names, descriptions = tuple(h[0] for h in headers), tuple(h[2] for h in headers)
    return alignment(list(rows.values()), names=names, descriptions=descriptions, **changes)


@pytest.mark.parametrize(
    ("header", "number", "code"),
    [
        ("sp|P68871|HBB_HUMAN Hemoglobin OS=Homo sapiens OX=9606 GN=HBB PE=1 SV=2", "9606", "HUMAN"),
        ("tr|A0A2D4I8J5|A0A2D4I8J5_MICLE Uncharacterized protein OX=129467 PE=4", "129467", "MICLE"),
        ("tr|A0A146SKV9|A0A146SKV9_FUNHE/12-99", "", "FUNHE"),
        ("UniRef100_A0A2L2TCV1 Endo n=1 Tax=Fusarium TaxID=56646 RepID=A0A2L2TCV1_9HYPO", "56646", "9HYPO"),
        ("UniRef100_A0A6J2WMZ1_29144/ 148", "29144", ""),
        ("HBB_HUMAN", "", "HUMAN"),
        ("HBB_HUMAN/3-140 x", "", "HUMAN"),
        ("1a3a_1_A", "", ""),
        ("6KWC_1", "", ""),
        ("query", "", ""),
        ("", "", ""),
        ("A_2_9606 FOX=12", "", ""),
    ],
)
def test_species_of_a_header(header: str, number: str, code: str) -> None:
    name, _, description = header.partition(" ")
    assert species_of(name, description) == (number, code)


@pytest.fixture
def two() -> list[MSA]:
    a = chain({"qa": "ARND", "a1 OX=1": "ARWW", "a2 OX=2": "ARNW", "a3 OX=1": "ARND", "a4 OX=3": "ARND", "a5": "ARND", "a6 OX=1": "WWWW"})
    b = chain({"qb": "CQE", "b1 OX=2": "CQE", "b2 OX=1": "CQW", "b3 OX=1": "CQE", "b4 OX=4": "CQE", "b5 OX=2": "CWW"})
    return [a, b]


def test_best_of_each_species(two: list[MSA]) -> None:
    # species 1: a3 and b3 are closest to their queries; species 2: a2 and b1. Products of row numbers: 9 and 2.
    assert pair_rows(two).tolist() == [[0, 0], [2, 1], [3, 3]]


def test_all_of_a_species_by_rank(two: list[MSA]) -> None:
    # species 1: a3, a1, a6 by falling identity, and b3, b2: two pairs; species 2: a2, and b1, b5: one pair
    assert pair_rows(two, match="rank").tolist() == [[0, 0], [1, 2], [2, 1], [3, 3]]


def test_a_species_with_too_many_rows_is_left_out(two: list[MSA]) -> None:
    assert pair_rows(two, max_per_species=2).tolist() == [[0, 0], [2, 1]]


def test_equals_go_by_file_order() -> None:
    a = chain({"qa": "AR", "a1 OX=1": "AW", "a2 OX=1": "WR"})
    b = chain({"qb": "ND", "b1 OX=1": "NW", "b2 OX=1": "ND"})
    assert pair_rows([a, b], match="rank").tolist() == [[0, 0], [1, 2], [2, 1]]
    assert pair_rows([a, b]).tolist() == [[0, 0], [1, 2]]


def test_the_best_is_the_closest_over_all_columns() -> None:
    a = chain({"qa": "ARND", "a1 OX=1": "A---", "a2 OX=1": "ARWW"})
    b = chain({"qb": "CQ", "b1 OX=1": "CQ"})
    assert pair_rows([a, b]).tolist() == [[0, 0], [2, 1]]


def test_three_chains_and_pairs_of_two() -> None:
    a = chain({"qa": "AR", "a1 OX=1": "AR", "a2 OX=2": "AR"})
    b = chain({"qb": "ND", "b1 OX=2": "ND", "b2 OX=1": "ND"})
    c = chain({"qc": "CQ", "c1 OX=2": "CQ"})
    assert pair_rows([a, b, c]).tolist() == [[0, 0, 0], [2, 1, 1], [1, 2, -1]]
    assert pair_rows([a, b, c], complete=True).tolist() == [[0, 0, 0], [2, 1, 1]]


def test_the_kind_of_tag_that_all_chains_have() -> None:
    a = chain({"qa": "AR", "P1_HUMAN x OX=9606": "AR", "P2_MOUSE x OX=10090": "AR"})
    b = chain({"qb": "ND", "P3_MOUSE": "ND", "P4_HUMAN": "ND"})
    assert pair_rows([a, b]).tolist() == [[0, 0], [1, 2], [2, 1]]
    assert pair_rows([a, b], by="taxonomy_id").tolist() == [[0, 0]]


def test_the_species_of_the_query_is_not_paired_with_it() -> None:
    a = chain({"P0_HUMAN": "AR", "P1_HUMAN": "AR"})
    b = chain({"P2_HUMAN": "ND", "P3_MOUSE": "ND"})
    assert pair_rows([a, b]).tolist() == [[0, 0]]


def test_by_row() -> None:
    a, b = alignment(["AR", "AW", "WW"]), alignment(["ND", "NW"])
    assert pair_rows([a, b], by="row").tolist() == [[0, 0], [1, 1]]


def test_no_tag_pairs_only_the_queries() -> None:
    assert pair_rows([alignment(["AR", "AW"]), alignment(["ND", "NW"])]).tolist() == [[0, 0]]
    assert pair_rows([alignment(["AR", "AW"])]).tolist() == [[0]]


def test_pairing_outside_what_is_allowed(no_type_checks: None) -> None:
    with pytest.raises(ConfigError, match="by is 'name'; allowed are 'species', 'taxonomy_id', 'mnemonic', 'row'"):
        pair_rows([alignment(["AR"])], by="name")
    with pytest.raises(ConfigError, match="match is 'all'"):
        pair_rows([alignment(["AR"])], match="all")
    with pytest.raises(MSAError, match="no chain was given"):
        pair_rows([])


# --- joining ---------------------------------------------------------------------------------------------------------


def test_joined_with_unpaired_rows_block_by_block(two: list[MSA]) -> None:
    found = join_chains(two, pairs=pair_rows(two))
    assert texts(found) == [
        "ARNDCQE",
        "ARNWCQE",
        "ARNDCQE",
        *("ARWW---", "ARND---", "ARND---", "WWWW---"),
        *("----CQW", "----CQE", "----CWW"),
    ]
    assert found.names == ("qa+qb", "a2+b1", "a3+b3", "a1", "a4", "a5", "a6", "b2", "b4", "b5")
    assert found.descriptions[1:4] == ("OX=2", "OX=1", "OX=1")
    assert (found.chain_lengths, found.chain_copies) == ((4, 3), (1, 1))
    assert found.account.rows_in == 13 and found.account.rows_kept == 10
    assert found.account.dropped == {"joined to a row of another chain": 3}
    assert found.account.notes == ("2 chains joined (pairs of rows: 2, rows of one chain: 7)",)
    noted = replace(two[1], account=replace(two[1].account, notes=("compressed (gzip)",)))
    assert join_chains([two[0], noted]).account.notes[0] == "chain 2: compressed (gzip)"


def test_joined_without_unpaired_rows(two: list[MSA]) -> None:
    found = join_chains(two, pairs=pair_rows(two), unpaired=False)
    assert found.names == ("qa+qb", "a2+b1", "a3+b3")
    assert found.account.dropped == {"neither paired nor among the unpaired rows": 7, "joined to a row of another chain": 3}
    assert found.account.rows_kept == found.account.rows_in - sum(found.account.dropped.values())


def test_pairs_of_some_chains_have_gaps_in_the_others() -> None:
    chains = [alignment(["AR", "AW"]), alignment(["ND", "NW"]), alignment(["CQ"])]
    found = join_chains(chains, pairs=np.array([[0, 0, 0], [1, 1, -1]]))
    assert texts(found) == ["ARNDCQ", "AWNW--"]


def test_nothing_pairs_by_itself(two: list[MSA]) -> None:
    found = join_chains(two)
    assert found.n_seq == 1 + 6 + 5 and texts(found)[0] == "ARNDCQE"


def test_rows_of_each_chain_are_limited(two: list[MSA]) -> None:
    found = join_chains(two, pairs=pair_rows(two), max_rows=4)
    # two of the three pairs, and two unpaired rows of each chain
    assert found.names == ("qa+qb", "a2+b1", "a1", "a4", "b2", "b4")
    assert found.account.rows_kept == found.account.rows_in - sum(found.account.dropped.values())


def test_copies_are_kept_and_given() -> None:
    a, b = alignment(["AR"], chain_lengths=(2,), chain_copies=(2,)), alignment(["NDC"])
    assert join_chains([a, b]).chain_copies == (2, 1)
    assert join_chains([a, b], copies=[1, 3]).chain_copies == (1, 3)


def test_insertions_move_along_and_those_between_chains_are_told() -> None:
    a = alignment(["AR", "AR"], insertions=SparseLetters.of_rows([[], [(1, "GG"), (2, "W")]]))
    b = alignment(["ND", "ND"], insertions=SparseLetters.of_rows([[], [(0, "K"), (2, "Y")]]))
    found = join_chains([a, b], pairs=pair_rows([a, b], by="row"))
    assert found.deletions.tolist() == [[0, 0, 0, 0], [0, 2, 1, 0]] and found.trailing.tolist() == [0, 1]
    assert "insertions after the last column of a chain before another (dropped): 1" in found.account.notes


def test_joining_outside_what_is_allowed(two: list[MSA], no_type_checks: None) -> None:
    with pytest.raises(MSAError, match="no chain was given"):
        join_chains([])
    with pytest.raises(MSAError, match="alignment 1 is of 2 chains; use split_chains"):
        join_chains([two[0], join_chains(two)])
    with pytest.raises(MSAError, match="the chains are of protein, rna"):
        join_chains([two[0], alignment(["ACGU"], alphabet="rna")])
    with pytest.raises(ConfigError, match="copies is \\[1\\]; it is one number"):
        join_chains(two, copies=[1])
    with pytest.raises(ConfigError, match="max_rows is 0"):
        join_chains(two, max_rows=0)
    for pairs in ([[0, 0], [7, 0]], [[0, 0], [-2, 0]], [[1, 0]], [[0, 0, 0]]):
        with pytest.raises(ConfigError, match="do not fit 2 chains of \\[7, 6\\] rows"):
            join_chains(two, pairs=np.array(pairs))
