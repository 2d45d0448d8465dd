"""Backends for tests of ``evoattn check``, in a module of their own so that another process can import them."""

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evoattn.ops import ATTENTION, Backend

RUN = ATTENTION.get("streaming").run


def small_calls(spec: Any) -> list[str]:
    return [] if spec.q_len == 17 else [f"serves 17 queries, got {spec.q_len}"]


def right(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> Any:
    return RUN(q, k, v, biases, mask, scale)


def aborting(q: Tensor, *arguments: Any) -> Any:
    """Not in float32."""
    return RUN(q, *arguments) if q.dtype == torch.float32 else os.abort()


def hanging(*arguments: Any) -> Any:
    time.sleep(600)


RIGHT, ABORTING, HANGING = (Backend(run.__name__, run, small_calls, needs_check=True) for run in (right, aborting, hanging))
