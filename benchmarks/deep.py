"""One training step of the whole Evoformer, 48 blocks at 128 sequences x 384 residues, each block recomputed in the backward pass.

python -m benchmarks.deep [CHECKPOINT]    "blocks" by default; "both" takes less memory
"""

import sys
import time

import numpy as np
import torch

from benchmarks import peers
from benchmarks.common import report
from benchmarks.contenders import Contender, Run
from evoattn import EvoformerConfig, EvoformerStack, set_execution
from evoattn.primitives import redraw_

N_SEQ, N_RES, BLOCKS = 128, 384, 48


def step(checkpoint: str) -> Run:
    stack = redraw_(EvoformerStack(EvoformerConfig(n_blocks=BLOCKS)), seed=0).train()
    for parameter in stack.parameters():
        parameter.data.mul_(0.5)  # 48 random blocks at full strength would overflow
    set_execution(stack, checkpoint=checkpoint)
    m, z = peers.msa_inputs(N_SEQ, N_RES)

    def run() -> list[np.ndarray]:
        out = stack(m, z)
        torch.stack([x.square().mean() for x in out]).sum().backward()
        if not all(p.grad is not None and bool(p.grad.isfinite().all()) for p in stack.parameters()):
            raise SystemExit("a parameter has no gradient, or one that is not finite")
        return []

    return run


if __name__ == "__main__":
    checkpoint = sys.argv[1] if len(sys.argv) > 1 else "blocks"
    contender = Contender(step, checkpoint)
    start = time.perf_counter()
    _, peak = contender.first()
    row = {"case": f"{BLOCKS} blocks, {N_SEQ} x {N_RES}, checkpoint={checkpoint!r}", "peak_gib": peak / 1024,
           "total_gib": (contender.built_mib + peak) / 1024, "seconds": time.perf_counter() - start}  # fmt: skip
    contender.close()
    report("deep", [row])
