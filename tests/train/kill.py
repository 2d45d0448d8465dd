"""A training run killed at random moments, again and again: python -m tests.train.kill [TIMES]."""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evoattn.train.checkpoint import latest_checkpoint

ROOT = Path(__file__).resolve().parents[2]


def kill_at_random(folder: Path, *, times: int, seed: int) -> list[int]:
    """The step of the newest checkpoint after each kill. Each start went on from it: what is damaged, or lost, raises."""
    rng = random.Random(seed)
    reached: list[int] = []
    for _ in range(times):
        before = reached[-1] if reached else 0
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.train.work", "hurried", str(folder)], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            while _newest(folder) == before and process.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 0.5))
        finally:
            process.kill()
            said = process.communicate()[1].decode()
        if process.returncode != -9:
            raise RuntimeError(f"the run ended by itself: {said}")
        found = latest_checkpoint(folder / "checkpoints", _refuse)
        reached.append(0 if found is None else found.step)
    return reached


def _newest(folder: Path) -> int:
    return max((int(path.stem.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")), default=0)


def _refuse(text: str) -> None:
    raise RuntimeError(text)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print("newest checkpoint after each kill:", *kill_at_random(Path(name), times=int((*sys.argv, "20")[1]), seed=0))
