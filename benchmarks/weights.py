"""Seconds and peak memory of loading 48 full-size Evoformer blocks (about 90 million parameters) from an npz with a warm file cache.

python -m benchmarks.weights
"""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import peak_mib, report
from evoattn import EvoformerConfig, EvoformerStack, load_weights
from evoattn.weights import FAMILIES
from evoattn.weights.tables import unmade

SECONDS, PEAK = 15.0, 1.3  # allowed: seconds; peak over the parameters, the largest array of the source aside


def published(path: Path, config: EvoformerConfig) -> tuple[float, float]:
    """Write a file with AlphaFold 2's names and layout, filled at random. MiB of its parameters, and of its largest array."""
    with torch.device("meta"):
        stack = EvoformerStack(config)
    family = FAMILIES["alphafold2"]
    sizes = dict(stack.named_parameters())
    arrays = unmade(family.table(stack, family.scope(stack), set()), lambda name: sizes[name])
    draw = np.random.default_rng(0)
    filled = {name: draw.standard_normal(tuple(array.shape), dtype=np.float32) for name, array in arrays}
    filled["alphafold/alphafold_iteration/evoformer/pair_activiations//weights"] = np.zeros((65, 128), np.float32)  # tells the monomer
    np.savez(path, **filled)
    return sum(x.nbytes for x in filled.values()) / 2**20, max(x.nbytes for x in filled.values()) / 2**20


def loading(path: str) -> Iterator[None]:
    """For `peak_mib`: builds and fills a small model, which loads the code; then the large one."""
    small = EvoformerConfig(n_blocks=1, c_m=32, c_z=32, c_s=32)
    published(Path(f"{path}.small.npz"), small)
    load_weights(EvoformerStack(small), f"{path}.small.npz")
    yield
    stack = EvoformerStack(EvoformerConfig())
    load_weights(stack, path)
    yield


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "params_model_1.npz"
        parameters, largest = published(path, EvoformerConfig())
        path.read_bytes()  # warms the file cache
        stack = EvoformerStack(EvoformerConfig())
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            load_weights(stack, path)
            seconds.append(time.perf_counter() - start)
        peak = peak_mib(loading, str(path))
    row: dict[str, Any] = {
        "case": "48 Evoformer blocks from npz", "parameters_mib": parameters, "largest_array_mib": largest, "seconds": max(seconds),
        "seconds_allowed": SECONDS, "peak_mib": peak, "peak_allowed_mib": PEAK * parameters + largest,
    }  # fmt: skip
    report("weights", [row])
    if row["seconds"] > SECONDS or peak > row["peak_allowed_mib"]:
        raise SystemExit("loading takes more than allowed")


if __name__ == "__main__":
    main()
