"""Whether a run fits a memory budget, in which slices, and if not, what would."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch

from evoattn.blocks.cost import UpdateCost
from evoattn.errors import MemoryLimitError
from evoattn.execution import Execution
from evoattn.memory.estimation import Config, Estimate, Mode, Sizes, estimate, model_of, updates
from evoattn.memory.free import free_memory
from evoattn.units import parse_bytes, show_bytes

CHECKPOINTS: Final[tuple[Literal["updates", "blocks", "both"], ...]] = ("updates", "blocks", "both")
"""What is recomputed in training where memory is short: the less, the faster."""


@dataclass(frozen=True)
class Plan:
    """How a run keeps a budget.

    Attributes:
        budget: bytes beyond parameters and features; None where no memory limit is known.
        estimate: the peak with the slices that the budget leaves.
        floor: the least that the run can do with, beyond parameters and features.
        updates: of every kind, with what it keeps and how long its slices are; none of a training step, which is not sliced.
        execution: to set on the model; its budget, and in training whether blocks are recomputed.
        advice: what would fit, where this does not.
    """

    budget: int | None
    estimate: Estimate
    floor: int
    updates: tuple[UpdateCost, ...]
    execution: Execution
    advice: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return self.budget is None or self.floor <= self.budget

    def require(self, what: str) -> None:
        """Raise MemoryLimitError unless the budget is enough, naming the floor, who wants how much, and what would fit."""
        if not self.fits:
            assert self.budget is not None
            advice = " ".join(["Nothing was run.", *self.advice])
            raise MemoryLimitError(
                f"{what} do not fit: at least {show_bytes(self.floor)} are needed beyond parameters and features ({self._shown()}), and "
                f"{show_bytes(self.budget)} are given or free. {advice}"
            )

    def _shown(self) -> str:
        parts = {name: size for name, size in self.estimate.parts.items() if name not in ("parameters", "features")}
        return ", ".join(f"{name} {show_bytes(size)}" for name, size in parts.items())

    def __str__(self) -> str:
        lines = [f"{'at the peak':<34}{'memory':>10}   ({self.estimate.at})"]
        lines += [f"  {name:<32}{show_bytes(size):>10}" for name, size in self.estimate.parts.items()]
        lines.append(f"{'in all':<34}{show_bytes(self.estimate.total):>10}")
        lines.append(f"{'beyond parameters and features':<34}{show_bytes(self.estimate.working):>10}")
        lines.append(f"{'the least possible':<34}{show_bytes(self.floor):>10}")
        if self.budget is not None:
            lines.append(f"{'budget':<34}{show_bytes(self.budget):>10}   {'fits' if self.fits else 'DOES NOT FIT'}")
        if self.updates:
            lines.append(f"\n{'update':<34}{'peak':>10}{'keeps':>10}{'slice of':>17}{'slices':>9}")
            lines += [_row(cost, self.execution.budget) for cost in self.updates]
        return "\n".join([*lines, *(f"\n{line}" for line in self.advice)])


def _row(cost: UpdateCost, budget: int | None) -> str:
    length = cost.slice_length(budget)
    return (
        f"  {cost.name:<32}{show_bytes(cost.peak(budget)):>10}{show_bytes(cost.context):>10}{f'{length:,} / {cost.length:,}':>17}"
        f"{-(-cost.length // length):>9,}"
    )


def plan(
    config: Config,
    n_seq: int,
    n_res: int,
    *,
    n_extra: int = 0,
    n_templates: int = 0,
    batch: int = 1,
    budget: int | str | None = None,
    dtype: torch.dtype = torch.float32,
    mode: Mode = "inference",
    execution: Execution | None = None,
    device: str | torch.device = "cpu",
) -> Plan:
    """Slices, or recomputation of blocks, by which a run keeps a memory budget; or what does not fit, and what would.

    Args:
        budget: bytes, or text such as "8GiB", for what the run adds to parameters and features. By default the memory that is free on
            `device` once these are there.
        mode: in training the plan says what the backward pass must recompute (``plan.execution.checkpoint``); slices are not planned.

    The other arguments are those of :func:`evoattn.memory.estimate`.

    Raises:
        ConfigError: a size, the budget or the mode is not allowed.
    """
    sizes, execution = Sizes(n_seq, n_res, n_extra, n_templates, batch), replace(execution or Execution(), memory_budget=None)

    def estimated(sizes: Sizes, dtype: torch.dtype, execution: Execution) -> Estimate:
        return estimate(config, **vars(sizes), dtype=dtype, mode=mode, execution=execution)

    def costs(sizes: Sizes, dtype: torch.dtype) -> list[UpdateCost]:
        return updates(model_of(config, execution, dtype), sizes, dtype)

    found = estimated(sizes, dtype, execution)
    limit = parse_bytes(budget) if budget is not None else _free(torch.device(device), found)
    if mode == "training":
        for checkpoint in () if execution.checkpoint else CHECKPOINTS:
            if limit is not None and found.working > limit:
                execution = replace(execution, checkpoint=checkpoint)
                found = estimated(sizes, dtype, execution)
        return Plan(limit, found, found.working, (), execution)
    floor = max(cost.floor for cost in costs(sizes, dtype))
    chosen = replace(execution, memory_budget=limit or None)
    advice = []
    if limit is not None and floor > limit:
        advice = _advice(lambda sizes, dtype: max(cost.floor for cost in costs(sizes, dtype)), sizes, dtype, limit)
    return Plan(limit, estimated(sizes, dtype, chosen), floor, tuple(costs(sizes, dtype)), chosen, tuple(advice))


def _free(device: torch.device, first: Estimate) -> int | None:
    free = free_memory(device)
    return None if free is None else max(0, free - first.parts["parameters"] - first.parts["features"])


def _advice(floor_of: Callable[[Sizes, torch.dtype], int], sizes: Sizes, dtype: torch.dtype, limit: int) -> list[str]:
    """What of the same run would fit: in bfloat16, or fewer residues."""
    found = []
    if dtype.itemsize > 2:
        half = floor_of(sizes, torch.bfloat16)
        found.append(f"In bfloat16 it needs {show_bytes(half)}, which {'fits' if half <= limit else 'does not fit either'}.")
    if most := _most_residues(lambda n: floor_of(replace(sizes, n_res=n), dtype), sizes.n_res, limit):
        found.append(f"With as many rows, {most:,} residues fit: the pair representation grows with their square, so take a stretch.")
    return found


def _most_residues(floor: Callable[[int], int], n_res: int, limit: int) -> int:
    """The largest number of residues below `n_res` whose floor is within the limit; 0 for none."""
    low, high = 0, n_res
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if floor(middle) <= limit else (low, middle)
    return low
