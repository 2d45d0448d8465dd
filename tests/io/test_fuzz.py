"""2,000 files that no one wrote: damaged real ones, and ones that hypothesis makes up. ``python -m tests.io.fuzz`` runs more."""

import bz2
import gzip
import io
import lzma
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evoattn.errors import MSAError
from evoattn.io import MSA, MSAAccount, SparseLetters, read_msa
from evoattn.io.residues import ALPHABETS, encode
from tests.io import fuzz

QUICK = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_damaged_files(tmp_path: Path, first: int) -> None:
    files = fuzz.real_files()
    read = [fuzz.run_case(number, files, tmp_path) for number in range(first, first + 100)]
    assert any(read) and not all(read)


LINES = st.one_of(
    st.sampled_from(fuzz.TOKENS),
    st.text("ACDEFGHIKLMNPQRSTVWY-.", max_size=12).map(str.encode),
    st.text("ACGUacguMKmk-.:*XB", max_size=12).map(str.encode),
    st.tuples(st.sampled_from([b"q", b"a", b"a/1-4", b"#=GC RF"]), st.text("MKVLmk-.", min_size=1, max_size=8)).map(
        lambda r: r[0] + b" " + r[1].encode()
    ),
    st.sampled_from([b">q", b">a x", b">b\t1", b">", b"q MKVL", b"a MK-L", b"MKVL", b"MK-L", b"MaKVL"]),
    st.binary(max_size=8),
)
FILES = st.one_of(
    st.binary(max_size=200),
    st.tuples(
        st.sampled_from([b"", b">q\n", b"# STOCKHOLM 1.0\n", b"CLUSTAL W\n\n", b"#=RF xx\n"]),
        st.lists(LINES, max_size=20),
        st.sampled_from([b"\n", b"\r\n", b"\n\n", b""]),
    ).map(lambda parts: parts[0] + parts[2].join(parts[1])),
)
OPTIONS = st.one_of(
    st.sampled_from([{}, {"anchor": "none"}, {"anchor": "rf"}, {"alphabet": "rna"}]),
    st.fixed_dictionaries(
        {"anchor": st.sampled_from(["query", "rf", "none"])},
        optional={
            "format": st.sampled_from(["a3m", "a2m", "fasta", "stockholm", "clustal", "selex", "psicov"]),
            "block": st.sampled_from([1, 2, "q"]),
            "query": st.sampled_from(["q", "a", ""]),
        },
    ),
)


@settings(QUICK, max_examples=500)
@given(data=FILES, options=OPTIONS, written=st.sampled_from(fuzz.WRITTEN))
def test_made_up_files(tmp_path: Path, data: bytes, options: dict, written: str) -> None:
    with fuzz.limited_time():
        fuzz.check(data, options, tmp_path, written)


# One alignment in every format, written here without the writer, and with what files have besides.


@st.composite
def texts(draw: st.DrawFn) -> list[str]:
    width = draw(st.integers(1, 12))
    row = st.text("ACDEFGHIKLMNPQRSTVWYX---", min_size=width, max_size=width)
    return draw(st.lists(row, min_size=2, max_size=6).filter(lambda rows: rows[0].strip("-") != ""))


def in_format(rows: list[str], kind: str, cut: int) -> str:
    names = [f"r{i}" for i in range(len(rows))]
    blocks = [[row[at : at + cut] for row in rows] for at in range(0, len(rows[0]), cut)]
    interleaved = "\n".join("".join(f"{n:4}{piece}\n" for n, piece in zip(names, block, strict=True)) for block in blocks)
    if kind == "stockholm":
        return f"# STOCKHOLM 1.0\n#=GF ID x\n\n{interleaved}//\n".replace("-", ".")
    if kind == "clustal":
        return f"CLUSTAL W\n\n{interleaved}    * .\n"
    if kind == "selex":
        return f"#=ID x\n{interleaved}"
    if kind == "psicov":
        return "".join(row + "\n" for row in rows)
    if kind == "a3m":
        has = [letter != "-" for letter in rows[0]]
        rows = ["".join(c if kept else c.lower() for c, kept in zip(row, has, strict=True) if kept or c != "-") for row in rows]
    wrapped = ("\n".join(row[at : at + cut] for at in range(0, len(row), cut)) for row in rows)
    return "".join(f">{name}\n{row}\n" for name, row in zip(names, wrapped, strict=True))


@settings(QUICK, max_examples=300)
@given(
    rows=texts(),
    kind=st.sampled_from(["fasta", "a3m", "stockholm", "clustal", "selex", "psicov"]),
    cut=st.integers(1, 12),
    ends=st.sampled_from(["\n", "\r\n", "\r"]),
    around=st.sampled_from([(b"", b""), (b"\xef\xbb\xbf", b""), (b"\n\n", b"\n"), (b"", b"\0"), (b"; made by hand\n", b"")]),
    pack=st.sampled_from([bytes, gzip.compress, bz2.compress, lzma.compress]),
)
def test_equal_alignments_give_equal_arrays(rows: list[str], kind: str, cut: int, ends: str, around: tuple[bytes, bytes], pack) -> None:
    data = pack(around[0] + in_format(rows, kind, cut).replace("\n", ends).encode() + around[1])
    msa = read_msa(io.BytesIO(data), kind, alphabet="protein")  # by name: a few letters may fit several formats
    has = [i for i, letter in enumerate(rows[0]) if letter != "-"]
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(msa.residues[i], encode("".join(row[k] for k in has)))
        places = [(sum(h < k for h in has), letter) for k, letter in enumerate(row) if k not in has and letter != "-"]
        columns, letters = msa.insertions.row(i)
        assert (columns.tolist(), letters.decode()) == ([place for place, _ in places], "".join(letter for _, letter in places))


@st.composite
def alignments(draw: st.DrawFn) -> dict:
    alphabet = draw(st.sampled_from(["protein", "rna", "dna"]))
    codes = [code for code, letter in enumerate(ALPHABETS[alphabet].letters) if letter != "?"]
    n_seq, n_res = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    rows = draw(st.lists(st.lists(st.sampled_from(codes), min_size=n_res, max_size=n_res), min_size=n_seq, max_size=n_seq))
    row_insertions = st.dictionaries(st.integers(0, n_res), st.text("ACDXYZ", min_size=1, max_size=3), max_size=3)
    insertions = draw(st.lists(row_insertions, min_size=n_seq, max_size=n_seq))
    names = draw(
        st.lists(
            st.text(draw(st.sampled_from(["ab1|é", "a_#*>; "])), min_size=1, max_size=3),
            min_size=n_seq,
            max_size=n_seq,
            unique=draw(st.booleans()),
        )
    )
    return {
        "names": tuple(names),
        "descriptions": tuple(draw(st.lists(st.sampled_from(["", "a b", "x\ty"]), min_size=n_seq, max_size=n_seq))),
        "residues": np.array(rows, np.uint8),
        "insertions": [sorted(places.items()) for places in insertions],
        "alphabet": alphabet,
    }


@settings(QUICK, max_examples=200)
@given(parts=alignments(), kind=st.sampled_from(fuzz.WRITTEN))
def test_what_is_written_reads_back(tmp_path: Path, parts: dict, kind: str) -> None:
    n_seq = len(parts["names"])
    insertions, account = SparseLetters.of_rows(parts["insertions"]), MSAAccount(rows_in=n_seq, rows_kept=n_seq)
    fuzz.reads_back(MSA(**{**parts, "insertions": insertions}, account=account), tmp_path / "written", kind)


def test_the_check_sees_a_reader_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise IndexError

    monkeypatch.setattr(fuzz, "read_msa", broken)
    with pytest.raises(IndexError):
        fuzz.check(b">q\nMKVL\n", {}, tmp_path)
    monkeypatch.undo()
    msa = read_msa(io.BytesIO(b">q\nMKVL\n>a\nM-aVL\n"))
    monkeypatch.setattr(MSA, "trailing", np.ones(2, np.int32), raising=True)
    with pytest.raises(AssertionError):
        fuzz.assert_sound(msa, {})
    with pytest.raises(AssertionError):
        fuzz.refused_well(MSAError("no"))
