"""Contenders: each a process of its own, so that its threads, its allocator and its peak memory are its own. They take turns."""

import os
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import STEADY, gemm_rate, high_water_mib

THREADS = 2
PAIRS = 5

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
        os.environ.update({"OMP_WAIT_POLICY": "PASSIVE", **(environment or {})})  # who waits for its turn must not spin
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
    Path("/proc/self/clear_refs").write_text("5")  # starts the high-water mark anew
    built = high_water_mib()
    connection.send(built)
    while (message := connection.recv()) is not None:
        start = time.perf_counter()
        outputs = run()
        taken = time.perf_counter() - start
        connection.send((outputs, high_water_mib() - built) if message == "first" else taken)


def duel(ours: Contender, theirs: Contender, tolerance: float, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Parity, then both in turns: medians of their times and of the ratio of each pair, the GEMM rate measured between them."""
    (got, our_peak), (expected, their_peak) = ours.first(), theirs.first()
    error = max(float(np.abs(x - y).max() / max(1.0, np.abs(y).max())) for x, y in zip(got, expected, strict=True))
    if not error <= tolerance:
        raise SystemExit(f"parity failed: largest error {error:.2e} of the largest number; nothing was measured.")
    ours.seconds(), theirs.seconds()
    pairs, rates = [], [gemm_rate(dtype, 2048)]
    for _ in range(PAIRS):
        pairs.append((ours.seconds(), theirs.seconds()))
        rates.append(gemm_rate(dtype, 2048))
    return {
        "error": error, "ours_s": statistics.median(pair[0] for pair in pairs), "theirs_s": statistics.median(pair[1] for pair in pairs),
        "faster": statistics.median(theirs / ours for ours, theirs in pairs), "ours_peak_mib": our_peak, "theirs_peak_mib": their_peak,
        "memory": our_peak / their_peak, "gemm_gflops": statistics.median(rates), "steady": max(rates) / min(rates) - 1 < STEADY,
    }  # fmt: skip
