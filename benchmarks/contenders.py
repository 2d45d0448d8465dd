"""Contenders: each a process of its own, so that its threads, its allocator and its peak memory are its own. They take turns."""

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import STEADY, gemm_rate, high_water_mib

THREADS = 2
ROUNDS = 5

Run = Callable[[], list[np.ndarray]]


class Contender:
    """A process that builds a case once, and then runs it whenever told.

    Args:
        build: a module-level function that makes the model and its inputs, and returns what is timed: a function to outputs.
        environment: variables that the process starts with, for instance those of its allocator.
    """

    def __init__(self, build: Callable[..., Run], *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        before = dict(os.environ)
        os.environ.update(environment or {})  # else as a user has it: threads that wait for their turn spin for 5 ms, and then sleep
        try:
            self.process = context.Process(target=_serve, args=(theirs, build, arguments), daemon=True)
            self.process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        self.built_mib = self._receive()

    def first(self) -> tuple[list[np.ndarray], float]:
        """The outputs of the first run, and its peak in MiB above what stood when model and inputs were built."""
        self.connection.send("first")
        return self._receive()

    def seconds(self) -> float:
        self.connection.send("again")
        return self._receive()

    def close(self) -> None:
        self.connection.send(None)
        self.process.join()

    def _receive(self) -> Any:
        try:
            return self.connection.recv()
        except EOFError:
            raise SystemExit("a contender's process died; its error is above") from None


def _serve(connection: Connection, build: Callable[..., Run], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(THREADS)
    run = build(*arguments)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what building has left in the allocator would hide part of the peak
    Path("/proc/self/clear_refs").write_text("5")  # starts the high-water mark anew
    built = high_water_mib()
    connection.send(built)
    while (message := connection.recv()) is not None:
        start = time.perf_counter()
        outputs = run()
        taken = time.perf_counter() - start
        connection.send((outputs, high_water_mib() - built) if message == "first" else taken)


@dataclass(frozen=True)
class Match:
    """Who of a contest is compared with whom, how far apart they may be (relative norm), and in which dtype the GEMM rate is taken."""

    case: str
    ours: str
    theirs: str
    tolerance: float = 1e-4
    dtype: torch.dtype = torch.float32


def contest(contenders: dict[str, Contender], matches: list[Match]) -> list[dict[str, Any]]:
    """Parity, then all in turns, five rounds after a warm-up, with the GEMM rates measured between the rounds.

    Returns a row per match: medians of the seconds and of the ratio within a round, the peaks of the first run, and by how much the rates
    of its own dtype and of float32, which some peer computes in, varied.
    """
    first = {name: contender.first() for name, contender in contenders.items()}
    errors = {match.case: _error(match, first[match.ours][0], first[match.theirs][0]) for match in matches}
    for contender in contenders.values():
        contender.seconds()
    rates: dict[torch.dtype, list[float]] = {match.dtype: [gemm_rate(match.dtype, 2048)] for match in matches}
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        rounds.append({name: contender.seconds() for name, contender in contenders.items()})
        for dtype, found in rates.items():
            found.append(gemm_rate(dtype, 2048))
    for contender in contenders.values():
        contender.close()

    def row(match: Match) -> dict[str, Any]:
        ours, theirs = ([one[name] for one in rounds] for name in (match.ours, match.theirs))
        our_peak, their_peak = first[match.ours][1], first[match.theirs][1]
        spread = max(max(rates[dtype]) / min(rates[dtype]) - 1 for dtype in {match.dtype, torch.float32} & rates.keys())
        return {
            "case": match.case, "error": errors[match.case], "ours_s": statistics.median(ours), "theirs_s": statistics.median(theirs),
            "faster": statistics.median(y / x for x, y in zip(ours, theirs, strict=True)), "ours_peak_mib": our_peak,
            "theirs_peak_mib": their_peak, "memory": our_peak / their_peak, "gemm_gflops": statistics.median(rates[match.dtype]),
            "gemm_spread": spread, "steady": spread < STEADY,
        }  # fmt: skip

    return [row(match) for match in matches]


def _error(match: Match, got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """By the norm and not by the largest difference: where a ReLU is at its kink within rounding, a gradient is another, rightly."""
    error = max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in zip(got, expected, strict=True))
    if not error <= match.tolerance:
        raise SystemExit(f"{match.case}: parity failed, relative error {error:.2e}; nothing was measured.")
    return error


def with_limit(rows: list[dict[str, Any]], flops: float) -> list[dict[str, Any]]:
    """Beside each time the least that the matrix products take at the machine's rate; a training step has three times the products."""
    limits = [flops / 1e9 / row["gemm_gflops"] * (3 if row["case"].startswith("training") else 1) for row in rows]
    return [row | {"limit_s": limit, "of_limit": limit / row["ours_s"]} for row, limit in zip(rows, limits, strict=True)]
