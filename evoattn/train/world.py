"""The processes that train together: one, or as many as torchrun started."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from evoattn.errors import ConfigError


@dataclass(frozen=True)
class World:
    """This process among all. `device` is where it computes."""

    rank: int
    processes: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def add_up(self, x: Tensor) -> Tensor:
        """The sum of `x` over all processes; every process has to call it."""
        if self.processes > 1:
            dist.all_reduce(x)
        return x


def join_world(device: str = "auto") -> World:
    """Join the other processes, if torchrun started this one; otherwise it is alone.

    On CUDA they talk by NCCL and each takes the GPU of its local rank, on a CPU by gloo.

    Raises:
        ConfigError: CUDA was asked for, and torch finds none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', and torch finds no CUDA device; 'auto' and 'cpu' train on the CPU.")
    kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    launched = dist.is_available() and (dist.is_initialized() or dist.is_torchelastic_launched())
    if not launched:
        return World(0, 1, torch.device(kind))
    own = torch.device(kind, dist.get_node_local_rank()) if kind == "cuda" else torch.device(kind)
    if own.index is not None:
        torch.cuda.set_device(own)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    return World(dist.get_rank(), dist.get_world_size(), own)


def leave_world() -> None:
    """Undo :func:`join_world`."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
