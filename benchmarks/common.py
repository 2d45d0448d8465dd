"""How every benchmark measures: parity first, interleaved repeats, medians, peaks in fresh processes, one JSON line per case."""

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results"
STEADY = 0.15  # a run in which the machine's GEMM rate varies by more claims nothing


def interleaved(cases: dict[str, Callable[[], object]], repeats: int = 5) -> dict[str, Any]:
    """Median seconds per case after one warm-up, the cases taking turns, and the machine's GEMM rate measured before each turn.

    Returns ``{"seconds": {case: median}, "gemm_gflops": median, "steady": whether the rate varied by less than 15 %}``.
    """
    for case in cases.values():
        case()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    rates = []
    for _ in range(repeats):
        rates.append(gemm_rate())
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            seconds[name].append(time.perf_counter() - start)
    steady = max(rates) / min(rates) - 1 < STEADY
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {"seconds": medians, "gemm_gflops": statistics.median(rates), "steady": steady}


def gemm_rate(dtype: torch.dtype = torch.float32, n: int = 1024) -> float:
    """GFLOP/s of an n x n x n matrix product, best of five, into memory that is there: fresh memory has a rate of its own."""
    a, b, out = (torch.randn(n, n).to(dtype) for _ in range(3))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times) / 1e9


def peak_mib(case: Callable[..., object], *arguments: object) -> float:
    """Peak memory of `case(*arguments)` in MiB above what stood after it had built its inputs, in a process of its own.

    `case` is a module-level generator function: it builds its inputs, yields, then computes and returns.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak, case, arguments).result()


def _peak(case: Callable[..., Any], arguments: tuple[object, ...]) -> float:
    torch.set_num_threads(2)
    stages = case(*arguments)
    next(stages)
    Path("/proc/self/clear_refs").write_text("5")  # starts the high-water mark anew (ru_maxrss would still hold that of the parent)
    before = high_water_mib()
    for _ in stages:
        pass
    return high_water_mib() - before


def high_water_mib() -> float:
    """Peak resident memory of this process (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def check(name: str, got: Tensor, expected: Tensor, tolerance: float = 1e-4) -> float:
    """Stop the benchmark unless both agree: numbers of a wrong result mean nothing. Returns the largest error."""
    error = (got - expected).abs().max().item()
    if not error <= tolerance * max(1.0, expected.abs().max().item()):
        raise SystemExit(f"{name}: parity failed, largest error {error:.2e}; nothing was measured.")
    return error


def machine() -> dict[str, object]:
    """What a number needs beside it."""
    code = ["--", ".", ":!benchmarks/results", ":!docs"]  # what other benchmarks have written makes a tree no other code
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", *code], cwd=ROOT, capture_output=True, check=False).returncode
    described = subprocess.run(["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "date": date.today().isoformat(), "commit": f"{described}-dirty" if changed else described, "cpu": cpu,
        "threads": torch.get_num_threads(), "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip


def report(benchmark: str, rows: list[dict[str, Any]], *, part: bool = False) -> None:
    """Print the rows, and write them to results/<benchmark>.jsonl with the machine beside each.

    Of a `part` of a benchmark: in place of the rows of the same cases there; the others stay, each with its own date and commit.
    """
    RESULTS.mkdir(exist_ok=True)
    path, where = RESULTS / f"{benchmark}.jsonl", machine()
    written = [{**row, **where} for row in rows]
    if part and path.exists():
        before = [json.loads(line) for line in path.read_text().splitlines()]
        written = list({row["case"]: row for row in [*before, *written]}.values())
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    for row in rows:
        print("  ".join(f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()))
    if not all(row.get("steady", True) for row in rows):
        print("unstable: the machine's GEMM rate varied by more than 15 %; claim nothing from this run", file=sys.stderr)
