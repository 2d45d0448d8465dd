"""Where alignments are read from: packed files, streams, pieces of any size; and how much is held of them."""

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
from pathlib import Path

import pytest

from evoattn.errors import MSAError
from evoattn.io import read_msa, sources
from tests.io.alignments import INSERTIONS, assert_same

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


def test_few_rows_of_a_deep_file_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "deep"
    row, half = "MKVLWWSTNQRHACDEFGHI" * 100, "MKVLWWSTNQRHACDEFGHI" * 50
    in_two_blocks = "\n".join("".join(f"r{i:04} {half}\n" for i in range(2_000)) for _ in range(2))
    files = {
        "fasta": "".join(f">r{i}\n{row}\n" for i in range(2_000)),
        "stockholm": f"# STOCKHOLM 1.0\n{in_two_blocks}//\n",
        "selex": in_two_blocks,
    }
    for kind, text in files.items():
        path.write_text(text)
        tracemalloc.start()
        msa = read_msa(path, max_rows=100)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (msa.format, msa.n_seq, msa.n_res, msa.account.rows_in) == (kind, 100, 2000, 2_000)
        assert peak < 2_500_000 < path.stat().st_size  # a few pieces of the file, and no more
