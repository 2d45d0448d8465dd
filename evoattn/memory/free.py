"""The memory that a process may still take."""

from pathlib import Path
from typing import Final

import torch

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


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
