"""Reading aligned FASTA, Stockholm, Clustal, SELEX and bare rows, against each other and against a loop."""

from pathlib import Path

import numpy as np
import pytest

from evoattn.errors import MSAError
from evoattn.io import read_msa
from evoattn.io.residues import encode
from tests.io.alignments import assert_same, texts

ROOT = Path(__file__).resolve().parents[2]
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
    assert texts(msa) == ["MKVL", "MKVL"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0]]
    assert msa.trailing.tolist() == [0, 0]


def test_insertions_at_both_ends_of_an_aligned_query(read) -> None:
    msa = read(">q\n--MK.VL--\n>a\nGGMKAVL-W\n>b\n-G-----WW\n")
    assert texts(msa) == ["MKVL", "MKVL", "----"]
    assert msa.deletions.tolist() == [[0, 0, 0, 0], [2, 0, 1, 0], [1, 0, 0, 0]]
    assert msa.trailing.tolist() == [0, 1, 2]


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
    assert texts(msa) == ["MKVLC", "MKVLC", "MKV-W", "M-VL-"]
    assert msa.deletions.tolist() == [[0] * 5, [0, 0, 1, 0, 1], [0, 0, 1, 0, 0], [0] * 5]


@pytest.mark.parametrize("between", ["//\n", "//\n\n# end\n\n", ""])
def test_several_stockholm_alignments(read, between: str) -> None:
    content = STOCKHOLM + between + "# STOCKHOLM 1.0\n#=GF ID second\n#=GF AC PF2\nx MK\ny M-\n//\n"
    with pytest.raises(MSAError, match=r"the file holds 2 alignments.*1: 'P1/5-9' \(4 rows\); 2: 'second' \(2 rows\)"):
        read(content)
    for block in (2, "second", "PF2", "x"):
        assert texts(read(content, block=block)) == ["MK", "M-"]
    assert_same(read(content, block=1), read(STOCKHOLM))


@pytest.mark.parametrize("mark", ["#=GF ID x", "#=GC RF xx", "#=GS q AC P1", "#=GR q SS HH"])
def test_stockholm_without_its_first_line(read, mark: str) -> None:
    msa = read(f"{mark}\nq MK\na M-\n//\n")
    assert (msa.format, texts(msa)) == ("stockholm", ["MK", "M-"])
    assert msa.account.notes == ("no '# STOCKHOLM 1.0' at the top: 1",)


def test_stockholm_row_missing_in_a_block_is_named(read) -> None:
    with pytest.raises(MSAError, match=r"line 9, row 2 \('P2'\): has 4 columns, expected 7, those of the query, row 1 \('P1/5-9'\)"):
        read(STOCKHOLM.replace("P2             LaC\n", ""))


def test_stockholm_line_that_is_no_row(read) -> None:
    with pytest.raises(MSAError, match="line 7: no name followed by a sequence: 'P1/5-9'"):
        read(STOCKHOLM.replace("P1/5-9         MK-V", "P1/5-9"))


def test_marks_of_a_row_that_is_not_kept_are_not_given_to_its_namesake(read) -> None:
    content = "# STOCKHOLM 1.0\na MK\n#=GR a SS HH\na M-\n#=GR a SS CC\n//\n"
    assert read(content).annotation.gr == {"SS": {0: "HH", 1: "CC"}}
    assert read(content, max_rows=1).annotation.gr == {"SS": {0: "HH"}}


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
    assert texts(msa) == ["MKVLC", "MKVL-"]
    assert msa.deletions.tolist() == [[0] * 5, [0, 0, 1, 0, 0]]


def test_spaces_are_gaps_in_selex(read) -> None:
    content = "# a comment\n#=ID kin\nseq1   MK VL\nlonger  KAVL\n#=SS    HHHH\nq3     M    \n\nseq1   GG\nlonger G\nq3      G\n"
    msa = read(content, format="selex", anchor="none")
    assert msa.names == ("seq1", "longer", "q3")
    assert texts(msa) == ["MK-VLGG", "-KAVLG-", "M-----G"]
    assert msa.annotation.gf == {"ID": ("kin",)}


def test_rows_of_selex_that_are_not_kept_still_widen_the_block(read) -> None:
    """The columns reach as far as the longest row does, and a query that stands last takes its place, mark-up included."""
    blocks = [
        "#=RF  xx xx\na      MKV\n#=SS   HHH\nb      M\n#=SS   C\nlast  WMKVL\n#=SS  EEEEE\n",
        "#=RF  xx\na     G\n#=SS  H\nb     G\n#=SS  C\nlast  GG\n#=SS  EE\n",
    ]
    content = "\n".join(blocks)
    whole = read(content, format="selex", anchor="none")
    assert texts(whole) == ["-MKV-G-", "-M---G-", "WMKVLGG"]
    assert whole.annotation.gr == {"SS": {0: ".HHH.H.", 1: ".C...C.", 2: "EEEEEEE"}}
    first = read(content, format="selex", anchor="none", max_rows=1)
    assert_same(first, whole.take([0]))
    assert (first.account.rows_in, first.annotation.gc, first.annotation.gr) == (3, {"RF": "xx.xxxx"}, {"SS": {0: ".HHH.H."}})
    query = read(content, format="selex", anchor="none", max_rows=2, query="last")
    assert query.names == ("last", "a")
    assert_same(query, whole.take([2, 0]))
    assert query.annotation.gr == {"SS": {0: "EEEEEEE", 1: ".HHH.H."}}


def test_bare_rows(read) -> None:
    msa = read("MKVL\nMR-L\n\n.KVL\n", name="family.aln")
    assert (msa.format, msa.names, texts(msa)) == ("psicov", ("seq1", "seq2", "seq3"), ["MKVL", "MR-L", "-KVL"])
    assert "rows without names (named seq1, seq2, ...): 3" in msa.account.notes
    with pytest.raises(MSAError, match=r"line 2, row 2 \('seq2'\): has 3 columns, expected 4"):
        read("MKVL\nMR-\n")


def test_a_named_format_is_not_guessed(read) -> None:
    assert texts(read("mkvl\nmr-l\n", format="psicov")) == ["MKVL", "MR-L"]
    assert texts(read(">q\nMKVL\n>a\nMaRV\n", format="fasta")) == ["MKVL", "MARV"]
    with pytest.raises(MSAError, match=r"row 2 \('a'\): has 3 columns, expected 4"):
        read(">q\nMKVL\n>a\nMaRV\n", format="a3m")
    with pytest.raises(MSAError, match=r"row 2 \('a'\): has 5 columns, expected 4"):
        read(">q\nMKVL\n>a\nMaKVL\n", format="fasta")


def anchored_by_hand(rows: list[str], *, a3m: bool) -> tuple[list[str], list[list[str]]]:
    """The reading rule, one character at a time: of each row the letters of the columns, and those left of each and at the end."""
    letters, inserted = [], []
    width = len(rows[0])
    query_has = [c not in "-." for c in rows[0]]
    for row in rows:
        out, places, waiting, column = "", [], "", 0
        for c in row:
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
    rows = []
    for i in range(1100):  # more than the reader takes at once
        row = "".join(rng.choice(list("ARNDCQEGHILKMFPSTWYVX----"), size=23))
        if a3m and i:
            row = "".join(c + "gt."[: rng.integers(4)] * (rng.random() < 0.2) for c in " " + row).strip()
        rows.append(row)
    msa = read("".join(f">r{i}\n{row}\n" for i, row in enumerate(rows)))
    assert msa.format == kind
    letters, inserted = anchored_by_hand(rows, a3m=a3m)
    np.testing.assert_array_equal(msa.residues, np.stack([encode(row) for row in letters]))
    assert msa.deletions.tolist() == [[len(place) for place in places[:-1]] for places in inserted]
    assert msa.trailing.tolist() == [len(places[-1]) for places in inserted]
    assert [msa.insertions.row(i)[1].decode() for i in range(msa.n_seq)] == ["".join(places) for places in inserted]


def test_shipped_alignments_agree_in_two_formats() -> None:
    assert_same(read_msa(ROOT / "data" / "globins4.a3m"), read_msa(ROOT / "data" / "globins4.sto"))
