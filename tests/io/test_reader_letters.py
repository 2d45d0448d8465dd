"""Letters and alphabets, and what the account says of them and of repeated rows."""

import pytest

from tests.io.alignments import INSERTIONS, texts


def test_odd_letters_are_mapped_and_counted(read) -> None:
    msa = read(">q\nMKVLMKVL\n>odd\nBZUOXJ*A\n>more\nB-..KBVL\n")
    assert texts(msa)[1:] == ["DECXXXXA", "D---KDVL"]
    assert msa.account.mapped == {"B": 3, "Z": 1, "U": 1, "J": 1, "O": 1, "*": 1}
    assert "B x3" in str(msa.account)


def test_a_star_between_columns_becomes_x(read) -> None:
    msa = read(">q\nM-V\n>a\nM*V\n")
    assert msa.insertions.row(1)[1] == b"X"
    assert "'*' among the insertions (read as X): 1" in msa.account.notes and msa.account.mapped == {}


def test_stop_codon_of_a_single_sequence_is_dropped(read) -> None:
    msa = read(">q\nMKVL*\n")
    assert (msa.query, msa.account.mapped) == ("MKVL", {})
    assert msa.account.notes == ("a '*' (stop codon) at the end of the sequence (dropped): 1",)
    assert texts(read(">q\nMKVL*\n>a\nMKVLW\n")) == ["MKVLX", "MKVLW"]


def test_lower_case_in_aligned_fasta_is_a_residue_and_is_noted(read) -> None:
    msa = read(">q\nMKvL\n>h\nmrVL\n")
    assert texts(msa) == ["MKVL", "MRVL"]
    assert msa.account.notes == ("lower-case letters of the query (read as residues, case means nothing in fasta): 1",)


def test_repeated_rows_are_kept_and_noted(read) -> None:
    msa = read(INSERTIONS)
    assert msa.n_seq == 4
    assert msa.account.notes == ("rows that repeat an earlier row, insertions aside (kept): 3",)


@pytest.mark.parametrize(
    ("content", "alphabet", "codes"),
    [
        (">rna\nACCAGGAUGGCN\n", "rna", [22, 24, 24, 22, 23, 23, 22, 25, 23, 23, 24, 30]),
        (">dna\nacgtacgtta\n>b\nacgtacgtta\n>c\nacgtRcgt-.\n", "dna", [26, 28, 27, 29, 26, 28, 27, 29, 29, 26]),
        (">few\nACGT\n", "protein", [0, 4, 7, 16]),
        (">two kinds\nGAGAGAGAGAGA\n", "protein", [7, 0] * 6),
        (">one in thirteen\nACGTACGTACGTW\n", "protein", [0, 4, 7, 16] * 3 + [17]),
    ],
)
def test_the_alphabet_is_told_by_the_letters(read, content: str, alphabet: str, codes: list[int]) -> None:
    msa = read(content)
    assert (msa.alphabet, msa.residues[0].tolist()) == (alphabet, codes)
    assert any("nearly all letters are A, C, G, T or U" in note for note in msa.account.notes) == (alphabet != "protein")
    assert msa.query == content.split("\n")[1].upper()


def test_the_alphabet_can_be_named(read) -> None:
    assert read(">rna\nACCAGGAUGGCN\n", alphabet="protein").residues[0, :3].tolist() == [0, 4, 4]
    msa = read(">q\nAC-TX\n", alphabet="rna")
    assert msa.residues.tolist() == [[22, 24, 25, 30]]
    assert msa.account.mapped == {"T": 1, "X": 1}
