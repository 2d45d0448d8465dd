"""Writing alignments: what is written reads back as the same alignment, or is refused."""

import bz2
import gzip
import lzma
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from Bio import AlignIO

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, Annotation, MSAAccount, SparseLetters, read_msa, write_msa
from evoattn.io.residues import encode
from tests.io.alignments import assert_same

FORMATS = ("a3m", "stockholm", "clustal", "fasta")


def family() -> MSA:
    """Insertions of several lengths at one place and at both ends, letters that are read as others, text in headers."""
    texts = ["MKVLU", "M-VL*", "-----", "MBVZX"]
    inserted = [[], [(0, "G"), (2, "AAA"), (5, "WW")], [(2, "C"), (5, "YYY")], [(4, "J")]]
    odd = [[(4, "U")], [(4, "*")], [], [(1, "B"), (3, "Z")]]
    return MSA(
        names=("query", "sp|P1|X", "P2/5-9", "Müller"),
        descriptions=("", "212\t0.9", "a protein  of OS=E. coli", "x"),
        residues=np.stack([encode(text) for text in texts]),
        insertions=SparseLetters.of_rows(inserted),
        account=MSAAccount(rows_in=4, rows_kept=4),
        unusual=SparseLetters.of_rows(odd),
        tabbed=np.array([False, True, False, True]),
    )


def test_what_is_written(tmp_path: Path) -> None:
    written = {}
    for kind in FORMATS:
        write_msa(family(), tmp_path / "family", kind)
        written[kind] = (tmp_path / "family").read_text(encoding="utf-8")
    assert written["a3m"] == (
        ">query\nMKVLU\n>sp|P1|X\t212\t0.9\ngM-aaaVL*ww\n>P2/5-9 a protein  of OS=E. coli\n--c---yyy\n>Müller\tx\nMBVZjX\n"
    )
    assert written["fasta"] == (
        ">query\n-MK---VL-U---\n>sp|P1|X\t212\t0.9\nGM-AAAVL-*WW-\n"
        ">P2/5-9 a protein  of OS=E. coli\n---C------YYY\n>Müller\tx\n-MB---VZJX---\n"
    )
    assert written["stockholm"] == (
        "# STOCKHOLM 1.0\n#=GS sp|P1|X DE 212\t0.9\n#=GS P2/5-9 DE a protein  of OS=E. coli\n#=GS Müller DE x\n\n"
        "query   .MK...VL.U...\nsp|P1|X gM-aaaVL.*ww.\nP2/5-9  .--c..--.-yyy\nMüller .MB...VZjX...\n#=GC RF .xx...xx.x...\n//\n"
    )
    assert written["clustal"] == (
        "CLUSTAL multiple sequence alignment, written by evoattn\n\n"
        "query   -MK---VL-U---\nsp|P1|X GM-AAAVL-*WW-\nP2/5-9  ---C------YYY\nMüller -MB---VZJX---\n\n"
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_it_reads_back_as_the_same_alignment(tmp_path: Path, kind: str) -> None:
    msa = family()
    notes = write_msa(msa, tmp_path / "family", kind)
    back = read_msa(tmp_path / "family")
    assert_same(back, msa)
    assert back.format == kind
    assert back.unusual is not None and back.unusual.letters.tobytes() == b"U*BZ"
    if kind == "clustal":
        assert notes == ("Clustal has no descriptions; those of 3 rows are left out.",)
    else:
        assert (back.descriptions, notes) == (msa.descriptions, ())
    write_msa(back, tmp_path / "again", kind)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "family").read_bytes()


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "file",
    [
        "formats/a3m/T1001.a3m",
        "formats/stockholm/LuxC.hmmalign.sto",
        "formats/clustal/opuntia.aln",
        "formats/selex/msa_Cys_knot.slx",
        "formats/a3m/rna_9gmw_2.a3m",
        "formats/a2m/evcouplings_example_aln.a2m",
        "derived/4OT_homodimer.colabfold.a3m",
    ],
)
@pytest.mark.parametrize("anchor", ["query", "none"])
def test_real_files_read_back(shared: Path, tmp_path: Path, file: str, kind: str, anchor: str) -> None:
    msa = read_msa(shared / "data" / file, anchor=anchor)
    write_msa(msa, tmp_path / "written", kind, rename=True)
    back_anchor = "query" if (msa.residues[0] != 21).all() else "rf" if kind in ("a3m", "stockholm") else "none"
    back = read_msa(tmp_path / "written", kind, anchor=back_anchor)
    assert_same(back, msa, names=kind in ("a3m", "fasta"))
    if kind in ("a3m", "fasta", "stockholm"):
        assert back.descriptions == msa.descriptions
    if kind == "a3m":
        assert (back.chain_lengths, back.chain_copies) == (msa.chain_lengths, msa.chain_copies)


def as_lines(data: bytes) -> list[bytes]:
    """Headers and whole sequences, without white space at the ends of lines."""
    records = data.replace(b"\0", b"").split(b"\n>")
    split = [record.partition(b"\n") for record in records]
    return [part for header, _, sequence in split for part in (header.rstrip(), sequence.replace(b"\n", b""))]


def test_every_a3m_file_is_written_as_it_was(shared: Path, tmp_path: Path) -> None:
    files = [file for file in sorted((shared / "data").rglob("*.a3m*")) if file.stat().st_size]
    assert len(files) == 20
    for file in files:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if file.name == "a3m_no_realign.a3m":  # aligned FASTA by content: there a small letter is like a capital one
            write_msa(read_msa(file, anchor="none"), tmp_path / "a.a3m")
            data = b"\n".join(line if line.startswith(b">") else line.upper() for line in data.split(b"\n"))
        else:
            write_msa(read_msa(file), tmp_path / "a.a3m")
        assert as_lines((tmp_path / "a.a3m").read_bytes()) == as_lines(data), file


def test_other_parsers_read_what_is_written(shared: Path, tmp_path: Path) -> None:
    msa = read_msa(shared / "data/families/par3_4i6p/bfd_uniclust_hits.a3m")
    for kind in ("stockholm", "clustal", "fasta"):
        write_msa(msa, tmp_path / "written", kind, rename=kind != "fasta")
        theirs = AlignIO.read(tmp_path / "written", kind)
        assert len(theirs) == msa.n_seq
        assert str(theirs[5].seq).replace("-", "").upper() == as_residues(msa, 5)


def as_residues(msa: MSA, i: int) -> str:
    columns, inserted = msa.insertions.row(i)
    letters = np.insert(np.array(list("ARNDCQEGHILKMFPSTWYVX-"))[msa.residues[i]], columns, list(inserted.decode()))
    return "".join(letters).replace("-", "")


def test_annotation_is_kept_in_stockholm(tmp_path: Path) -> None:
    marks = Annotation(
        gf={"ID": ("kin",), "CC": ("one", "two")},
        gc={"SS_cons": "HHH.C", "RF": "xx.xx"},
        gs={"AC": {1: ("P1.2",), 3: ("Q1", "Q2")}},
        gr={"PP": {0: "99*85", 2: "12345"}},
    )
    msa = replace(family(), annotation=marks)
    notes = write_msa(msa, tmp_path / "a.sto")
    back = read_msa(tmp_path / "a.sto")
    assert back.annotation == replace(marks, gc={"SS_cons": "HHH.C", "RF": "xxxxx"})
    assert notes == ("the RF line of Stockholm marks the columns of the alignment: 1 columns that it did not mark are marked now.",)
    assert write_msa(msa, tmp_path / "a.a3m") == (
        "a3m has no annotation; left out: #=GF ID, #=GF CC, #=GS AC, #=GC SS_cons, #=GC RF, #=GR PP.",
    )
    with pytest.raises(MSAError, match="the annotation 'SS' has 2 characters, and the alignment 5 columns"):
        write_msa(replace(msa, annotation=Annotation(gc={"SS": "HH"})), tmp_path / "a.sto")
    with pytest.raises(MSAError, match="has a line end"):
        write_msa(replace(msa, annotation=Annotation(gf={"CC": ("a\nb",)})), tmp_path / "a.sto")


def test_chains(tmp_path: Path) -> None:
    msa = replace(family(), chain_lengths=(2, 3), chain_copies=(2, 1))
    assert write_msa(msa, tmp_path / "a.a3m") == ()
    assert (tmp_path / "a.a3m").read_text(encoding="utf-8").startswith("#2,3\t2,1\n>query\n")
    back = read_msa(tmp_path / "a.a3m")
    assert (back.chain_lengths, back.chain_copies) == ((2, 3), (2, 1))
    assert write_msa(msa, tmp_path / "a.fa") == ("FASTA does not say where chains end; left out: lengths (2, 3), copies (2, 1).",)


def test_columns_that_are_not_the_querys(tmp_path: Path) -> None:
    msa = read_msa(Path(__file__).parents[2] / "data" / "globins4.sto", anchor="none")
    assert (msa.residues[0] == 21).any()
    for kind, anchor in (("a3m", "rf"), ("stockholm", "rf"), ("fasta", "none"), ("clustal", "none")):
        write_msa(msa, tmp_path / "a", kind)
        assert_same(read_msa(tmp_path / "a", kind, anchor=anchor), msa)
    for changed in (replace(msa, insertions=SparseLetters.of_rows([[(1, "A")], [], [], []])), family().take([1, 0])):
        for kind in ("a3m", "stockholm"):
            write_msa(changed, tmp_path / "a", kind)
            assert_same(read_msa(tmp_path / "a", kind, anchor="rf"), changed)
        for kind, what in (("fasta", "aligned FASTA"), ("clustal", "Clustal")):
            with pytest.raises(MSAError, match=f"{what} cannot say which letters of the rows are insertions. Write a3m or Stockholm"):
                write_msa(changed, tmp_path / "a", kind)


@pytest.mark.parametrize("kind", ["stockholm", "clustal"])
@pytest.mark.parametrize(
    ("names", "message", "renamed"),
    [
        (
            ("a", "b", "a", "c"),
            r"row 3 \('a'\): the name is that of row 1 too.*rename=True .--rename., or write a3m or FASTA",
            ("a", "b", "a_2", "c"),
        ),
        (("a", "", "b", ""), r"row 2 \(''\): the row has no name", ("a", "row2", "b", "row4")),
        (("a b", "a_b", "#x", "**"), r"row 1 \('a b'\): the name has white space", ("a_b_2", "a_b", "x", "row4")),
        (("a", "a", "a", "a_2"), r"row 2 \('a'\)", ("a", "a_3", "a_4", "a_2")),
    ],
)
def test_names_that_tell_no_rows_apart(tmp_path: Path, kind: str, names: tuple[str, ...], message: str, renamed: tuple[str, ...]) -> None:
    msa = replace(family(), names=names)
    with pytest.raises(MSAError, match=message):
        write_msa(msa, tmp_path / "a", kind)
    notes = write_msa(msa, tmp_path / "a", kind, rename=True)
    assert read_msa(tmp_path / "a").names == renamed
    changed = sum(old != new for old, new in zip(names, renamed, strict=True))
    assert f"rows that were given another name, so that each has its own: {changed}" in notes


@pytest.mark.parametrize(
    ("name", "description"), [("a b", ""), ("a", "x\ny"), ("", "x"), ("ss_pred", ""), ("a\0", ""), ("\ud800", ""), ("a", " x")]
)
@pytest.mark.parametrize("kind", ["a3m", "fasta"])
def test_headers_that_would_read_as_others(tmp_path: Path, kind: str, name: str, description: str) -> None:
    msa = family()
    changed = replace(msa, names=("q", name, "b", "c"), descriptions=("", description, "", ""), tabbed=None)
    with pytest.raises(MSAError, match=r"row 2 .*would not be read again as they are"):
        write_msa(changed, tmp_path / "a", kind)
    assert list(tmp_path.iterdir()) == []


def test_the_mask_token_has_no_letter(tmp_path: Path) -> None:
    residues = family().residues.copy()
    residues[2, 1] = 22
    with pytest.raises(MSAError, match=r"a.a3m, row 3 \('P2/5-9'\): holds the mask token \(code 22\)"):
        write_msa(replace(family(), residues=residues), tmp_path / "a.a3m")


def test_changed_residues_win_over_remembered_letters(tmp_path: Path) -> None:
    residues = family().residues.copy()
    residues[0, 4] = 0
    write_msa(replace(family(), residues=residues), tmp_path / "a.a3m")
    assert (tmp_path / "a.a3m").read_text(encoding="utf-8").startswith(">query\nMKVLA\n")


def test_a_star_at_the_end_of_one_sequence_is_no_stop_codon(tmp_path: Path) -> None:
    one = family().take([1]).take([0])
    for kind in ("a3m", "stockholm"):
        write_msa(one, tmp_path / "a", kind)
        assert_same(read_msa(tmp_path / "a", kind, anchor="rf"), one)


@pytest.mark.parametrize(("suffix", "unpack"), [(".gz", gzip.decompress), (".bz2", bz2.decompress), (".xz", lzma.decompress)])
def test_suffixes(tmp_path: Path, suffix: str, unpack) -> None:
    for name, kind in (("a.a3m", "a3m"), ("a.sto", "stockholm"), ("a.aln", "clustal"), ("a.fa", "fasta"), ("x.y.fasta", "fasta")):
        write_msa(family(), tmp_path / name)
        write_msa(family(), tmp_path / (name + suffix))
        assert read_msa(tmp_path / name).format == kind
        packed = (tmp_path / (name + suffix)).read_bytes()
        assert unpack(packed) == (tmp_path / name).read_bytes()
        write_msa(family(), tmp_path / (name + suffix))
        assert (tmp_path / (name + suffix)).read_bytes() == packed


@pytest.mark.parametrize(("name", "kind"), [("a.txt", "auto"), ("a", "auto"), ("a.gz", "auto"), ("a.a3m", "selex")])
def test_unknown_formats(tmp_path: Path, name: str, kind: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"format is {kind!r} for {name!r}; allowed are a3m, stockholm, clustal, fasta, or 'auto'")
    ):
        write_msa(family(), tmp_path / name, kind)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.sto"
    path.write_text("before")
    with pytest.raises(MSAError):
        write_msa(replace(family(), names=("a",) * 4), path)
    assert path.read_text() == "before"
    write_msa(family(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.sto"]
    with pytest.raises(MSAError, match=r"nothing/a.a3m: the file cannot be written: No such file or directory"):
        write_msa(family(), tmp_path / "nothing" / "a.a3m")
