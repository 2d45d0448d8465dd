"""Compiles the Triton kernels for cards that are not there, as their callers launch them, and holds them to the cards' limits.

    python -m tests.ops.compile_kernels              every kernel, architecture, dtype, head size and form of call: an hour
    python -m tests.ops.compile_kernels --covering   some that between them have every kernel, architecture, dtype and head size

Prints one line per kernel, as JSON with --json. Ends with 1 when a kernel needs more shared memory than its card has, or spills more than a
few registers.
The callers run on tensors without storage, with Triton's driver told which card to assume, and with launches turned into compilations.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from evoattn.ops.triton import attention, launch, triangle

SHARED_MEMORY = {80: 163, 86: 99, 90: 227, 100: 227, 120: 99}
"""KiB that one block may have (CUDA C++ programming guide, technical specifications per compute capability)."""

SPILLED = 64  # bytes per thread that may be spilled; a few registers' worth costs nothing that could be noticed


@dataclass(frozen=True)
class Variant:
    """One call: width is that of a head or, of the triangle update, the number of channels; form is one of FORMS."""

    op: str
    arch: int
    dtype: str
    width: int
    form: str = "rows"

    def __str__(self) -> str:
        return f"sm_{self.arch} {self.op} {self.form}, {self.dtype} {self.width}"


@dataclass(frozen=True)
class Usage:
    kernel: str
    registers: int
    spilled: int
    shared: int

    def over(self, arch: int) -> list[str]:
        """The limits that it breaks."""
        found = [] if self.spilled <= SPILLED else [f"spills {self.spilled} bytes per thread, at most {SPILLED}"]
        limit = SHARED_MEMORY[arch] * 1024
        return found if self.shared <= limit else [*found, f"needs {self.shared} bytes of shared memory, there are {limit}"]


FORMS = ["rows", "rows, mask per query", "one key head", "one row, one head"]
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "tf32": torch.float32}
COVERING = [
    Variant("attention", 80, "bfloat16", 64),
    Variant("attention", 90, "bfloat16", 32),
    Variant("attention", 100, "float16", 16, "rows, mask per query"),
    Variant("attention", 120, "float32", 128, "one key head"),
    Variant("attention", 90, "bfloat16", 64, "one row, one head"),
    Variant("triangle", 90, "bfloat16", 128),
    Variant("triangle", 86, "tf32", 128),
]


def every() -> list[Variant]:
    found = [Variant("attention", *rest) for rest in product(SHARED_MEMORY, DTYPES, [16, 32, 64, 128], FORMS)]
    channels = [(dtype, c) for dtype in DTYPES for c in (64, 128, 256) if c <= triangle.MAX_CHANNELS[DTYPES[dtype].itemsize]]
    return found + [Variant("triangle", arch, *rest) for arch, rest in product(SHARED_MEMORY, channels)]


class Card:
    """As much of a Triton driver as compiling needs."""

    def __init__(self, arch: int) -> None:
        self.arch = arch

    def get_current_device(self) -> int:
        return self.arch  # kernels are kept per device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)


@contextmanager
def assume(arch: int) -> Iterator[list[Any]]:
    """Launches compile for `arch`, and add what they compiled to the list."""
    from triton.runtime import driver
    from triton.runtime.jit import KernelInterface

    compiled: list[Any] = []

    def start(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        assert len(grid) == 1, "only the first axis of a grid may pass 65,535"
        return lambda *args, **options: compiled.append(kernel.warmup(*args, grid=grid, **options))

    driver.set_active(Card(arch))
    with patch.object(KernelInterface, "__getitem__", start), patch.object(launch, "capability", lambda device: divmod(arch, 10)):
        yield compiled


def call_attention(new: Callable[..., Tensor], variant: Variant) -> None:
    """Forward and backward, with a shared pair bias and in most forms a bias and a mask per key: triangle attention of 401 residues."""
    n, d = 401, variant.width  # odd, as most lengths are
    rows, heads = ((), 1) if variant.form == "one row, one head" else ((n,), 4)
    biases = [new(*[1] * len(rows), heads, n, n), *([new(n, 1, 1, n)] if rows else [])]
    mask = torch.empty(n, 1, n if "per query" in variant.form else 1, n, dtype=torch.bool, device="meta") if rows else None
    q, k, v = (new(*rows, n, h, d) for h in (heads, *[1 if variant.form == "one key head" else heads] * 2))
    out, lse = attention.run(q, k, v, biases, mask, 0.2)
    (out.sum() + lse.sum()).backward()


def call_triangle(new: Callable[..., Tensor], variant: Variant) -> None:
    n, c = 400, variant.width
    norm, proj, square = triangle.Norm(new(c), new(c)), triangle.Linear(new(2 * c, c), new(2 * c)), triangle.Linear(new(c, c), new(c))
    z, mask = new(n, n, c), torch.empty(n, n, dtype=torch.bool, device="meta")
    triangle.gated_projection(z, mask, norm, proj, proj)
    triangle.gated_output(new(c, n, n), norm, square, z, norm, square)


def compile_variant(cache: str, variant: Variant) -> list[Usage]:
    from triton import knobs

    knobs.cache.dir = cache
    torch.set_float32_matmul_precision("high" if variant.dtype == "tf32" else "highest")
    new = partial(torch.empty, dtype=DTYPES[variant.dtype], device="meta", requires_grad=True)
    with assume(variant.arch) as compiled:
        {"attention": call_attention, "triangle": call_triangle}[variant.op](new, variant)
    return [usage(kernel) for kernel in compiled]


def usage(compiled: Any) -> Usage:
    """What ptxas gave the kernel, read from its binary."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found is not None, text
    return Usage(compiled.metadata.name, int(found[1]), int(found[2]) + int(found[3]), compiled.metadata.shared)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--covering", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    variants = COVERING if options.covering else every()
    failed = 0
    with tempfile.TemporaryDirectory() as cache, ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for variant, found in zip(variants, pool.map(partial(compile_variant, cache), variants), strict=True):
            for kernel in found:
                over = kernel.over(variant.arch)
                failed += bool(over)
                needs = f"{kernel.registers} registers, {kernel.shared} bytes of shared memory"
                text = "; ".join([f"{variant}: {kernel.kernel}, {needs}", *over])
                print(json.dumps(asdict(variant) | asdict(kernel) | {"over": over}) if options.json else text, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
