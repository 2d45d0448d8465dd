"""What a backend's rules may know of a device: its type and its architecture, as plain words that any machine can be told to assume."""

import re
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def architecture(device: torch.device) -> str | None:
    """``"sm_90"`` for an NVIDIA card of compute capability 9.0, ``"gfx942"`` for an AMD card (torch calls both "cuda"); None elsewhere."""
    if device.type != "cuda":
        return None
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def on_side_stream(device: torch.device) -> bool:
    """Whether work on `device` goes to another than its default stream now, as under CUDA graphs."""
    return device.type == "cuda" and torch.cuda.current_stream(device) != torch.cuda.default_stream(device)


def current_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Makes the device of `x` the current one: where kernels go that do not look at their arguments' own."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def compute_capability(arch: str | None) -> tuple[int, int] | None:
    """(9, 0) for ``"sm_90"`` or ``"sm_90a"``; None for what is no NVIDIA card, or not known."""
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch or "")
    return (int(found[1]), int(found[2])) if found else None


def against_card(spec: Any, minimum: tuple[int, int]) -> list[str]:
    """What speaks against a kernel made for NVIDIA cards from compute capability `minimum` on, for a spec with `device` and `arch`."""
    device, arch = spec.device, spec.arch
    if device != "cuda":
        return [f"serves NVIDIA cards, not {device}"]
    if arch is None:
        return ["needs to know the card; say which, e.g. arch='sm_90'"]
    found = compute_capability(arch)
    if found is None:
        return [f"serves NVIDIA cards, not {arch}"]
    if found < minimum:
        return [f"needs an NVIDIA card of compute capability {minimum[0]}.{minimum[1]} or above, got {arch}"]
    return []
