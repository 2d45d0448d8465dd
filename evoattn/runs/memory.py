"""Whether a run can fit the memory there is, by a bound that is surely too low: what it refuses, could not have run."""

import math
from pathlib import Path
from typing import Final

import torch

from evoattn.config import MSATransformerConfig, TrunkConfig
from evoattn.errors import MemoryLimitError
from evoattn.model import EvoformerTrunk
from evoattn.runs.calls import Sizes
from evoattn.stacks import MSATransformer

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def refuse_what_cannot_fit(
    config: TrunkConfig | MSATransformerConfig, sizes: Sizes, dtype: torch.dtype, device: torch.device
) -> None:
    """Raise MemoryLimitError if parameters and representations alone are more than the memory that is free."""
    free = free_memory(device)
    parts = least_memory(config, sizes, dtype)
    needed = sum(parts.values())
    if free is None or needed <= free:
        return
    shown = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())
    if isinstance(config, MSATransformerConfig):
        reason, fewer = "Every representation has a number for each residue of each row", "fewer rows (--max-seqs), "
    else:
        reason, fewer = "The pair representation grows with the square of the residues", ""
    raise MemoryLimitError(
        f"{sizes.n_res:,} residues do not fit: the run needs at least {_gib(needed)} ({shown}), and {_gib(free)} of memory are free on "
        f"{device.type}. Nothing was run. {reason}: take {fewer}a shorter stretch of the protein, a dtype of half the size (bf16), or a "
        "machine with more memory."
    )


def least_memory(config: TrunkConfig | MSATransformerConfig, sizes: Sizes, dtype: torch.dtype) -> dict[str, int]:
    """Bytes that no way of running the model can do without: a lower bound, not an estimate.

    While z is embedded there is a second array of its size, beside m; while the extra-MSA stack runs, its alignment is beside m and z.
    Tied row attention of the MSA Transformer has queries, keys and values of all rows at once, beside m.
    """
    if isinstance(config, MSATransformerConfig):
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in MSATransformer(config).parameters())
        m = sizes.n_seq * (1 + sizes.n_res) * config.c_m
        counts = {"parameters": parameters, "MSA representation": m, "queries, keys and values of tied rows": 3 * m}
        return {name: count * dtype.itemsize for name, count in counts.items()}
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in EvoformerTrunk(config).parameters())
    m = sizes.n_seq * sizes.n_res * config.evoformer.c_m
    z = sizes.n_res**2 * config.evoformer.c_z
    extra = 0 if config.extra is None else sizes.n_extra * sizes.n_res * config.extra.c_m
    more = {"extra MSA representation": extra} if extra > z else {"a second array of that size": z}
    counts = {"parameters": parameters, "MSA representation": m, "pair representation": z, **more}
    return {name: count * dtype.itemsize for name, count in counts.items()}


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch says so of a CPU by a RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def free_memory(device: torch.device) -> int | None:
    """Bytes that the process may still take: of the GPU, or of the machine and of the container that it runs in; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [size for size in (_of_machine(), _of_container()) if size is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_container() -> int | None:
    """What control group version 2 leaves; cached files count as used there and can be given up, so they are added."""
    try:
        limit, used = ((_CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        cached = next(int(line.split()[1]) for line in (_CGROUP / "memory.stat").read_text().splitlines() if line.startswith("file "))
        return max(0, int(limit) - int(used) + cached)
    except (OSError, ValueError, StopIteration):  # "max" is no number: no limit
        return None


def _gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:,.0f} GiB" if gib >= 10 else f"{math.ceil(gib * 100) / 100:.2f} GiB"
