"""Checkpoints: one safetensors file each, whole or not at all, and free of how many processes wrote it."""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from evoattn.errors import TrainingError
from evoattn.files import new_file

_NAME: Final = re.compile(r"step-(\d{8})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A run after `step` updates. `tensors` are float32, named by kind and parameter: see :data:`evoattn.train.engine.State`."""

    step: int
    tensors: Mapping[str, Tensor]
    deciding: Mapping[str, Any]
    """What :meth:`evoattn.train.config.TrainConfig.deciding` was."""

    def of(self, kind: str) -> dict[str, Tensor]:
        """The tensors of one kind by parameter: "weights", "exp_avg", "exp_avg_sq" or "average"."""
        return {name.removeprefix(f"{kind}."): x for name, x in self.tensors.items() if name.startswith(f"{kind}.")}


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write ``step-<number>.safetensors``, then remove all but the newest `keep`; returns its path.

    Raises:
        TrainingError: the disk is full, or the folder cannot be written. Earlier checkpoints are untouched.
    """
    path = folder / f"step-{checkpoint.step:08d}.safetensors"
    metadata = {"format": "pt", "step": str(checkpoint.step), "deciding": json.dumps(checkpoint.deciding)}
    write_tensors(path, checkpoint.tensors, metadata)
    for old in [*_found(folder)[keep:], *folder.glob(".step-*")]:  # the latter a process left that was killed while it wrote
        old.unlink()
    return path


def latest_checkpoint(folder: Path, say: Callable[[str], None] = lambda text: None) -> Checkpoint | None:
    """The newest checkpoint that can be read; None if there is none. `say` is told of damaged ones.

    Raises:
        TrainingError: there are checkpoints, and all are damaged.
    """
    found = _found(folder)
    for path in found:
        try:
            return read_checkpoint(path)
        except TrainingError as error:
            say(f"passed over: {error}")
    if found:
        raise TrainingError(f"none of the {len(found)} checkpoints in {folder} can be read; remove them to start anew.")
    return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises TrainingError if the file is not there, damaged, or no checkpoint."""
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        return Checkpoint(int(metadata["step"]), load_file(path), json.loads(metadata["deciding"]))
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"the checkpoint {path} cannot be read ({error}).") from error
    except (KeyError, ValueError):
        raise TrainingError(f"{path} is no checkpoint of a training run; those are called step-<number>.safetensors.") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file, which takes its name once it is on the disk.

    Raises:
        TrainingError: it cannot be written.
    """
    ready = {name: x.detach().to("cpu", torch.float32).contiguous() for name, x in tensors.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            save_file(ready, temporary, metadata=metadata)
            temporary.chmod(path.parent.stat().st_mode & 0o666)  # save_file makes it private, whatever the umask says
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{path} cannot be written ({error}). Nothing that was there before is lost; make room, then go on with --resume."
        ) from error


def _found(folder: Path) -> list[Path]:
    """Newest first."""
    paths = folder.iterdir() if folder.is_dir() else []
    return sorted((path for path in paths if _NAME.fullmatch(path.name)), reverse=True)
