"""Time, memory and progress of a run, and the versions that it ran with."""

import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from evoattn.model import EvoformerTrunk
from evoattn.runs.calls import STACKS
from evoattn.stacks import EvoformerBlock

OnBlock = Callable[[int, int], None]
"""Called with (blocks done, blocks in all)."""


class Stopwatch:
    """When a run started, and seconds per stage; a GPU is waited for, so that its work counts where it was started."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.seconds: dict[str, float] = {}

    def now(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return perf_counter()

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = self.now()
        yield
        self.add(name, self.now() - start)

    @contextmanager
    def blocks(self, model: EvoformerTrunk, passes: int, on_block: OnBlock | None, *, earlier: int = 0) -> Iterator[None]:
        """While the body runs one of `passes` through `model`, `earlier` ones being done: report every block as it ends, and add up the
        time of each stack. No forward knows of it."""
        found = {module: name.split(".")[0] for name, module in model.named_modules() if isinstance(module, EvoformerBlock)}
        total, done, last = len(found) * passes, len(found) * earlier, self.now()
        if on_block and not earlier:
            on_block(done, total)

        def ended(module: nn.Module, *_: Any) -> None:
            nonlocal done, last
            done, now = done + 1, self.now()
            assert isinstance(module, EvoformerBlock)
            self.add(STACKS[found[module]], now - last)
            last = now
            if on_block:
                on_block(done, total)

        handles = [block.register_forward_hook(ended) for block in found]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def peak_memory(device: torch.device) -> dict[str, int]:
    """Largest memory in bytes so far: of the process where the system tells, and of the GPU where one is used."""
    peak = {}
    try:
        import resource
    except ImportError:  # Windows has no such module
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        peak["process"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if device.type == "cuda":
        peak["cuda"] = torch.cuda.max_memory_allocated(device)
    return peak


class Added:
    """The largest memory that a body of code took beyond what stood before, in bytes, as `peak`.

    None where that is not known: the system does not tell, or something earlier in the process took more.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak: int | None = None

    def __enter__(self) -> "Added":
        self._before, self._earlier = self._now(), self._highest()
        return self

    def __exit__(self, *_: object) -> None:
        highest = self._highest()
        if self._before is not None and highest > self._earlier:
            self.peak = highest - self._before

    def _highest(self) -> int:
        return peak_memory(self.device).get("cuda" if self.device.type == "cuda" else "process", 0)

    def _now(self) -> int | None:
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated(self.device)
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            return None


def evoattn_version() -> str:
    """Of the package as loaded, which need not be installed."""
    return str(sys.modules["evoattn"].__version__)


def versions() -> dict[str, str]:
    return {"evoattn": evoattn_version(), "torch": torch.__version__, "python": platform.python_version(), "platform": platform.platform()}
