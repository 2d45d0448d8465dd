"""What the launches of this package have in common."""

import torch
from torch import Tensor

from evoattn.ops.packages import missing_package

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GRID_X = 2**31 - 1  # programs along the first axis of a grid


def missing() -> str | None:
    return missing_package(("triton",), "evoattn[triton]")


def against_dtype(dtype: torch.dtype) -> list[str]:
    return [] if dtype in DTYPES else [f"computes in float32, bfloat16 and float16, not in {str(dtype).removeprefix('torch.')}"]


def capability(device: torch.device) -> tuple[int, int]:
    """Of an NVIDIA card. On a CPU, where Triton's interpreter runs the kernels, any will do."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (8, 0)


def precision(dtype: torch.dtype) -> str:
    """How products of float32 are computed: as torch's own are, by ``torch.set_float32_matmul_precision``."""
    return "ieee" if dtype != torch.float32 or torch.get_float32_matmul_precision() == "highest" else "tf32"


def padded(width: int) -> int:
    """The width of a tile that holds `width`: a power of two, at least 16, which a product of tiles needs."""
    return max(16, 1 << (width - 1).bit_length()) if width else 16


def unit_stride(x: Tensor) -> Tensor:
    """`x` with unit stride along its last axis: itself, or a copy."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
