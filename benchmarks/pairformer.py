"""One Pairformer block (256 residues, 384 and 128 channels) beside OpenFold3's, Boltz's and Protenix's; peers: peers.py.

python -m benchmarks.pairformer [CASE ...]
"""

import sys
from typing import Any

import torch

from benchmarks import peers
from benchmarks.common import report
from benchmarks.contenders import Contender, duel
from benchmarks.evoformer import FP32, LEAN

N_RES = 256


def case(peer: str, train: bool, execution: dict[str, Any], environment: dict[str, str] | None = None) -> tuple[Contender, Contender]:
    mine = Contender(peers.ours_on_single, peer, N_RES, train, execution, environment=environment)
    return mine, Contender(peers.theirs_on_single, peer, N_RES, train, "fp32")


CASES: dict[str, Any] = {
    "forward fp32, Boltz": lambda: case("boltz", False, {}),
    "forward fp32, Protenix": lambda: case("protenix", False, {}),
    "forward fp32, OpenFold3": lambda: case("openfold3", False, {}),
    "training step fp32, plain, Boltz": lambda: case("boltz", True, {}),
    "training step fp32, checkpoint='updates', Boltz": lambda: case("boltz", True, {"checkpoint": "updates"}),
    "training step fp32, lean, Boltz": lambda: case("boltz", True, {"checkpoint": "updates"}, LEAN),
}


def measure(name: str) -> dict[str, Any]:
    mine, other = CASES[name]()
    row = {"case": name, **duel(mine, other, FP32)}
    mine.close(), other.close()
    work = peers.flops("pairformer", 0, N_RES) * (3 if "training" in name else 1)
    return row | {"limit_s": work / 1e9 / row["gemm_gflops"], "of_limit": work / 1e9 / row["gemm_gflops"] / row["ours_s"]}


if __name__ == "__main__":
    torch.set_num_threads(2)
    report("pairformer", [measure(name) for name in (sys.argv[1:] or CASES)])
