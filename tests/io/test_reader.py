"""Reading alignments: hand-made files of every kind that users were seen to bring."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, read_msa
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
        match=r"row 2 \('b'\): has 6 columns, expected 4.*not aligned: align them first, give only one, or read them with read_seq",
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


def test_gzip_is_known_by_content(read) -> None:
    assert_same(read(gzip.compress(INSERTIONS.encode()), name="family.a3m"), read(INSERTIONS))


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


def test_short_or_plain_peptides_are_no_nucleotides(read) -> None:
    for query in ("ACGT", "GAGAGAGAGAGA", "ACGTACGTACGTW"):
        assert read(f">q\n{query}\n").query == query


# --- letters ---------------------------------------------------------------------------------------------------------


def test_odd_letters_are_mapped_and_counted(read) -> None:
    msa = read(">q\nMKVLMKVL\n>odd\nBZUOXJ*A\n>more\nB-..KBVL\n")
    assert rows(msa)[1:] == ["DECXXXXA", "D---KDVL"]
    assert msa.account.mapped == {"B": 3, "Z": 1, "U": 1, "J": 1, "O": 1, "*": 1}
    assert "B x3" in str(msa.account)


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


# --- independent truth -----------------------------------------------------------------------------------------------


def anchored_by_hand(texts: list[str], *, a3m: bool) -> tuple[list[str], list[list[int]], list[int]]:
    """The reading rule, one character at a time."""
    letters, deletions, trailing = [], [], []
    width = len(texts[0])
    query_has = [c not in "-." for c in texts[0]]
    for text in texts:
        out, counts, waiting, column = "", [], 0, 0
        for c in text:
            if a3m and c == ".":
                continue
            if a3m and c.islower():
                waiting += 1
                continue
            if query_has[column]:
                out += "-" if c == "." else c.upper()
                counts.append(waiting)
                waiting = 0
            elif c not in "-.":
                waiting += 1
            column += 1
        assert column == width
        letters.append(out)
        deletions.append(counts)
        trailing.append(waiting)
    return letters, deletions, trailing


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
    letters, deletions, trailing = anchored_by_hand(texts, a3m=a3m)
    np.testing.assert_array_equal(msa.residues, np.stack([encode(row) for row in letters]))
    assert msa.deletions.tolist() == deletions
    assert msa.trailing.tolist() == trailing


def test_shipped_alignments_agree_in_two_formats() -> None:
    assert_same(read_msa(ROOT / "data" / "globins4.a3m"), read_msa(ROOT / "data" / "globins4.sto"))
