"""Reading a3m and FASTA text: insertions, first lines, blocks between NUL bytes, names."""

import numpy as np
import pytest

from evoattn.errors import ConfigError, MSAError
from tests.io.alignments import INSERTIONS, assert_same, texts


def test_insertions_are_counted_left_of_the_next_column(read) -> None:
    msa = read(INSERTIONS)
    assert msa.format == "a3m"
    assert msa.names == ("q", "mid", "left", "right")
    assert texts(msa) == ["MKVL"] * 4
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 0, 0, 2]
    assert msa.residues.dtype == np.uint8 and msa.deletions.dtype == np.int32


def test_dots_mean_nothing_in_a3m(read) -> None:
    assert_same(read(INSERTIONS), read(">q\nMK..VL..\n>mid\nMKaaVL\n>left\ngg.MK.VL\n>right\nMK..VLgg\n"))


def test_query_gaps_are_no_columns_in_a3m(read) -> None:
    msa = read(">q\nMK-VL-\n>a\nMKaGcVLW\n>b\nM--VLWtt\n")
    assert texts(msa) == ["MKVL", "MKVL", "M-VL"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 1, 3]
    assert "columns where the query has a gap (residues there are insertions): 2" in msa.account.notes


def test_nul_at_the_end(read) -> None:
    msa = read(b">q\nMKVL\n>h1\nMK-L\n\0")
    assert texts(msa) == ["MKVL", "MK-L"]
    assert_same(msa, read(b">q\nMKVL\n>h1\nMK-L\n\0\n\0\n"))


SERVER = b">101\nMKVL\n>a\nMRVL\n\0>102\nGGS\n>b\nGAS\n>c\n---\n\0"


def test_one_of_several_blocks_between_nuls_is_read_by_number_or_name(read) -> None:
    with pytest.raises(MSAError, match=r"family.txt: the file holds 2 .*block=.*: 1: '101' \(2 rows\); 2: '102' \(3 rows\)\.") as error:
        read(SERVER)
    assert (error.value.found, error.value.expected) == (2, 1)
    assert texts(read(SERVER, block=1)) == texts(read(SERVER, block="101")) == ["MKVL", "MRVL"]
    assert texts(read(SERVER, block=2)) == texts(read(SERVER, block="102")) == ["GGS", "GAS", "---"]
    for missing in (3, "103"):
        with pytest.raises(MSAError, match=f"no alignment {missing!r} in the file, which holds 2: 1: '101'"):
            read(SERVER, block=missing)
    with pytest.raises(ConfigError, match="block is 0; the alignments of a file are counted from 1"):
        read(SERVER, block=0)


def test_first_lines_of_colabfold_and_hhsuite(read) -> None:
    msa = read("#4\t1\n>101\nMKVL\n>h\nMRVL\n")
    assert texts(msa) == ["MKVL", "MRVL"]
    assert (msa.chain_lengths, msa.chain_copies) == ((4,), (1,))
    plain = read("#A3M#\n>101\nMKVL\n>h\nMRVL\n")
    assert_same(msa, plain)
    assert (plain.chain_lengths, plain.chain_copies) == ((), ())
    complex_ = read("#3,1\t1,2\r\n>101\t102\nMKVL\n>h\nMRV-\n")
    assert (complex_.chain_lengths, complex_.chain_copies) == ((3, 1), (1, 2))


def test_secondary_structure_of_hhsuite_is_no_sequence(read) -> None:
    msa = read(">ss_pred\nCHHC\n>ss_conf\n9999\n>q\nMKVL\n>h\nMKaVL\n")
    assert msa.names == ("q", "h")
    assert (msa.account.rows_in, msa.account.rows_kept) == (4, 2)
    assert list(msa.account.dropped.values()) == [2]


@pytest.mark.parametrize(
    "content",
    [
        INSERTIONS.replace("\n", "\r\n"),
        INSERTIONS.replace("\n", "\r"),
        "\ufeff" + INSERTIONS,
        INSERTIONS.replace(">", "\n>").rstrip(),
        ">q\nMK\nVL\n>mid\nMK\naa\nVL\n>left\ngg\nMK\nVL\n>right\nMK\nVL\ngg\n",
        ">q\nMK VL\n>mid\nMKaa VL\n>left\n  ggMKVL\n>right\nMKVLgg\t\n",
        "; made by hand\n" + INSERTIONS.replace(">mid", "; not this\n>mid"),
        "# a comment\n" + INSERTIONS,
    ],
    ids=["CRLF", "CR", "BOM", "blank lines, no newline at the end", "wrapped", "white space", "; lines", "# line"],
)
def test_texts_that_mean_the_same(read, content: str) -> None:
    assert_same(read(content), read(INSERTIONS))


def test_names_and_descriptions(read) -> None:
    msa = read(b">A0A1\t212\t0.9\nMK\n>sp|P1|X Some protein OS=E. coli \nMK\n>\nMK\n>q\nMK\n>q\nMK\n")
    assert msa.names == ("A0A1", "sp|P1|X", "", "q", "q")
    assert msa.descriptions == ("212\t0.9", "Some protein OS=E. coli", "", "", "")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_accented_names_are_kept(read, encoding: str) -> None:
    assert read(">Müller\nMKVL\n".encode(encoding)).names == ("Müller",)
