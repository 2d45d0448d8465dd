"""Which rows, columns and chains a read alignment has."""

import pytest

from evoattn.errors import ConfigError, MSAError
from tests.io.alignments import INSERTIONS, assert_same, texts


@pytest.mark.parametrize("content", ["MKVLWWSTNQRH", "mkvlWWSTNQRH"])
def test_a_single_sequence(read, content: str) -> None:
    msa = read(f">q\n{content}\n")
    assert (msa.format, msa.n_seq, msa.n_res, msa.query) == ("fasta", 1, 12, "MKVLWWSTNQRH")
    assert not msa.deletions.any() and not msa.trailing.any()


def test_gaps_of_a_single_sequence_are_dropped(read) -> None:
    msa = read(">q\nMK--VL\n")
    assert msa.query == "MKVL"
    assert "columns where the query has a gap (residues there are insertions): 2" in msa.account.notes


def test_max_rows(read) -> None:
    msa = read(INSERTIONS, max_rows=2)
    assert msa.names == ("q", "mid")
    assert (msa.account.rows_in, msa.account.rows_kept) == (4, 2)
    assert msa.account.dropped == {"after the first 2 (max_rows)": 2}
    assert_same(msa, read(INSERTIONS).take([0, 1]))
    # The format is judged by the whole file: the query alone would look like a sequence.
    assert read(INSERTIONS, max_rows=1).format == "a3m"
    assert read(INSERTIONS, max_rows=9).account.dropped == {}


def test_max_rows_must_keep_the_query(read) -> None:
    with pytest.raises(ConfigError, match="max_rows is 0; at least 1 row"):
        read(INSERTIONS, max_rows=0)


SEED = "# STOCKHOLM 1.0\na  M-vL.\nb  MKV-a\nc  -K.Lg\n#=GC RF x.xx.\n#=GC SS_cons HHHCC\n#=GR b PP 99.*5\n//\n"


def test_no_anchor_keeps_every_column(read) -> None:
    msa = read(SEED, anchor="none")
    assert texts(msa) == ["M-VL-", "MKV-A", "-K-LG"]
    assert len(msa.insertions) == 0
    assert msa.annotation.gc == {"RF": "x.xx.", "SS_cons": "HHHCC"} and msa.annotation.gr == {"PP": {1: "99.*5"}}
    assert texts(read(">a\nMK-V\n>b\nMaKRV\n", anchor="none")) == ["MK-V", "MKRV"]


def test_the_columns_of_the_reference_line(read) -> None:
    msa = read(SEED, anchor="rf")
    assert texts(msa) == ["MVL", "MV-", "--L"]
    assert [msa.insertions.row(i) for i in (1, 2)] == [(pytest.approx([1, 3]), b"KA"), (pytest.approx([1, 3]), b"KG")]
    assert msa.annotation.gc == {"RF": "xxx", "SS_cons": "HHC"} and msa.annotation.gr == {"PP": {1: "9.*"}}
    assert "columns that the file marks as insertions (residues there are insertions): 2" in msa.account.notes
    selex = "#=RF xx.xx\na    MK-VL\nb    MKaVL\n"
    assert texts(read(selex, anchor="rf")) == ["MKVL", "MKVL"]


def test_the_columns_of_a2m_and_a3m(read) -> None:
    dotted = read(">a\nM.kV-\n>b\nMav-L\n", anchor="rf")
    assert (dotted.format, texts(dotted)) == ("a2m", ["MV-", "M-L"])
    assert [dotted.insertions.row(i)[1] for i in range(2)] == [b"K", b"AV"]
    dotless = read(">a\nMkV-\n>b\nMav-L\n", anchor="rf")
    assert dotless.format == "a3m"
    assert_same(dotless, dotted)
    assert texts(read(">a\nM.kV-\n>b\nMav-L\n")) == ["MKV", "MV-"]  # the query's own residues, small letters too


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (">q\nMKVL\n>a\nMR-L\n", "anchor is 'rf', but the file does not mark its columns.*anchor='query', or 'none'"),
        (SEED.replace("x.xx.", "x.xx"), r"reference line \(RF\) has 4 characters, the rows have 5 columns"),
        (SEED.replace("x.xx.", "....."), "marks no column"),
    ],
)
def test_a_file_without_usable_reference_line(read, content: str, message: str) -> None:
    with pytest.raises(MSAError, match=message):
        read(content, anchor="rf")


QUERY_LAST = ">a\nMK-VW\n>b\nM--VW\n>q\n-KGV-\n>c\nWWWWW\n"


@pytest.mark.parametrize(("max_rows", "names"), [(None, ("q", "a", "b", "c")), (4, ("q", "a", "b", "c")), (2, ("q", "a")), (1, ("q",))])
@pytest.mark.parametrize("stockholm", [False, True])
def test_the_query_may_stand_anywhere(read, max_rows: int | None, names: tuple[str, ...], stockholm: bool) -> None:
    content = QUERY_LAST
    if stockholm:  # interleaved, cut after two columns
        pairs = [record.split("\n")[:2] for record in QUERY_LAST[1:].split(">")]
        content = (
            "# STOCKHOLM 1.0\n" + "\n".join("".join(f"{n} {t[cut]}\n" for n, t in pairs) for cut in (slice(2), slice(2, None))) + "//\n"
        )
    msa = read(content, query="q", max_rows=max_rows)
    assert msa.names == names
    assert texts(msa) == ["KGV", "K-V", "--V", "WWW"][: len(names)]
    assert (msa.account.rows_in, msa.account.rows_kept) == (4, len(names))
    if len(names) > 1:
        assert msa.insertions.row(1) == (pytest.approx([0, 3]), b"MW")


def test_a_query_that_is_not_there(read) -> None:
    with pytest.raises(MSAError, match=r"no row has the name 'quarry', the query that was asked for. Similar names: 'query'"):
        read(">query\nMKVL\n>a\nMRVL\n", query="quarry")
    with pytest.raises(MSAError, match="The first row is 'a'"):
        read(">a\nMKVL\n", query="zzz")


def test_chains_joined_by_a_colon(read) -> None:
    msa = read(">dimer\nMKVL:GGS\n")
    assert (msa.query, msa.chain_lengths, msa.chain_copies) == ("MKVLGGS", (4, 3), (1, 1))
    msa = read(">dimer\nMK-VL:GG\n>a\nMKaAVL:G-\n>b\nMK-VLGG\n")
    assert texts(msa) == ["MKVLGG", "MKVLG-", "MKVLGG"]
    assert (msa.chain_lengths, msa.insertions.row(1)[1]) == ((4, 2), b"AA")
    with pytest.raises(
        MSAError, match=r"row 2 \('a'\): its ':' are after the columns \[1\], those of the query, row 1 \('q'\), after \[2\]"
    ):
        read(">q\nMK:VL\n>a\nM:KVL\n")


@pytest.mark.parametrize("first_line", ["#5\t1", "#2,1\t1,1"])
def test_chain_lengths_must_add_up(read, first_line: str) -> None:
    with pytest.raises(MSAError, match=r"family.txt: the chain lengths .* but the query has 4 residues.*first line"):
        read(f"{first_line}\n>101\nMKVL\n>h\nMRVL\n")


def test_chain_lengths_without_copy_numbers(read) -> None:
    with pytest.raises(MSAError, match=r"'#2,2\\t1', has 2 chain lengths and 1 copy numbers"):
        read("#2,2\t1\n>101\nMKVL\n")


@pytest.mark.parametrize("sequence", ["MK::VL", ":MKVL", "MKVL:"])
def test_an_empty_chain_is_refused(read, sequence: str) -> None:
    with pytest.raises(MSAError, match=r"row 1 \('q'\): a chain between two ':' is empty"):
        read(f">q\n{sequence}\n")


def test_a_chain_without_residues_is_refused(read) -> None:
    with pytest.raises(MSAError, match=r"row 1 \('q'\): a chain of the complex has no column: .* have \(2, 0\)"):
        read(">q\nMK:--\n>a\nMK:VL\n")
    assert read(">q\nMK:--\n>a\nMK:VL\n", anchor="none").chain_lengths == (2, 2)
