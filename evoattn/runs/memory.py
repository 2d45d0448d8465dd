"""Whether a run can fit the memory there is, told before any work."""

from typing import Any

import torch

from evoattn.config import MSATransformerConfig
from evoattn.errors import MemoryLimitError
from evoattn.execution import Execution
from evoattn.memory import Plan, free_memory, plan
from evoattn.runs.calls import Sizes
from evoattn.runs.settings import RunSettings
from evoattn.stacks import MSATransformer
from evoattn.units import show_bytes


def plan_run(settings: RunSettings, sizes: Sizes) -> Plan:
    """How the run keeps its memory budget, by default the memory that is free.

    Raises:
        MemoryLimitError: it cannot; the message has the floor, who wants how much, and what would fit.
    """
    found = plan(
        settings.config, **vars(sizes), budget=settings.memory_budget, dtype=settings.torch_dtype, device=settings.torch_device,
        execution=Execution(backend=settings.backend, dtype=settings.products),
    )  # fmt: skip
    found.require(f"{sizes.n_res:,} residues")
    return found


def plan_record(found: Plan, peak: int | None) -> dict[str, Any]:
    """What was planned and what it came to, in bytes; `peak` is beyond parameters, features and what else stood before."""
    budget = found.execution.budget
    return {
        "budget": found.budget,
        "floor": found.floor,
        "planned": found.estimate.working,
        "measured": peak,
        "parts": found.estimate.parts,
        "slices": {cost.name: cost.slice_length(budget) for cost in found.updates},
    }


def refuse_msa_transformer(config: MSATransformerConfig, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
    """Raise MemoryLimitError if parameters and representations alone are more than the memory that is free: a bound surely too low.

    Tied row attention has queries, keys and values of all rows at once, beside m.
    """
    free = free_memory(device)
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in MSATransformer(config).parameters())
    m = sizes.n_seq * (1 + sizes.n_res) * config.c_m
    counts = {"parameters": parameters, "MSA representation": m, "queries, keys and values of tied rows": 3 * m}
    parts = {name: count * dtype.itemsize for name, count in counts.items()}
    needed = sum(parts.values())
    if free is not None and needed > free:
        shown = ", ".join(f"{name} {show_bytes(size)}" for name, size in parts.items())
        raise MemoryLimitError(
            f"{sizes.n_res:,} residues do not fit: the run needs at least {show_bytes(needed)} ({shown}), and {show_bytes(free)} of memory "
            f"are free on {device.type}. Nothing was run. Every representation has a number for each residue of each row: take fewer rows "
            "(--max-seqs), a shorter stretch of the protein, a dtype of half the size (bf16), or a machine with more memory."
        )


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch says so of a CPU by a RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
