"""What the processes of tests/train/test_processes.py do: python -m tests.train.work TASK FOLDER."""

import os
import signal
import sys
from pathlib import Path

import torch

from evoattn.train.trainer import Step, train
from evoattn.train.world import join_world, leave_world
from tests.train.families import config, families

STAGES = (0, 1, 2, 3)
RECOMPUTED = ("nothing", "updates", "blocks", "both")  # at each of them


def stages(folder: Path) -> None:
    """The same run by plain torch and by DeepSpeed at every ZeRO stage, recomputing something else at each."""
    train(config(folder / "plain"), families())
    for zero in STAGES:
        train(config(folder / f"zero{zero}", engine="deepspeed", zero=zero, recompute=RECOMPUTED[zero]), families())


def plain(folder: Path) -> None:
    """The run that all others are compared with."""
    train(config(folder), families())


def go_on(folder: Path) -> None:
    """From a checkpoint of two processes; of four, three have nothing to validate."""
    train(config(folder, engine="auto", zero=3, steps=12, validate_every=12, validate_samples=1), families(), resume=True)


def die(folder: Path) -> None:
    """One of the processes fails in the middle."""

    def fail(step: Step) -> None:
        if step.step == 3:
            (folder / "failed").touch()
            raise RuntimeError("the disk of rank 0 is on fire")

    train(config(folder), families(), on_step=fail)


def killed(folder: Path) -> None:
    """Kills itself when the checkpoint of step 15 is written, and has not yet taken its name."""

    def kill(source: Path, target: Path) -> None:
        if target.name == "step-00000015.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    rename, os.replace = os.replace, kill
    train(config(folder, checkpoint_every=5), families())


def finish(folder: Path) -> None:
    """What was killed."""
    train(config(folder, checkpoint_every=5), families(), resume=True)


def hurried(folder: Path) -> None:
    """Writes a checkpoint after each step, and goes on where it was killed."""
    train(config(folder, checkpoint_every=1, steps=10_000), families(), resume=True)


def full_disk(folder: Path) -> None:
    """No file may grow beyond what the metrics take, so that a checkpoint does not fit."""
    import resource

    train(config(folder, steps=5, checkpoint_every=5), families())
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    train(config(folder, steps=10, checkpoint_every=5), families(), resume=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    join_world("cpu")
    globals()[sys.argv[1]](Path(sys.argv[2]))
    leave_world()
