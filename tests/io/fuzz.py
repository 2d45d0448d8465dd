"""Damaged files for the reader: it returns a sound alignment or raises MSAError, and nothing else, in bounded time and memory.

``python -m tests.io.fuzz --cases 1000000`` runs more of them than the tests do; a case that fails is written to a file and
can be run again by its number.
"""

import argparse
import bz2
import gzip
import io
import lzma
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from evoattn.errors import MSAError
from evoattn.io import MSA, read_msa, read_sequences, write_msa
from evoattn.io.residues import ALPHABETS, GAP

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 20_000  # bytes of a file before it is damaged
SECONDS = 20  # far beyond what any case needs: only an endless loop takes so long
GIGABYTES = 6

WRITTEN = ("a3m", "stockholm", "clustal", "fasta")
TOKENS = [
    *(
        b">",
        b">q\n",
        b">\n",
        b"\n>a b\tc\n",
        b">ss_pred\n",
        b"\n",
        b"\r\n",
        b"\r",
        b"\n\n",
        b"\0",
        b"\n\0",
        b" ",
        b"\t",
        b":",
        b"*",
        b".",
        b"-",
        b"_",
    ),
    *(
        b"#",
        b";",
        b"#4\t1\n",
        b"#2,2\t1,2\n",
        b"#0\t1\n",
        b"#A3M#\n",
        b"\n//\n",
        b"//",
        b"# STOCKHOLM 1.0\n",
        b"#=GF ID x\n",
        b"#=GF\n",
        b"#=GS q DE x\n",
    ),
    *(
        b"#=GC RF xx.x\n",
        b"#=GC RF ....\n",
        b"#=GR q SS HHHH\n",
        b"#=RF xxxx\n",
        b"#=SS HH\n",
        b"CLUSTAL W\n",
        b"MUSCLE (3.8)\n",
        b"  ** :.\n",
        b" 12\n",
    ),
    *(
        b"MKVL",
        b"mkvl",
        b"MK--VL",
        b"ACGUACGUAACC",
        b"acgt",
        b"BZUOXJ*",
        b"q MKVL\n",
        b"q  MK-V 4\n",
        b"\xc3\xa9",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x1f\x8b",
    ),
    *(
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\x0b",
        b"\x1c",
        b"/1-4",
        b"9" * 25,
        b"A" * 300,
        b"\x28\xb5\x2f\xfd",
        b"BZh9",
        b"\xfd7zXZ\0",
        b"data_x\n",
        b"@",
        b"<",
    ),
]


def real_files() -> list[bytes]:
    """The beginnings of the files that are there: those of the project, and the reference files if they are beside it."""
    folders = [ROOT / "data", ROOT.parent / "shared" / "data" / "formats", ROOT.parent / "shared" / "data" / "derived"]
    files = sorted(file for folder in folders if folder.is_dir() for file in folder.rglob("*") if file.is_file())
    contents = [gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes() for file in files]
    return [_whole_rows(content, LONGEST) for content in contents if content]


def _whole_rows(content: bytes, size: int) -> bytes:
    """At most so many bytes, cut between records or lines, so that the rows stay whole."""
    if len(content) <= size:
        return content
    return content[: content.rfind(b"\n>" if content.startswith(b">") else b"\n", 0, size) + 1]


def damaged(rng: random.Random, files: list[bytes]) -> bytes:
    """One of the files, or a heap of tokens, with some damage; sometimes compressed, and damaged again."""
    if rng.random() < 0.2:
        data = b"".join(rng.choice(TOKENS) for _ in range(rng.randrange(40)))
    else:
        data = rng.choice(files)
        data = _whole_rows(data, rng.randrange(200, LONGEST)) if rng.random() < 0.5 else data
    for _ in range(rng.choice([0, 1, 1, 1, 2, 6])):
        data = _damage(rng, data, files)
    if rng.random() < 0.1:
        data = rng.choice([gzip.compress, bz2.compress, lzma.compress])(data)
        if rng.random() < 0.7:
            data = _damage(rng, data, files)
    return data


def _damage(rng: random.Random, data: bytes, files: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    to = min(len(data), at + rng.choice([1, 2, 10, 100, 1000]))
    kind = rng.randrange(9)
    if kind == 0:
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + data[to:]
    if kind == 2:
        return data[:to] + data[at:]
    if kind == 3:
        return data[:at]
    if kind == 4:
        other = rng.choice(files)
        return data[:at] + other[rng.randrange(len(other)) :][:2000] + data[at:]
    if kind == 5:
        old, new = rng.choice(
            [(b"\n", b"\r\n"), (b"\n", b"\r"), (b"-", b"."), (b".", b"-"), (b" ", b"\t"), (b">", b"\0>"), (b"\n", b"\n\n"), (b">", b"> ")]
        )
        return data.replace(old, new)
    if kind == 6:
        return data[:at] + data[at:to].swapcase() + data[to:]
    if kind == 7:
        lines = data.split(b"\n")
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[i], lines[j] = lines[j], lines[i]
        return b"\n".join(lines)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def options_of(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["anchor"] = rng.choice(["rf", "none"])
    if rng.random() < 0.1:
        options["format"] = rng.choice(["a3m", "a2m", "fasta", "stockholm", "clustal", "selex", "psicov"])
    if rng.random() < 0.05:
        options["block"] = rng.choice([1, 2, "101", "q"])
    if rng.random() < 0.05:
        options["query"] = rng.choice(["q", "101", ""])
    if rng.random() < 0.1:
        options["alphabet"] = rng.choice(["protein", "rna", "dna"])
    return options


def check(data: bytes, options: dict[str, Any], folder: Path, written: str = "a3m") -> bool:
    """Read, look at the result, read fewer rows, write and read again; whether it was an alignment."""
    try:
        read_sequences(io.BytesIO(data), options.get("format", "auto"), block=options.get("block"))
    except MSAError as error:
        refused_well(error)
    try:
        msa = read_msa(io.BytesIO(data), **options)
    except MSAError as error:
        refused_well(error)
        return False
    assert_sound(msa, options)
    if "query" not in options:
        fewer_rows(data, options, msa)
    reads_back(msa, folder / "written", written)
    return True


def refused_well(error: MSAError) -> None:
    assert error.file == "<stream>" and len(str(error)) > 30, error


def assert_sound(msa: MSA, options: dict[str, Any]) -> None:
    n_seq, n_res = msa.residues.shape
    assert msa.residues.dtype == np.uint8 and n_seq >= 1 and n_res >= 1
    assert len(msa.names) == len(msa.descriptions) == n_seq
    letters = ALPHABETS[msa.alphabet].letters
    assert {letters[code] for code in np.unique(msa.residues).tolist()} <= set(letters) - {"?"}
    for sparse, last in ((msa.insertions, n_res), (msa.unusual, n_res - 1)):
        if sparse is None:
            continue
        offsets = sparse.offsets
        assert len(offsets) == n_seq + 1 and offsets[0] == 0 and offsets[-1] == len(sparse.columns) == len(sparse.letters)
        assert (np.diff(offsets) >= 0).all()
        place = sparse.rows * (n_res + 1) + sparse.columns
        assert (np.diff(place) >= 0).all()
        if len(sparse):
            assert sparse.columns.min() >= 0 and sparse.columns.max() <= last
            assert set(sparse.letters.tobytes()) <= set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ" + (b"*" if sparse is msa.unusual else b""))
    assert msa.deletions.sum() + msa.trailing.sum() == len(msa.insertions)
    account = msa.account
    assert account.rows_kept == n_seq == account.rows_in - sum(account.dropped.values())
    assert all(count > 0 for count in account.dropped.values())
    if options.get("anchor", "query") == "query":
        assert (msa.residues[0] != GAP).all() and not len(msa.insertions.row(0)[1])
    if msa.chain_lengths:
        assert sum(msa.chain_lengths) == n_res and min(msa.chain_lengths) > 0 and len(msa.chain_copies) == len(msa.chain_lengths)
    marks = msa.annotation
    assert all(len(text) == n_res for text in [*marks.gc.values(), *(text for of in marks.gr.values() for text in of.values())])


def fewer_rows(data: bytes, options: dict[str, Any], msa: MSA) -> None:
    """The first rows are read as they are among all of them."""
    k = 1 + msa.n_seq // 2
    few = read_msa(io.BytesIO(data), max_rows=k, **{**options, "alphabet": msa.alphabet})
    assert few.names == msa.names[:k]
    assert (few.residues == msa.residues[:k]).all()
    assert few.insertions.letters.tobytes() == msa.insertions.take(np.arange(k)).letters.tobytes()


def reads_back(msa: MSA, path: Path, kind: str) -> None:
    try:
        write_msa(msa, path, kind)
    except MSAError as error:
        assert error.file == str(path)
        return
    querys_columns = (msa.residues[0] != GAP).all() and not msa.insertions.offsets[1]
    anchor = "query" if querys_columns else "rf" if kind in ("a3m", "stockholm") else "none"
    back = read_msa(path, kind, anchor=anchor, alphabet=msa.alphabet)
    assert (back.names, back.residues.shape) == (msa.names, msa.residues.shape)
    assert (back.residues == msa.residues).all()
    for array in ("offsets", "columns", "letters"):
        assert np.array_equal(getattr(back.insertions, array), getattr(msa.insertions, array)), array


@contextmanager
def limited_time() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise TimeoutError(f"a case ran for {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_case(number: int, files: list[bytes], folder: Path) -> bool:
    rng = random.Random(number)
    data, options = damaged(rng, files), options_of(rng)
    with limited_time():
        return check(data, options, folder, rng.choice(WRITTEN))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    files, read, start = real_files(), 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for done, number in enumerate(range(arguments.first, arguments.first + arguments.cases), 1):
            try:
                read += run_case(number, files, Path(folder))
            except BaseException:
                rng = random.Random(number)
                Path(f"fuzz_{number}.bin").write_bytes(damaged(rng, files))
                print(f"case {number} failed, options {options_of(rng)}; its file is fuzz_{number}.bin", file=sys.stderr)
                raise
            if done % 10_000 == 0 or done == arguments.cases:
                print(f"{done} cases, {read} of them alignments, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
