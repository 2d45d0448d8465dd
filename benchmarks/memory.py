"""Peak memory as estimated and as measured, each case in a process of its own; and whether a budget is kept.

python -m benchmarks.memory             all cases, about 10 minutes on two cores
python -m benchmarks.memory NAME ...    some of them; the results of the others stay as they are

Measured is the peak resident memory minus that after model and inputs exist (Linux).
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import peak_mib, report
from evoattn import EvoformerConfig, EvoformerTrunk, Execution, TrunkConfig, set_execution
from evoattn.memory import Estimate, estimate, plan
from evoattn.stacks import EvoformerStack


@dataclass(frozen=True)
class Case:
    """What is run; `floor` asks for the least budget that the plan names. Without extra rows it is the Evoformer stack by itself."""

    n_seq: int
    n_res: int
    n_extra: int = 0
    blocks: int = 1
    recycles: int = 0
    dtype: torch.dtype = torch.float32
    training: bool = False
    execution: Execution = field(default_factory=Execution)
    floor: bool = False

    @property
    def config(self) -> TrunkConfig | EvoformerConfig:
        evoformer = EvoformerConfig(n_blocks=self.blocks)
        extra = replace(EvoformerConfig.extra_msa(), n_blocks=1)
        return TrunkConfig(evoformer=evoformer, extra=extra) if self.n_extra else evoformer

    @property
    def settings(self) -> dict[str, Any]:
        return {"n_extra": self.n_extra, "dtype": self.dtype, "mode": "training" if self.training else "inference"}

    def planned(self) -> Execution:
        if not self.floor:
            return self.execution
        least = plan(self.config, self.n_seq, self.n_res, budget="1GiB", execution=self.execution, **self.settings).floor
        return replace(self.execution, memory_budget=least)

    def estimate(self) -> Estimate:
        return estimate(self.config, self.n_seq, self.n_res, execution=self.planned(), **self.settings)


LOW = Execution(dtype="bf16")
CASES = {
    "block": Case(128, 1024),
    "block, bf16 products": Case(32, 1152, execution=LOW),
    "block, bf16 model": Case(32, 1536, dtype=torch.bfloat16),
    "block, deep alignment": Case(1792, 384),
    "block, least budget": Case(32, 1024, floor=True),
    "trunk": Case(32, 896, n_extra=512),
    "trunk, recycled": Case(32, 896, n_extra=64, recycles=1),
    "training": Case(64, 192, training=True),
    "training, 3 blocks": Case(32, 128, blocks=3, training=True),
    "training, bf16 products": Case(64, 224, training=True, execution=LOW),
    "training, blocks recomputed": Case(64, 192, blocks=8, training=True, execution=Execution(checkpoint=True)),
    "training, updates recomputed": Case(96, 256, blocks=4, training=True, execution=Execution(checkpoint="updates")),
    "training, trunk": Case(48, 128, n_extra=192, training=True),
}


def features(case: Case) -> dict[str, Tensor]:
    n, kind = case.n_res, {"dtype": case.dtype}
    return {
        "target_feat": torch.randn(1, n, 22, **kind), "residue_index": torch.arange(n)[None],
        "msa_feat": torch.randn(1, case.n_seq, n, 49, **kind), "extra_msa_feat": torch.randn(1, case.n_extra, n, 25, **kind),
    }  # fmt: skip


def representations(case: Case) -> list[Tensor]:
    shapes = (1, case.n_seq, case.n_res, 256), (1, case.n_res, case.n_res, 128)
    return [torch.randn(shape, dtype=case.dtype).requires_grad_(case.training) for shape in shapes]


def step(model: EvoformerTrunk | EvoformerStack, inputs: Any, case: Case) -> None:
    """Of a stack's own m and z, which count as memory that it takes."""
    trunk = isinstance(model, EvoformerTrunk)
    if case.training:
        out = model(inputs) if trunk else model(*inputs)
        outputs = list(vars(out).values()) if trunk else list(out)
        torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
        return
    with torch.inference_mode():
        _ = model(inputs, recycles=case.recycles) if trunk else model.run_(*inputs)


def run(name: str) -> Iterator[None]:
    torch.manual_seed(0)
    case = CASES[name]
    trunk = isinstance(case.config, TrunkConfig)
    model = EvoformerTrunk(case.config) if trunk else EvoformerStack(case.config)
    set_execution(model.to(case.dtype).train(case.training), case.planned())
    small = replace(case, n_seq=2, n_res=16, n_extra=2)
    make = features if trunk else representations
    set_execution(model, memory_budget=None)
    step(model, make(small), case)  # loads the libraries
    model.zero_grad()
    set_execution(model, case.planned())
    inputs = make(case)
    yield
    step(model, inputs, case)


def row(name: str) -> dict[str, Any]:
    case = CASES[name]
    stack = not case.n_extra
    given = sum(x.nbytes for x in representations(case)) / 2**20 if stack and not case.training else 0.0  # run_ takes them as its own
    found, measured = case.estimate().working / 2**20, peak_mib(run, name) + given
    budget = case.planned().budget
    return {
        "case": name, "n_seq": case.n_seq, "n_res": case.n_res, "n_extra": case.n_extra, "blocks": case.blocks,
        "estimate_mib": round(found), "measured_mib": round(measured), "estimate / measured": found / measured,
        "m_plus_2z_ratio": measured / ((case.n_seq * 256 + 2 * case.n_res * 128) * case.n_res * case.dtype.itemsize / 2**20),
        "budget_mib": None if budget is None else round(budget / 2**20),
    }  # fmt: skip


if __name__ == "__main__":
    rows = []
    for name in sys.argv[1:] or CASES:
        rows.append(row(name))
        print("{case}: estimated {estimate_mib} MiB, measured {measured_mib} MiB".format(**rows[-1]), flush=True)
    report("memory", rows, part=len(sys.argv) > 1)
