"""Reading alignments: hand-made files of every kind that users were seen to bring."""

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, read_msa, read_sequences, sources
from evoattn.io.residues import encode

INSERTIONS = ">q\nMKVL\n>mid\nMKaaVL\n>left\nggMKVL\n>right\nMKVLgg\n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def read(tmp_path: Path):
    def read(content: str | bytes, *, name: str = "family.txt", **options: object) -> MSA:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_msa(path, **options)

    return read


def rows(msa: MSA) -> list[str]:
    return ["".join("ARNDCQEGHILKMFPSTWYVX-"[code] for code in row) for row in msa.residues]


def assert_same(a: MSA, b: MSA) -> None:
    assert a.names == b.names
    np.testing.assert_array_equal(a.residues, b.residues)
    for array in ("offsets", "columns", "letters"):
        np.testing.assert_array_equal(getattr(a.insertions, array), getattr(b.insertions, array))


# --- a3m -------------------------------------------------------------------------------------------------------------


def test_insertions_are_counted_left_of_the_next_column(read) -> None:
    msa = read(INSERTIONS)
    assert msa.format == "a3m"
    assert msa.names == ("q", "mid", "left", "right")
    assert rows(msa) == ["MKVL"] * 4
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0], [2, 0, 0, 0], [0, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 0, 0, 2]
    assert msa.residues.dtype == np.uint8 and msa.deletions.dtype == np.int32


def test_dots_mean_nothing_in_a3m(read) -> None:
    assert_same(read(INSERTIONS), read(">q\nMK..VL..\n>mid\nMKaaVL\n>left\ngg.MK.VL\n>right\nMK..VLgg\n"))


def test_query_gaps_are_no_columns_in_a3m(read) -> None:
    msa = read(">q\nMK-VL-\n>a\nMKaGcVLW\n>b\nM--VLWtt\n")
    assert rows(msa) == ["MKVL", "MKVL", "M-VL"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 3, 0], [0, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 1, 3]
    assert "columns where the query has a gap (residues there are insertions): 2" in msa.account.notes


def test_nul_at_the_end(read) -> None:
    msa = read(b">q\nMKVL\n>h1\nMK-L\n\0")
    assert rows(msa) == ["MKVL", "MK-L"]
    assert_same(msa, read(b">q\nMKVL\n>h1\nMK-L\n\0\n\0\n"))


SERVER = b">101\nMKVL\n>a\nMRVL\n\0>102\nGGS\n>b\nGAS\n>c\n---\n\0"


def test_one_of_several_blocks_between_nuls_is_read_by_number_or_name(read) -> None:
    with pytest.raises(MSAError, match=r"family.txt: the file holds 2 .*block=.*: 1: '101' \(2 rows\); 2: '102' \(3 rows\)\.") as error:
        read(SERVER)
    assert (error.value.found, error.value.expected) == (2, 1)
    assert rows(read(SERVER, block=1)) == rows(read(SERVER, block="101")) == ["MKVL", "MRVL"]
    assert rows(read(SERVER, block=2)) == rows(read(SERVER, block="102")) == ["GGS", "GAS", "---"]
    for missing in (3, "103"):
        with pytest.raises(MSAError, match=f"no alignment {missing!r} in the file, which holds 2: 1: '101'"):
            read(SERVER, block=missing)
    with pytest.raises(ConfigError, match="block is 0; the alignments of a file are counted from 1"):
        read(SERVER, block=0)


def test_first_lines_of_colabfold_and_hhsuite(read) -> None:
    msa = read("#4\t1\n>101\nMKVL\n>h\nMRVL\n")
    assert rows(msa) == ["MKVL", "MRVL"]
    assert (msa.chain_lengths, msa.chain_copies) == ((4,), (1,))
    plain = read("#A3M#\n>101\nMKVL\n>h\nMRVL\n")
    assert_same(msa, plain)
    assert (plain.chain_lengths, plain.chain_copies) == ((), ())
    complex_ = read("#3,1\t1,2\r\n>101\t102\nMKVL\n>h\nMRV-\n")
    assert (complex_.chain_lengths, complex_.chain_copies) == ((3, 1), (1, 2))


@pytest.mark.parametrize("first_line", ["#5\t1", "#2,1\t1,1"])
def test_chain_lengths_must_add_up(read, first_line: str) -> None:
    with pytest.raises(MSAError, match=r"family.txt: the chain lengths .* but the query has 4 residues.*first line"):
        read(f"{first_line}\n>101\nMKVL\n>h\nMRVL\n")


def test_chain_lengths_without_copy_numbers(read) -> None:
    with pytest.raises(MSAError, match=r"'#2,2\\t1', has 2 chain lengths and 1 copy numbers"):
        read("#2,2\t1\n>101\nMKVL\n")


def test_secondary_structure_of_hhsuite_is_no_sequence(read) -> None:
    msa = read(">ss_pred\nCHHC\n>ss_conf\n9999\n>q\nMKVL\n>h\nMKaVL\n")
    assert msa.names == ("q", "h")
    assert (msa.account.rows_in, msa.account.rows_kept) == (4, 2)
    assert list(msa.account.dropped.values()) == [2]


def test_lower_case_query_in_a3m_is_refused(read) -> None:
    with pytest.raises(
        MSAError, match=r"line 1, row 1 \('q'\): the query has a lower-case letter, 'v' at position 3.*upper case.*anchor='rf'"
    ):
        read(">q\nMKvL\n>h\nMKaaVL\n")


def test_wrong_number_of_columns_names_the_row(read) -> None:
    content = "".join(f">{'bad' if i == 7 else 'row'}{i}\n{'MKVLW' if i == 7 else 'MK-L'}\n" for i in range(1, 11))
    expected = r"family.txt, line 13, row 7 \('bad7'\): has 5 columns, expected 4, those of the query, row 1 \('row1'\); 1 of 10"
    with pytest.raises(MSAError, match=expected) as error:
        read(content)
    assert "not aligned" not in str(error.value)
    place = error.value
    assert (place.line, place.row, place.name, place.found, place.expected) == (13, 7, "bad7", 5, 4)
    assert place.file is not None and place.file.endswith("family.txt")


def test_unaligned_sequences_are_refused(read) -> None:
    with pytest.raises(
        MSAError,
        match=r"row 2 \('b'\): has 6 columns, expected 4.*not aligned: align them first.*, give only one, or read them with read_seq",
    ):
        read(">a\nMKVL\n>b\nMKVLWW\n")


# --- the FASTA text itself -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \0\n", "the file is empty"),
        (b"# nothing else\n; here\n", "comment lines but no sequence"),
        (b"Alignment of kinases\n>q\nMKVL\n", "line 1: starts no known format: 'Alignment of kinases'.*FASTA.*Stockholm.*Clustal"),
        (b"; hello\n#x\nfree text\n>q\nMKVL\n", "line 3: starts no known format: 'free text'"),
        (b"Hello\n", "line 1: starts no known format: 'Hello'"),
        (b">q\nMKVL\n>a\n\n", r"line 3, row 2 \('a'\): has 0 columns, expected 4, those of the query, row 1 \('q'\)"),
        (b">q\n\n>a\nmkvl\n", r"row 1 \('q'\): the query has no residue"),
        (b">q\n", "no residue"),
        (b">q\n----\n>a\nMKVL\n", "no residue"),
        (b">q\nMKVL\n>a\nMK1L\n", r"line 3, row 2 \('a'\): character '1' at position 3 is neither a residue nor a gap"),
        (b">q\nMKVL\n>a\nMKa#VL\n", r"row 2 \('a'\): character '#' at position 4"),
        (">q\nMKÉL\n".encode(), r"row 1 \('q'\): character 'É' at position 3"),
        (b">q\nMKVL\n >a\nMRVL\n", r"character '>' at position 5.*first column"),
        (">q\nMKVL\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(b">q\nMKVL\n")[:-6], "cannot be read"),
        (b"\x1f\x8b rubbish", "cannot be read"),
    ],
)
def test_unreadable_files_say_why(read, content: bytes, message: str) -> None:
    with pytest.raises(MSAError, match=f"(?s)family.txt[,:] .*{message}"):
        read(content)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(MSAError, match=r"nothing.a3m: the file cannot be read: No such file"):
        read_msa(tmp_path / "nothing.a3m")
    with pytest.raises(MSAError, match="cannot be read"):
        read_msa(tmp_path)


# --- letters ---------------------------------------------------------------------------------------------------------


def test_odd_letters_are_mapped_and_counted(read) -> None:
    msa = read(">q\nMKVLMKVL\n>odd\nBZUOXJ*A\n>more\nB-..KBVL\n")
    assert rows(msa)[1:] == ["DECXXXXA", "D---KDVL"]
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
    assert rows(read(">q\nMKVL*\n>a\nMKVLW\n")) == ["MKVLX", "MKVLW"]


# --- aligned FASTA, Stockholm, Clustal -------------------------------------------------------------------------------

FOUR_FORMATS = {
    "a3m": ">q\nMKVL\n>h\nMKaaVL\n",
    "fasta": ">q\nMK--VL\n>h\nMKAAVL\n",
    "stockholm": "# STOCKHOLM 1.0\n\nq MK..VL\nh MKaaVL\n//\n",
    "clustal": "CLUSTAL O(1.2.4) multiple sequence alignment\n\n\nq      MK--VL\nh      MKAAVL\n       **  **\n",
}


@pytest.mark.parametrize("kind", FOUR_FORMATS)
def test_one_alignment_in_four_formats(read, kind: str) -> None:
    msa = read(FOUR_FORMATS[kind])
    assert msa.format == kind
    assert rows(msa) == ["MKVL", "MKVL"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0]]
    assert msa.trailing.tolist() == [0, 0]


def test_insertions_at_both_ends_of_an_aligned_query(read) -> None:
    msa = read(">q\n--MK.VL--\n>a\nGGMKAVL-W\n>b\n-G-----WW\n")
    assert rows(msa) == ["MKVL", "MKVL", "----"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [2, 0, 1, 0], [1, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 1, 2]


def test_lower_case_in_aligned_fasta_is_a_residue_and_is_noted(read) -> None:
    msa = read(">q\nMKvL\n>h\nmrVL\n")
    assert rows(msa) == ["MKVL", "MRVL"]
    assert msa.account.notes == ("lower-case letters of the query (read as residues, case means nothing in fasta): 1",)


def test_a_suffix_never_changes_the_arrays(read) -> None:
    as_a3m, as_text = read(">q\nMKVL\n>h\nMR-L\n", name="x.a3m.gz"), read(">q\nMKVL\n>h\nMR-L\n")
    assert (as_a3m.format, as_text.format) == ("a3m", "fasta")
    assert_same(as_a3m, as_text)
    assert read(FOUR_FORMATS["stockholm"], name="x.a3m").format == "stockholm"
    with_dots = read(">q\nMKVL\n>h\nMR.L\n", name="x.a3m")
    assert with_dots.format == "fasta"
    assert_same(with_dots, as_text)


STOCKHOLM = """# STOCKHOLM 1.0
#=GF DE
#=GF AU Someone
#=GS P2 DE The second protein
#=GS P2 AC Q00000

P1/5-9         MK-V
#=GR P1/5-9 SS HHHH
P2             MKAV
twice          MKWV
twice          M--V
#=GC RF        xx.x

P1/5-9         L.C
#=GR P1/5-9 SS HCC
P2             LaC
twice          -.W
twice          L.-
#=GC RF        x.x
"""


@pytest.mark.parametrize("end", ["//\n", "", "//\n\n"])
def test_stockholm(read, end: str) -> None:
    msa = read(STOCKHOLM + end)
    assert msa.names == ("P1/5-9", "P2", "twice", "twice")
    assert msa.descriptions == ("", "The second protein", "", "")
    assert rows(msa) == ["MKVLC", "MKVLC", "MKV-W", "M-VL-"]
    assert msa.deletions.tolist() == [[0] * 5, [0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0] * 5]


@pytest.mark.parametrize("between", ["//\n", "//\n\n# end\n\n", ""])
def test_several_stockholm_alignments(read, between: str) -> None:
    content = STOCKHOLM + between + "# STOCKHOLM 1.0\n#=GF ID second\n#=GF AC PF2\nx MK\ny M-\n//\n"
    with pytest.raises(MSAError, match=r"the file holds 2 alignments.*1: 'P1/5-9' \(4 rows\); 2: 'second' \(2 rows\)"):
        read(content)
    for block in (2, "second", "PF2", "x"):
        assert rows(read(content, block=block)) == ["MK", "M-"]
    assert_same(read(content, block=1), read(STOCKHOLM))


@pytest.mark.parametrize("mark", ["#=GF ID x", "#=GC RF xx", "#=GS q AC P1", "#=GR q SS HH"])
def test_stockholm_without_its_first_line(read, mark: str) -> None:
    msa = read(f"{mark}\nq MK\na M-\n//\n")
    assert (msa.format, rows(msa)) == ("stockholm", ["MK", "M-"])
    assert msa.account.notes == ("no '# STOCKHOLM 1.0' at the top: 1",)


def test_stockholm_row_missing_in_a_block_is_named(read) -> None:
    with pytest.raises(MSAError, match=r"line 9, row 2 \('P2'\): has 4 columns, expected 7, those of the query, row 1 \('P1/5-9'\)"):
        read(STOCKHOLM.replace("P2             LaC\n", ""))


def test_stockholm_line_that_is_no_row(read) -> None:
    with pytest.raises(MSAError, match="line 7: no name followed by a sequence: 'P1/5-9'"):
        read(STOCKHOLM.replace("P1/5-9         MK-V", "P1/5-9"))


CONSENSUS = {"full": "        ** ", "short": "        **", "stripped": "**", "none": "", "ruler": "        1  4"}


@pytest.mark.parametrize(
    "header",
    [
        "CLUSTAL O(1.2.4) multiple sequence alignment",
        "CLUSTAL W (1.81) multiple sequence alignment",
        "MUSCLE (3.8) multiple sequence alignment",
        "MSAPROBS version 0.9.7 multiple sequence alignment",
        "PROBCONS version 1.12 multiple sequence alignment",
        "Kalign (2.0) alignment in ClustalW format",
    ],
)
@pytest.mark.parametrize("consensus", CONSENSUS.values(), ids=CONSENSUS.keys())
def test_clustal_dialects(read, header: str, consensus: str) -> None:
    msa = read(f"{header}\n\n\nMüller  MK-V 3\nhit     MKAV 4\n{consensus}\n\nMüller  LC 5\nhit     L- 5\n        *\n")
    assert msa.names == ("Müller", "hit")
    assert rows(msa) == ["MKVLC", "MKVL-"]
    assert msa.deletions.tolist() == [[0] * 5, [0, 0, 1, 0, 0]]


# --- which rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["MKVLWWSTNQRH", "mkvlWWSTNQRH"])
def test_a_single_sequence(read, content: str) -> None:
    msa = read(f">q\n{content}\n")
    assert (msa.format, msa.n_seq, msa.n_res, msa.query) == ("fasta", 1, 12, "MKVLWWSTNQRH")
    assert not msa.deletions.any() and not msa.trailing.any()


def test_gaps_of_a_single_sequence_are_dropped(read) -> None:
    msa = read(">q\nMK--VL\n")
    assert msa.query == "MKVL"
    assert "columns where the query has a gap (residues there are insertions): 2" in msa.account.notes


def test_repeated_rows_are_kept_and_noted(read) -> None:
    msa = read(INSERTIONS)
    assert msa.n_seq == 4
    assert msa.account.notes == ("rows that repeat an earlier row, insertions aside (kept): 3",)


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


# --- anchors, and which row is the query -----------------------------------------------------------------------------

SEED = "# STOCKHOLM 1.0\na  M-vL.\nb  MKV-a\nc  -K.Lg\n#=GC RF x.xx.\n#=GC SS_cons HHHCC\n#=GR b PP 99.*5\n//\n"


def test_no_anchor_keeps_every_column(read) -> None:
    msa = read(SEED, anchor="none")
    assert rows(msa) == ["M-VL-", "MKV-A", "-K-LG"]
    assert len(msa.insertions) == 0
    assert msa.annotation.gc == {"RF": "x.xx.", "SS_cons": "HHHCC"} and msa.annotation.gr == {"PP": {1: "99.*5"}}
    assert rows(read(">a\nMK-V\n>b\nMaKRV\n", anchor="none")) == ["MK-V", "MKRV"]


def test_the_columns_of_the_reference_line(read) -> None:
    msa = read(SEED, anchor="rf")
    assert rows(msa) == ["MVL", "MV-", "--L"]
    assert [msa.insertions.row(i) for i in (1, 2)] == [(pytest.approx([1, 3]), b"KA"), (pytest.approx([1, 3]), b"KG")]
    assert msa.annotation.gc == {"RF": "xxx", "SS_cons": "HHC"} and msa.annotation.gr == {"PP": {1: "9.*"}}
    assert "columns that the file marks as insertions (residues there are insertions): 2" in msa.account.notes
    selex = "#=RF xx.xx\na    MK-VL\nb    MKaVL\n"
    assert rows(read(selex, anchor="rf")) == ["MKVL", "MKVL"]


def test_the_columns_of_a2m_and_a3m(read) -> None:
    dotted = read(">a\nM.kV-\n>b\nMav-L\n", anchor="rf")
    assert (dotted.format, rows(dotted)) == ("a2m", ["MV-", "M-L"])
    assert [dotted.insertions.row(i)[1] for i in range(2)] == [b"K", b"AV"]
    dotless = read(">a\nMkV-\n>b\nMav-L\n", anchor="rf")
    assert dotless.format == "a3m"
    assert_same(dotless, dotted)
    assert rows(read(">a\nM.kV-\n>b\nMav-L\n")) == ["MKV", "MV-"]  # the query's own residues, small letters too


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
    assert rows(msa) == ["KGV", "K-V", "--V", "WWW"][: len(names)]
    assert (msa.account.rows_in, msa.account.rows_kept) == (4, len(names))
    if len(names) > 1:
        assert msa.insertions.row(1) == (pytest.approx([0, 3]), b"MW")


def test_a_query_that_is_not_there(read) -> None:
    with pytest.raises(MSAError, match=r"no row has the name 'quarry', the query that was asked for. Similar names: 'query'"):
        read(">query\nMKVL\n>a\nMRVL\n", query="quarry")
    with pytest.raises(MSAError, match="The first row is 'a'"):
        read(">a\nMKVL\n", query="zzz")


# --- chains ----------------------------------------------------------------------------------------------------------


def test_chains_joined_by_a_colon(read) -> None:
    msa = read(">dimer\nMKVL:GGS\n")
    assert (msa.query, msa.chain_lengths, msa.chain_copies) == ("MKVLGGS", (4, 3), (1, 1))
    msa = read(">dimer\nMK-VL:GG\n>a\nMKaAVL:G-\n>b\nMK-VLGG\n")
    assert rows(msa) == ["MKVLGG", "MKVLG-", "MKVLGG"]
    assert (msa.chain_lengths, msa.insertions.row(1)[1]) == ((4, 2), b"AA")
    with pytest.raises(
        MSAError, match=r"row 2 \('a'\): its ':' are after the columns \[1\], those of the query, row 1 \('q'\), after \[2\]"
    ):
        read(">q\nMK:VL\n>a\nM:KVL\n")


@pytest.mark.parametrize("sequence", ["MK::VL", ":MKVL", "MKVL:"])
def test_an_empty_chain_is_refused(read, sequence: str) -> None:
    with pytest.raises(MSAError, match=r"row 1 \('q'\): a chain between two ':' is empty"):
        read(f">q\n{sequence}\n")


def test_a_chain_without_residues_is_refused(read) -> None:
    with pytest.raises(MSAError, match=r"row 1 \('q'\): a chain of the complex has no column: .* have \(2, 0\)"):
        read(">q\nMK:--\n>a\nMK:VL\n")
    assert read(">q\nMK:--\n>a\nMK:VL\n", anchor="none").chain_lengths == (2, 2)


# --- alphabets -------------------------------------------------------------------------------------------------------


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


# --- SELEX and bare rows ---------------------------------------------------------------------------------------------


def test_spaces_are_gaps_in_selex(read) -> None:
    content = "# a comment\n#=ID kin\nseq1   MK VL\nlonger  KAVL\n#=SS    HHHH\nq3     M    \n\nseq1   GG\nlonger G\nq3      G\n"
    msa = read(content, format="selex", anchor="none")
    assert msa.names == ("seq1", "longer", "q3")
    assert rows(msa) == ["MK-VLGG", "-KAVLG-", "M-----G"]
    assert msa.annotation.gf == {"ID": ("kin",)}


def test_bare_rows(read) -> None:
    msa = read("MKVL\nMR-L\n\n.KVL\n", name="family.aln")
    assert (msa.format, msa.names, rows(msa)) == ("psicov", ("seq1", "seq2", "seq3"), ["MKVL", "MR-L", "-KVL"])
    assert "rows without names (named seq1, seq2, ...): 3" in msa.account.notes
    with pytest.raises(MSAError, match=r"line 2, row 2 \('seq2'\): has 3 columns, expected 4"):
        read("MKVL\nMR-\n")


def test_a_named_format_is_not_guessed(read) -> None:
    assert rows(read("mkvl\nmr-l\n", format="psicov")) == ["MKVL", "MR-L"]
    assert rows(read(">q\nMKVL\n>a\nMaRV\n", format="fasta")) == ["MKVL", "MARV"]
    with pytest.raises(MSAError, match=r"row 2 \('a'\): has 3 columns, expected 4"):
        read(">q\nMKVL\n>a\nMaRV\n", format="a3m")
    with pytest.raises(MSAError, match=r"row 2 \('a'\): has 5 columns, expected 4"):
        read(">q\nMKVL\n>a\nMaKVL\n", format="fasta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "fastq"}, "format is 'fastq'; allowed are auto, a3m, a2m, fasta, stockholm, clustal, selex, psicov"),
        ({"alphabet": "xna"}, "alphabet is 'xna'; allowed are auto, protein, rna, dna"),
        ({"anchor": "first"}, "anchor is 'first'; allowed are query, rf, none"),
    ],
)
def test_unknown_options(read, no_type_checks: None, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(INSERTIONS, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data_1ABC\n#\n_entry.id 1ABC\n", "an mmCIF structure"),
        ("HEADER    HYDROLASE\n", "a PDB structure"),
        ("ID   X_HUMAN   Reviewed;\n", "a UniProt or EMBL flat file"),
        ("LOCUS       X\n", "a GenBank flat file"),
        ("#NEXUS\nbegin data;\n", "a NEXUS file.*Convert it to FASTA"),
        (" 2 4\na MKVL\nb MRVL\n", "a PHYLIP file"),
        ("PileUp\n\n MSF: 4\n", "an MSF file"),
        ("HMMER3/f [3.1]\n", "a profile HMM"),
        ("<!DOCTYPE html>\n<html>\n", "HTML or XML, such as an error page"),
        ('{"a": 1}\n', "JSON"),
        ("@read1\nACGT\n+\nIIII\n", "a FASTQ file"),
        ("PK\x03\x04xx", "a zip archive"),
        ("\x01\x02\x03\x04\x05", "no text"),
    ],
)
def test_other_kinds_of_file_are_named(read, content: str, message: str) -> None:
    with pytest.raises(MSAError, match=rf"family.txt, line 1: the file is (?s:.*){message}"):
        read(content)


# --- where it is read from -------------------------------------------------------------------------------------------

PACKED = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}


@pytest.mark.parametrize("kind", [*PACKED, "zstandard"])
def test_compression_is_known_by_content(read, kind: str) -> None:
    pack = PACKED.get(kind) or pytest.importorskip("zstandard").compress
    half = len(INSERTIONS) // 2
    whole = pack(INSERTIONS.encode())
    parts = pack(INSERTIONS[:half].encode()) + pack(INSERTIONS[half:].encode())
    for packed in (whole, parts):
        msa = read(packed, name="family.a3m")
        assert_same(msa, read(INSERTIONS))
        assert msa.account.notes[0] == f"compressed ({kind})"
    with pytest.raises(MSAError, match=r"family\.txt: the file cannot be read: Compressed file ended before"):
        read(whole[:-4])
    with pytest.raises(MSAError, match=r"family\.txt: the file cannot be read"):
        read(whole[:8] + b"rubbish" + whole[15:])
    with pytest.raises(MSAError, match=f"compressed twice: what was unpacked is compressed with {kind}"):
        read(pack(whole))


def test_zstandard_is_an_extra(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(MSAError, match=r"compressed with zstandard, and .* not installed. Install it with pip install 'evoattn\[msa\]'"):
        read(b"\x28\xb5\x2f\xfd rest")


def test_streams_and_standard_input(read, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(INSERTIONS)
    for stream in (io.BytesIO(INSERTIONS.encode()), io.StringIO(INSERTIONS), io.BytesIO(gzip.compress(INSERTIONS.encode()))):
        msa = read_msa(stream)
        assert_same(msa, expected)
        assert msa.source == "<stream>"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(INSERTIONS.encode())))
    msa = read_msa("-")
    assert_same(msa, expected)
    assert msa.source == "<stdin>"
    with pytest.raises(MSAError, match="the stream gave int and not bytes or text"):
        read_msa(Numbers())
    closed = io.BytesIO(b">q\nMK\n")
    closed.close()
    with pytest.raises(MSAError, match="the file cannot be read: I/O operation on closed file"):
        read_msa(closed)


class Numbers:
    def read(self, n: int) -> int:
        return n


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_pieces_of_any_size_are_the_same_file(read, monkeypatch: pytest.MonkeyPatch, size: int, end: str) -> None:
    content = ("\ufeff" + 12 * INSERTIONS.replace("\n", end)).encode() + b"\0"  # more than what is looked at first
    expected, lines = read(content), list(sources.Lines(io.BytesIO(content)).block())
    monkeypatch.setattr(sources, "_CHUNK", size)
    assert_same(read(content), expected)
    assert list(sources.Lines(io.BytesIO(content)).block()) == lines
    assert lines[-1] == (96, b"MKVLgg")


def test_few_rows_of_a_deep_file_take_little_memory(read, tmp_path: Path) -> None:
    path = tmp_path / "deep"
    row, block = "MKVLWWSTNQRHACDEFGHI" * 100, "MKVLWWSTNQRHACDEFGHI" * 50
    texts = {
        "fasta": "".join(f">r{i}\n{row}\n" for i in range(2_000)),
        "stockholm": "# STOCKHOLM 1.0\n" + "\n".join("".join(f"r{i} {block}\n" for i in range(2_000)) for _ in range(2)) + "//\n",
    }
    for kind, text in texts.items():
        path.write_text(text)
        tracemalloc.start()
        msa = read_msa(path, max_rows=100)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (msa.format, msa.n_seq, msa.n_res, msa.account.rows_in) == (kind, 100, 2000, 2_000)
        assert peak < 2_500_000 < path.stat().st_size  # a few pieces of the file, and no more


# --- sequences -------------------------------------------------------------------------------------------------------


def test_sequences_that_are_not_aligned() -> None:
    content = ">a first\nMKVLW\n>b\nmk*\n>dimer\nMK:GG:A\n>gaps\nM-K.\n"
    found = read_sequences(io.StringIO(content))
    assert found.names == ("a", "b", "dimer", "gaps") and found.descriptions[0] == "first"
    assert found.sequences == ("MKVLW", "MK", "MKGGA", "MK")
    assert found.chain_lengths == ((), (), (2, 2, 1), ())
    assert found.account.notes == ("gaps (left out): 2", "sequences with a '*' (stop codon) at the end (left out): 1")
    assert repr(found) == "SequenceSet(4 protein sequences, <stream>)"
    few = read_sequences(io.StringIO(content), max_rows=1)
    assert (few.names, few.account.rows_in, few.account.rows_kept) == (("a",), 4, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (">a\nMK\n>b\n--\n", r"line 3, row 2 \('b'\): the record has no residue"),
        (">a\nMK\n>b\nM1\n", r"row 2 \('b'\): character '1'"),
        ("", "is empty"),
    ],
)
def test_sequences_that_are_refused(content: str, message: str) -> None:
    with pytest.raises(MSAError, match=f"<stream>.*{message}"):
        read_sequences(io.StringIO(content))


# --- independent truth -----------------------------------------------------------------------------------------------


def anchored_by_hand(texts: list[str], *, a3m: bool) -> tuple[list[str], list[list[str]]]:
    """The reading rule, one character at a time: of each row the letters of the columns, and those left of each and at the end."""
    letters, inserted = [], []
    width = len(texts[0])
    query_has = [c not in "-." for c in texts[0]]
    for text in texts:
        out, places, waiting, column = "", [], "", 0
        for c in text:
            if a3m and c == ".":
                continue
            if a3m and c.islower():
                waiting += c.upper()
                continue
            if query_has[column]:
                out += "-" if c == "." else c.upper()
                places.append(waiting)
                waiting = ""
            elif c not in "-.":
                waiting += c
            column += 1
        assert column == width
        letters.append(out)
        inserted.append([*places, waiting])
    return letters, inserted


@pytest.mark.parametrize("kind", ["a3m", "fasta"])
def test_random_alignments_against_a_loop(read, kind: str) -> None:
    rng = np.random.default_rng(5)
    a3m = kind == "a3m"
    texts = []
    for i in range(1100):  # more than the reader takes at once
        row = "".join(rng.choice(list("ARNDCQEGHILKMFPSTWYVX----"), size=23))
        if a3m and i:
            row = "".join(c + "gt."[: rng.integers(4)] * (rng.random() < 0.2) for c in " " + row).strip()
        texts.append(row)
    msa = read("".join(f">r{i}\n{text}\n" for i, text in enumerate(texts)))
    assert msa.format == kind
    letters, inserted = anchored_by_hand(texts, a3m=a3m)
    np.testing.assert_array_equal(msa.residues, np.stack([encode(row) for row in letters]))
    assert msa.deletions.tolist() == [[len(place) for place in places[:-1]] for places in inserted]
    assert msa.trailing.tolist() == [len(places[-1]) for places in inserted]
    assert [msa.insertions.row(i)[1].decode() for i in range(msa.n_seq)] == ["".join(places) for places in inserted]


def test_shipped_alignments_agree_in_two_formats() -> None:
    assert_same(read_msa(ROOT / "data" / "globins4.a3m"), read_msa(ROOT / "data" / "globins4.sto"))
