"""One Evoformer block (128 sequences, 256 residues, 256 and 128 channels) beside OpenFold3's and AlphaFold 2's in JAX; peers: peers.py.

python -m benchmarks.evoformer             about twenty minutes
python -m benchmarks.evoformer training    a part of it: "forward", "training", "modes" or "jax"; the results of the others stay as they are
"""

import sys
from typing import Any

import torch

from benchmarks import peers
from benchmarks.common import report
from benchmarks.contenders import Contender, Match, contest, with_limit

N_SEQ, N_RES = 128, 256
UPDATES = {"checkpoint": "updates"}
KINK = 1e-3
"""How far gradients may be apart: a ReLU at its kink within rounding makes single ones jump."""
LEAN = {"MALLOC_TRIM_THRESHOLD_": "1000000"}
"""Makes the C library give freed memory back at once; without it a step holds about twice what its tensors take."""


def ours(peer: str, train: bool, execution: dict[str, Any], environment: dict[str, str] | None = None) -> Contender:
    return Contender(peers.ours_on_msa, peer, N_SEQ, N_RES, train, execution, environment=environment)


def openfold3(train: bool, dtype: str) -> Contender:
    return Contender(peers.theirs_on_msa, "openfold3", N_SEQ, N_RES, train, dtype)


def alphafold2(train: bool) -> Contender:
    return Contender(peers.alphafold2_on_msa, N_SEQ, N_RES, train)


def forward() -> list[dict[str, Any]]:
    fp32, bf16 = "forward fp32", "forward bf16"
    contenders = {
        "ours": ours("openfold3", False, {}), "ours bf16": ours("openfold3", False, {"dtype": "bf16"}),
        "theirs": openfold3(False, "fp32"), "theirs bf16": openfold3(False, "bf16"),
    }  # fmt: skip
    return contest(contenders, [
        Match(f"{fp32}; OpenFold3 fp32", "ours", "theirs"),
        Match(f"{bf16}; OpenFold3 fp32", "ours bf16", "theirs", 0.05, torch.bfloat16),
        Match(f"{bf16}; OpenFold3 bf16", "ours bf16", "theirs bf16", 0.05, torch.bfloat16),
    ])  # fmt: skip


def training() -> list[dict[str, Any]]:
    """The step that docs speak of first, on its own: the machine keeps its pace for two minutes sooner than for five."""
    contenders = {"updates": ours("openfold3", True, UPDATES), "theirs": openfold3(True, "fp32")}
    return contest(contenders, [Match("training step fp32, updates recomputed; OpenFold3", "updates", "theirs", KINK)])


def modes() -> list[dict[str, Any]]:
    contenders = {
        "plain": ours("openfold3", True, {}), "lean": ours("openfold3", True, UPDATES, LEAN),
        "bf16": ours("openfold3", True, {"dtype": "bf16", **UPDATES}), "theirs": openfold3(True, "fp32"),
    }  # fmt: skip
    return contest(contenders, [
        Match("training step fp32; OpenFold3", "plain", "theirs", KINK),
        Match("training step fp32, lean; OpenFold3", "lean", "theirs", KINK),
        Match("training step bf16, updates recomputed; OpenFold3 fp32", "bf16", "theirs", 0.05, torch.bfloat16),
    ])  # fmt: skip


def jax() -> list[dict[str, Any]]:
    forward = contest(
        {"ours": ours("alphafold2", False, {}), "theirs": alphafold2(False)}, [Match("forward fp32; AlphaFold 2 in JAX", "ours", "theirs")]
    )
    steps = {"ours": ours("alphafold2", True, UPDATES), "theirs": alphafold2(True)}
    return forward + contest(steps, [Match("training step fp32, updates recomputed; AlphaFold 2 in JAX", "ours", "theirs", KINK)])


if __name__ == "__main__":
    torch.set_num_threads(2)
    parts = {"forward": forward, "training": training, "modes": modes, "jax": jax}
    rows = [row for name in sys.argv[1:] or parts for row in parts[name]()]
    report("evoformer", with_limit(rows, peers.flops("evoformer", N_SEQ, N_RES)), part=len(sys.argv) > 1)
