"""Training by several processes, and processes that die. Each is a process of its own, without the shape checks of the other tests."""

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from evoattn.errors import TrainingError
from evoattn.train.checkpoint import Checkpoint, latest_checkpoint, read_checkpoint, save_checkpoint
from evoattn.train.log import read_metrics
from evoattn.train.trainer import train
from tests.train.families import config, families
from tests.train.kill import kill_at_random
from tests.train.work import STAGES

ROOT = Path(__file__).resolve().parents[2]


def work(task: str, folder: Path, processes: int = 1, *, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a task of tests/train/work.py, under torchrun where there are several processes."""
    launch = [] if processes == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if path is None else {"PATH": path})
    command = [sys.executable, *launch, "-m", "tests.train.work", task, str(folder)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def curve(folder: Path, name: str = "loss") -> list[float]:
    return [line[name] for line in read_metrics(folder)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process that the others are compared with."""
    folder = tmp_path_factory.mktemp("alone")
    done = work("plain", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by two processes: plain torch, and ZeRO 0 to 3. There is no compiler on the PATH."""
    if find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    folder = tmp_path_factory.mktemp("together")
    done = work("stages", folder, 2, path="/nonexistent")
    assert done.returncode == 0, done.stderr
    return folder


ENGINES = ["plain", *(f"zero{stage}" for stage in STAGES)]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_processes_have_the_loss_curve_of_one(engine: str, alone: Path, together: Path) -> None:
    one, two = curve(alone), curve(together / engine)
    assert len(one) == len(two) == 20
    assert two == pytest.approx(one, rel=1e-4)
    assert curve(together / engine, "gradient_norm") == pytest.approx(curve(alone, "gradient_norm"), rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_parameter_gets_its_gradient(engine: str, alone: Path, together: Path) -> None:
    """Weights, moments and average of each parameter, gathered from all processes, are those of one process; nothing stayed behind."""
    name = "checkpoints/step-00000020.safetensors"
    one, two = load_file(alone / name), load_file(together / engine / name)
    assert one.keys() == two.keys()
    for key, x in one.items():
        torch.testing.assert_close(two[key], x, rtol=5e-3, atol=5e-5, msg=lambda text, key=key: f"{key}: {text}")
    silent = {key for key, x in two.items() if key.startswith("exp_avg_sq.") and not x.any()}
    nothing_recycled = {f"exp_avg_sq.trunk.recycling.{part}.weight" for part in ("distance", "msa_norm", "pair_norm")}
    assert silent == nothing_recycled


@pytest.mark.parametrize("processes", [1, 4])
def test_a_checkpoint_of_two_goes_on_with_another_number(processes: int, alone: Path, together: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    source = together / "zero3/checkpoints/step-00000010.safetensors"
    (tmp_path / "checkpoints" / source.name).write_bytes(source.read_bytes())
    done = work("go_on", tmp_path, processes)
    assert done.returncode == 0, done.stderr
    assert curve(tmp_path) == pytest.approx(curve(alone)[10:12], rel=1e-4)


def test_a_process_that_dies_ends_the_job_with_its_error(tmp_path: Path) -> None:
    """Within half a minute; the other process, which waits for it, is not left behind."""
    done = work("die", tmp_path, 2)
    assert done.returncode != 0 and "the disk of rank 0 is on fire" in done.stderr
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 30


def test_killed_in_the_middle_of_writing_it_goes_on_to_the_same_end(alone: Path, tmp_path: Path) -> None:
    """Bit for bit, and nothing that the killed process had begun is left."""
    assert work("killed", tmp_path).returncode == -9
    found = latest_checkpoint(tmp_path / "checkpoints")
    assert found is not None and found.step == 10 and len(list((tmp_path / "checkpoints").glob(".step-*"))) == 1
    done = work("finish", tmp_path)
    assert done.returncode == 0, done.stderr
    one, other = (load_file(each / "checkpoints/step-00000020.safetensors") for each in (alone, tmp_path))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert curve(tmp_path) == curve(alone)
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """`python -m tests.train.kill 20` does it more often."""
    reached = kill_at_random(tmp_path, times=2, seed=1)
    assert reached == sorted(reached) and reached[-1] > 0


def test_a_full_disk_is_told_and_loses_nothing(alone: Path, tmp_path: Path) -> None:
    done = work("full_disk", tmp_path)
    assert done.returncode != 0 and "step-00000010.safetensors cannot be written" in done.stderr and "--resume" in done.stderr
    there = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert there == ["step-00000005.safetensors"]
    assert read_checkpoint(tmp_path / "checkpoints" / there[0]).step == 5


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    tensors = {"weights.a": torch.arange(3.0)}
    for step in (1, 2, 3):
        path = save_checkpoint(tmp_path, Checkpoint(step, tensors, {"run.batch": 4}), keep=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["step-00000002.safetensors", "step-00000003.safetensors"]
    path.write_bytes(path.read_bytes()[:-5])
    said: list[str] = []
    found = latest_checkpoint(tmp_path, said.append)
    assert found is not None and found.step == 2 and found.deciding == {"run.batch": 4}
    assert torch.equal(found.of("weights")["a"], torch.arange(3.0))
    assert len(said) == 1 and "step-00000003.safetensors cannot be read" in said[0]
    (tmp_path / "step-00000002.safetensors").write_bytes(b"nothing")
    with pytest.raises(TrainingError, match="none of the 2 checkpoints"):
        latest_checkpoint(tmp_path)


def test_no_checkpoint_and_none_of_ours(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, tmp_path / "step-00000001.safetensors")
    with pytest.raises(TrainingError, match="is no checkpoint of a training run"):
        read_checkpoint(tmp_path / "step-00000001.safetensors")


def test_without_deepspeed_there_is_a_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evoattn.errors import ConfigError

    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(ConfigError, match=r"pip install 'evoattn\[train\]', or choose engine = 'plain'"):
        train(config(tmp_path, engine="deepspeed"), families())
