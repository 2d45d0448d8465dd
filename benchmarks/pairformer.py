"""One Pairformer block (256 residues, 384 and 128 channels) beside OpenFold3's, Boltz's and Protenix's; peers: peers.py.

python -m benchmarks.pairformer, about five minutes
"""

from typing import Any

import torch

from benchmarks import peers
from benchmarks.common import report
from benchmarks.contenders import Contender, Match, contest, with_limit
from benchmarks.evoformer import LEAN

N_RES = 256


def ours(peer: str, train: bool, execution: dict[str, Any], environment: dict[str, str] | None = None) -> Contender:
    return Contender(peers.ours_on_single, peer, N_RES, train, execution, environment=environment)


def theirs(peer: str, train: bool) -> Contender:
    return Contender(peers.theirs_on_single, peer, N_RES, train, "fp32")


def forward() -> list[dict[str, Any]]:
    names = {"boltz": "Boltz", "protenix": "Protenix", "openfold3": "OpenFold3"}
    contenders = {f"ours as {peer}": ours(peer, False, {}) for peer in names} | {peer: theirs(peer, False) for peer in names}
    return contest(contenders, [Match(f"forward fp32; {name}", f"ours as {peer}", peer) for peer, name in names.items()])


def training() -> list[dict[str, Any]]:
    updates = {"checkpoint": "updates"}
    contenders = {
        "plain": ours("boltz", True, {}), "updates": ours("boltz", True, updates), "lean": ours("boltz", True, updates, LEAN),
        "bf16": ours("boltz", True, {"dtype": "bf16", **updates}), "theirs": theirs("boltz", True),
    }  # fmt: skip
    return contest(contenders, [
        Match("training step fp32; Boltz", "plain", "theirs"),
        Match("training step fp32, updates recomputed; Boltz", "updates", "theirs"),
        Match("training step fp32, lean; Boltz", "lean", "theirs"),
        Match("training step bf16, updates recomputed; Boltz fp32", "bf16", "theirs", 0.05, torch.bfloat16),
    ])  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(2)
    report("pairformer", with_limit(forward() + training(), peers.flops("pairformer", 0, N_RES)))
