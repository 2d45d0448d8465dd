"""One Evoformer block (128 sequences, 256 residues, 256 and 128 channels) beside OpenFold3's and AlphaFold 2's in JAX; peers: peers.py.

python -m benchmarks.evoformer [CASE ...]
"""

import sys
from typing import Any

import torch

from benchmarks import peers
from benchmarks.common import report
from benchmarks.contenders import Contender, duel

N_SEQ, N_RES = 128, 256
LEAN = {"MALLOC_TRIM_THRESHOLD_": "1000000"}
"""Makes the C library give freed memory back at once; without it a step holds about twice what its tensors take."""


def ours(peer: str, train: bool, execution: dict[str, Any], environment: dict[str, str] | None = None) -> Contender:
    return Contender(peers.ours_on_msa, peer, N_SEQ, N_RES, train, execution, environment=environment)


def openfold3(train: bool, dtype: str) -> Contender:
    return Contender(peers.theirs_on_msa, "openfold3", N_SEQ, N_RES, train, dtype)


def alphafold2(train: bool) -> Contender:
    return Contender(peers.alphafold2_on_msa, N_SEQ, N_RES, train)


FP32, BF16 = 1e-4, 0.05
CASES: dict[str, Any] = {
    "forward fp32, OpenFold3 fp32": lambda: (ours("openfold3", False, {}), openfold3(False, "fp32"), FP32),
    "forward bf16, OpenFold3 fp32": lambda: (ours("openfold3", False, {"dtype": "bf16"}), openfold3(False, "fp32"), BF16),
    "forward bf16, OpenFold3 bf16": lambda: (ours("openfold3", False, {"dtype": "bf16"}), openfold3(False, "bf16"), BF16),
    "forward fp32, AlphaFold 2 in JAX fp32": lambda: (ours("alphafold2", False, {}), alphafold2(False), FP32),
    "training step fp32, plain, OpenFold3 fp32": lambda: (ours("openfold3", True, {}), openfold3(True, "fp32"), FP32),
    "training step fp32, checkpoint='updates', OpenFold3 fp32": lambda: (
        ours("openfold3", True, {"checkpoint": "updates"}), openfold3(True, "fp32"), FP32,
    ),
    "training step fp32, lean, OpenFold3 fp32": lambda: (
        ours("openfold3", True, {"checkpoint": "updates"}, LEAN), openfold3(True, "fp32"), FP32,
    ),
    "training step fp32, checkpoint='updates', AlphaFold 2 in JAX fp32": lambda: (
        ours("alphafold2", True, {"checkpoint": "updates"}), alphafold2(True), FP32,
    ),
}  # fmt: skip


def measure(case: str) -> dict[str, Any]:
    mine, other, tolerance = CASES[case]()
    dtype = torch.bfloat16 if " bf16," in f" {case.split(',')[0]}," else torch.float32
    row = {"case": case, **duel(mine, other, tolerance, dtype)}
    mine.close(), other.close()
    work = peers.flops("evoformer", N_SEQ, N_RES) * (3 if "training" in case else 1)
    return row | {"limit_s": work / 1e9 / row["gemm_gflops"], "of_limit": work / 1e9 / row["gemm_gflops"] / row["ours_s"]}


if __name__ == "__main__":
    torch.set_num_threads(2)
    report("evoformer", [measure(case) for case in (sys.argv[1:] or CASES)])
