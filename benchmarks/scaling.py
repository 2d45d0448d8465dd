"""How the time and the memory of one Evoformer block grow with the protein: in place, without gradients, each size in a fresh process.

python -m benchmarks.scaling                              256, 512 and 1,024 residues, 128 sequences, float32
python -m benchmarks.scaling 2048x128xfp32 4096x64xbf16   residues x sequences x products; bf16 has its representations in bfloat16 too
"""

import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from benchmarks.common import RESULTS, STEADY, gemm_rate, report
from benchmarks.contenders import Contender, Run
from evoattn import EvoformerConfig, EvoformerStack, set_execution
from evoattn.primitives import redraw_

USUAL = ("256x128xfp32", "512x128xfp32", "1024x128xfp32")
REPEATS = {256: 5, 512: 5, 1024: 3}


def block(n_res: int, n_seq: int, dtype: str) -> Run:
    stack = redraw_(EvoformerStack(EvoformerConfig(n_blocks=1)), seed=0).eval()
    m, z = peers.msa_inputs(n_seq, n_res)
    if dtype == "bf16":
        set_execution(stack, dtype="bf16")
        m, z = m.bfloat16(), z.bfloat16()

    def run() -> list[np.ndarray]:
        """Again on what the run before has left, so that no copy of the inputs is held."""
        nonlocal m, z
        m, z, s = stack.run_(m, z)  # type: ignore[operator]
        if not all(bool(x.isfinite().all()) for x in (m[..., 0, :, :], s)):
            raise SystemExit("a number is not finite")
        m.clamp_(-10, 10), z.clamp_(-10, 10)
        return [s.float().numpy()]

    return run


def measure(case: str) -> dict[str, Any]:
    n_res, n_seq, dtype = case.split("x")
    size, products = (int(n_res), int(n_seq)), peers.DTYPE[dtype] or torch.float32
    contender = Contender(block, *size, dtype)
    rates = [gemm_rate(products, 2048)]
    start = time.perf_counter()
    _, peak = contender.first()
    once = time.perf_counter() - start
    times = []
    for _ in range(REPEATS.get(size[0], 0)):
        times.append(contender.seconds())
        rates.append(gemm_rate(products, 2048))
    contender.close()
    work, rate = peers.flops("evoformer", size[1], size[0]) / 1e9, statistics.median(rates)
    item = 2 if dtype == "bf16" else 4
    m, z = (x / 2**20 * item for x in (size[1] * size[0] * peers.C_M, size[0] ** 2 * peers.C_Z))
    row: dict[str, Any] = {"case": case, "tflop": work / 1e3, "gemm_gflops": rate, "m_mib": m, "z_mib": z, "peak_mib": peak}
    row |= {"of_m_and_2z": (m + z + peak) / (m + 2 * z), "total_gib": (contender.built_mib + peak) / 1024}
    seconds = statistics.median(times) if times else once
    row |= {"seconds": seconds, "of_limit": work / rate / seconds}
    return row | {"steady": max(rates) / min(rates) - 1 < STEADY}


def growth(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Time over FLOPs, of the largest against the smallest: 1 is growth like the FLOPs."""
    first, last = rows[0], rows[-1]
    ratio = (last["seconds"] / first["seconds"]) / (last["tflop"] / first["tflop"])
    return {"case": f"{first['case']} to {last['case']}: growth of time over growth of FLOPs", "growth": ratio}


if __name__ == "__main__":
    torch.set_num_threads(2)
    if cases := sys.argv[1:]:
        report("scaling_long", [measure(case) for case in cases])
    else:
        rows = [measure(case) for case in USUAL]
        report("scaling", [*rows, growth(rows)])
    print(f"written below {RESULTS}")
