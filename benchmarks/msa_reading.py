#!/usr/bin/env python3
"""Speed and memory of read_msa: against pyhmmer's reader, and on a large file of which few rows are kept.

  python benchmarks/msa_reading.py compare           10,000 rows x 300 columns of a3m, read_msa and pyhmmer
  python benchmarks/msa_reading.py stream [--mb N]   Stockholm in one block, interleaved, and a3m, N MB each (1000)

Each reading runs in a process of its own. Memory is the peak of the resident set during the reading over that after the
imports; time is the best of several readings (compare) or one (stream), CPU time of the process.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

AMINO_ACIDS = np.frombuffer(b"ARNDCQEGHILKMFPSTWYV-", dtype=np.uint8)
KEPT_ROWS = 10_000

CHILD = """
import json, sys, time
path, reader, repeats, max_rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) or None
if reader == "read_msa":
    from evoattn.io import read_msa
    read = lambda: read_msa(path, max_rows=max_rows)
else:
    import pyhmmer
    alphabet = pyhmmer.easel.Alphabet.amino()
    def read():
        with pyhmmer.easel.MSAFile(path, format="a2m", digital=True, alphabet=alphabet) as file:
            return file.read()
def resident():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
before = resident()
open("/proc/self/clear_refs", "w").write("5")
start = time.process_time()
msa = read()
seconds = [time.process_time() - start]
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
del msa
for _ in range(repeats - 1):
    start = time.process_time()
    read()
    seconds.append(time.process_time() - start)
print(json.dumps({"seconds": min(seconds), "megabytes": (peak - before) / 1000}))
"""


def measured(path: Path, reader: str, *, repeats: int = 1, max_rows: int = 0) -> dict[str, float]:
    command = [sys.executable, "-c", CHILD, str(path), reader, str(repeats), str(max_rows)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def random_rows(n: int, width: int, seed: int = 0) -> list[bytes]:
    letters = AMINO_ACIDS[np.random.default_rng(seed).integers(0, len(AMINO_ACIDS), (n, width))]
    letters[0] = AMINO_ACIDS[letters[0] % 20]
    return [row.tobytes() for row in letters]


def a3m(rows: list[bytes], n: int, seed: int = 1) -> Iterator[bytes]:
    """Half of the rows, but not the query, have one insertion of 1 to 5 letters."""
    rng = np.random.default_rng(seed)
    for i in range(n):
        row = rows[i % len(rows)]
        if i and rng.random() < 0.5:
            at = int(rng.integers(1, len(row)))
            row = row[:at] + b"acdef"[: int(rng.integers(1, 6))] + row[at:]
        yield b">UniRef100_A0A%07d\t%d\t0.4\t1.3E-9\n%s\n" % (i, i, row)


def stockholm(rows: list[bytes], n: int, block: int) -> Iterator[bytes]:
    yield b"# STOCKHOLM 1.0\n#=GF ID generated\n\n"
    yield from (b"#=GS UniRef100_A0A%07d DE Protein number %d OS=Escherichia coli OX=562\n" % (i, i) for i in range(n))
    for start in range(0, len(rows[0]), block):
        yield b"\n"
        yield from (b"UniRef100_A0A%07d   %s\n" % (i, rows[i % len(rows)][start : start + block]) for i in range(n))
    yield b"//\n"


def compare(folder: Path) -> None:
    path = folder / "rows.a3m"
    with open(path, "wb") as file:
        file.writelines(a3m(random_rows(10_000, 300), 10_000))
    megabytes = path.stat().st_size / 1e6
    ours, theirs = measured(path, "read_msa", repeats=7), measured(path, "pyhmmer", repeats=7)
    print(f"a3m of 10,000 rows x 300 columns, {megabytes:.1f} MB")
    for name, result in (("read_msa", ours), ("pyhmmer", theirs)):
        print(f"  {name:9} {result['seconds'] * 1000:6.0f} ms   peak {result['megabytes']:6.1f} MB over the imports")
    larger = max(theirs["megabytes"], megabytes)
    print(f"  time {ours['seconds'] / theirs['seconds']:.2f} of pyhmmer (at most 3), memory {ours['megabytes'] / larger:.2f} of the larger "
          "of pyhmmer's and the file (at most 1.3)")  # fmt: skip


def stream(folder: Path, megabytes: int) -> None:
    width = 1000
    rows = random_rows(2000, width)
    n = megabytes * 1_000_000 // (width + 120)
    for name, lines in (
        ("Stockholm, one block", stockholm(rows, n, width)),
        ("Stockholm, interleaved", stockholm(rows, n, 200)),
        ("a3m", a3m(rows, n)),
    ):
        path = folder / "large"
        with open(path, "wb") as file:
            file.writelines(lines)
        result = measured(path, "read_msa", max_rows=KEPT_ROWS)
        kept = KEPT_ROWS * width / 1e6
        print(
            f"{name}: {path.stat().st_size / 1e6:.0f} MB, {n} rows, {KEPT_ROWS} kept ({kept:.0f} MB): {result['seconds']:.1f} s, "
            f"peak {result['megabytes']:.0f} MB over the imports (at most {300 + 3 * kept:.0f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["compare", "stream"])
    parser.add_argument("--mb", type=int, default=1000, help="size of each generated file")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "compare":
            compare(Path(folder))
        else:
            stream(Path(folder), arguments.mb)


if __name__ == "__main__":
    main()
