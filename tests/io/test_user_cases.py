"""Thirteen small files on which readers of the field were seen to fail, with what must come out."""

from io import BytesIO

import numpy as np
import pytest

from evoattn.errors import MSAError
from evoattn.io import MSA, make_features, read_msa
from tests.io.alignments import INSERTIONS, texts


def read(content: str | bytes, **options: object) -> MSA:
    return read_msa(BytesIO(content.encode() if isinstance(content, str) else content), **options)


def test_t01_nul_at_the_end() -> None:
    assert texts(read(b">q\nMKVL\n>h1\nMK-L\n\0")) == ["MKVL", "MK-L"]


def test_t02_two_server_blocks() -> None:
    content = b">101\nMKVL\n>a\nMRVL\n\0>102\nGGS\n>b\nGAS\n\0"
    assert texts(read(content, block=1)) == ["MKVL", "MRVL"]
    assert texts(read(content, block=2)) == ["GGS", "GAS"]
    with pytest.raises(MSAError, match=r"2 alignments.*block=.*1: '101' \(2 rows\); 2: '102' \(2 rows\)"):
        read(content)


def test_t03_first_line() -> None:
    msa = read("#4\t1\n>101\nMKVL\n>h\nMRVL\n")
    assert (msa.n_seq, msa.n_res, msa.chain_lengths, msa.chain_copies) == (2, 4, (4,), (1,))
    msa = read("#A3M#\n>101\nMKVL\n>h\nMRVL\n")
    assert (msa.n_seq, msa.n_res, msa.chain_lengths, msa.chain_copies) == (2, 4, (), ())


@pytest.mark.parametrize(
    "content",
    [
        ">q\nMK\nVL\n>mid\nMK\naa\nVL\n>left\ngg\nMK\nVL\n>right\nMK\nVL\ngg\n",
        INSERTIONS.replace("\n", "\r\n"),
        "\ufeff" + INSERTIONS,
        INSERTIONS.replace(">", "\n\n>").rstrip("\n"),
    ],
)
def test_t04_wrapped_crlf_bom_blank_lines(content: str) -> None:
    plain, msa = read(INSERTIONS), read(content)
    assert msa.names == plain.names
    np.testing.assert_array_equal(msa.residues, plain.residues)
    np.testing.assert_array_equal(msa.deletions, plain.deletions)
    np.testing.assert_array_equal(msa.trailing, plain.trailing)


def test_t05_text_before_the_first_record() -> None:
    assert texts(read("; made by hand\n>q\nMKVL\n>a\nMRVL\n")) == ["MKVL", "MRVL"]
    with pytest.raises(MSAError, match="line 1: starts no known format: 'Alignment made by hand'"):
        read("Alignment made by hand\n>q\nMKVL\n>a\nMRVL\n")


def test_t06_insertions() -> None:
    msa = read(INSERTIONS)
    assert texts(msa) == ["MKVL"] * 4
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 0, 0, 2]
    assert [msa.insertions.row(i)[1] for i in range(4)] == [b"", b"AA", b"GG", b"GG"]


def test_t07_wrong_number_of_columns() -> None:
    content = "".join(f">{'bad7' if i == 7 else f'r{i}'}\n{'MKVLW' if i == 7 else 'MK-L'}\n" for i in range(1, 11))
    with pytest.raises(MSAError, match=r"row 7 \('bad7'\): has 5 columns, expected 4") as error:
        read(content.replace("MK-L", "MKVL", 1))
    assert (error.value.row, error.value.name, error.value.found, error.value.expected) == (7, "bad7", 5, 4)


@pytest.mark.parametrize(
    "content",
    [
        ">q\nMKVL\n>h\nMKaaVL\n",
        "# STOCKHOLM 1.0\nq MK..VL\nh MKaaVL\n//\n",
        "CLUSTAL W\n\nq MK--VL\nh MKAAVL\n",
        ">q\nMK--VL\n>h\nMKAAVL\n",
        ">q\nMK..VL\n>h\nMKaaVL\n",
        "MK--VL\nMKAAVL\n",
        "q MK--VL\nh MKAAVL\n",
    ],
    ids=["a3m", "stockholm", "clustal", "fasta", "a2m", "psicov", "selex"],
)
def test_t08_one_alignment_in_every_format(content: str) -> None:
    msa = read(content)
    assert texts(msa) == ["MKVL", "MKVL"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0]]
    assert msa.trailing.tolist() == [0, 0]
    assert msa.insertions.row(1)[1] == b"AA"


@pytest.mark.parametrize(
    "header",
    [
        "CLUSTAL O(1.2.4) multiple sequence alignment",
        "MUSCLE (3.8) multiple sequence alignment",
        "Kalign (2.0) alignment in ClustalW format",
    ],
)
def test_t09_clustal_dialects(header: str) -> None:
    msa = read(f"{header}\n\nMüller  MKVL\nhit     MR-L\n        *  \n")
    assert (msa.names, texts(msa)) == (("Müller", "hit"), ["MKVL", "MR-L"])


STOCKHOLM = """# STOCKHOLM 1.0
#=GF AU Someone
#=GS P2 DE second
P1/5-9         MK
P2             MR
#=GR P2 SS     HH
#=GC RF        xx

P1/5-9         VL
P2             -L
#=GR P2 SS     .C
#=GC RF        xx
"""


@pytest.mark.parametrize("end", ["//\n", ""])
def test_t10_stockholm_with_annotation(end: str) -> None:
    msa = read(STOCKHOLM + end)
    assert (msa.names, texts(msa), msa.descriptions) == (("P1/5-9", "P2"), ["MKVL", "MR-L"], ("", "second"))
    assert msa.annotation.gf == {"AU": ("Someone",)}
    assert msa.annotation.gc == {"RF": "xxxx"}
    assert msa.annotation.gr == {"SS": {1: "HH.C"}}
    notes = ["rows whose name ends in a range, /start-end, of another length (kept): 1"]
    assert list(msa.account.notes) == ([] if end else ["no '//' at the end: 1"]) + notes


def test_t11_odd_letters() -> None:
    msa = read(">q\nMKVLMKVL\n>odd\nBZUOXJ*A\n")
    assert texts(msa) == ["MKVLMKVL", "DECXXXXA"]
    assert msa.residues[1, 4] == 20
    assert msa.account.mapped == {"*": 1, "B": 1, "J": 1, "O": 1, "U": 1, "Z": 1}


def test_t12_odd_query() -> None:
    assert texts(read(">q\nMKvL\n>a\nMRVL\n")) == ["MKVL", "MRVL"]
    with pytest.raises(MSAError, match=r"row 1 \('q'\): the query has a lower-case letter, 'v' at position 3"):
        read(">q\nMKvL\n>a\nMRaVL\n")
    msa = read(">q\nMK-L\n>a\nMRVL\n")
    assert (texts(msa), msa.insertions.row(1)[1]) == (["MKL", "MRL"], b"V")


def test_t13_only_the_query() -> None:
    features = make_features(read(">q\nMKVLWWSTNQRH\n"))
    assert features["msa_feat"].shape == (1, 12, 49) and bool(features["msa_feat"].isfinite().all())
    with pytest.raises(MSAError, match="the file is empty"):
        read("")
