"""How the commands refuse and fail: exit codes, messages, and nothing left behind."""

import os
import signal
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from evoattn.runs import pipeline
from tests.cli.commands import FAMILY, evoattn, run, there


def test_an_earlier_run_needs_force(work: Path) -> None:
    run(FAMILY, "--out", "out", "--seed", 1)
    before = (work / "out" / "run.json").read_bytes()
    for input in (FAMILY, work / "missing.a3m"):  # refused before the input is looked at
        result = evoattn("run", input, "--preset", "tiny", "--out", "out")
        assert result.exit_code == 1 and "--force" in result.stderr and result.stdout == ""
    assert (work / "out" / "run.json").read_bytes() == before
    run(FAMILY, "--out", "out", "--seed", 2, "--force", "--format", "npz")
    assert there(work / "out") == ["representations.npz", "run.json"], "nothing of the earlier run is mixed in"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b">a\nMKV\n>b\nMKVAC\n", "row 2 ('b')"),
        (bytes(range(256)) * 4, "bad.a3m"),
        (b">dna\nACGTACGTACGTACGT\n", "protein"),
        (b">a [*batch, h]\nMK[bold]V\n", "character '[' at position 3"),
        (None, "bad.a3m"),
    ],
)
def test_broken_files_are_refused_in_words(content: bytes | None, words: str, work: Path) -> None:
    if content is not None:
        (work / "bad.a3m").write_bytes(content)
    before = there(work)
    result = evoattn("run", "bad.a3m", "--preset", "tiny", "--out", "a/b")
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("evoattn: ") and words in result.stderr and "Traceback" not in result.stderr
    assert there(work) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "af9"], ["af9", "af2-4", "tiny"]),
        (["--backend", "warp"], ["warp", "sdpa", "streaming", "reference", "auto"]),
        (["--dtype", "int8"], ["int8", "fp32", "bf16"]),
        (["--device", "tpu"], ["tpu", "cpu", "cuda"]),
        (["--format", "csv"], ["csv", "safetensors", "npz"]),
        (["--save", "msa,coordinates"], ["msa,coordinates", "pair", "single"]),
        (["--max-seqs", "0"], ["--max-seqs"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_wrong_usage_exits_2_and_lists_what_is_allowed(options: list[str], words: list[str], work: Path) -> None:
    result = evoattn("run", FAMILY, *options)
    assert result.exit_code == 2 and result.stdout == ""
    assert [word for word in words if word not in result.stderr] == []
    assert there(work) == []


@pytest.mark.parametrize(("there", "words"), [(False, "finds no Apple GPU here"), (True, "have no float64")])
def test_apple_gpus(there: bool, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: there)
    result = evoattn("run", FAMILY, "--device", "mps", "--dtype", "fp64")
    assert result.exit_code == 2 and words in " ".join(result.stderr.split()), result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there() -> None:
    result = evoattn("run", FAMILY, "--device", "cuda")
    assert result.exit_code == 2 and "no CUDA device" in result.stderr


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_interrupted_in_the_middle(how: str, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-written file, then the signal: it goes, the earlier run stays, and the exit code is the shell's for Ctrl-C."""
    run(FAMILY, "--out", "out", "--seed", 1)
    before = (work / "out" / "run.json").read_bytes()

    def interrupted(folder: Path, *_: object) -> NoReturn:
        (folder / "representations.safetensors").write_bytes(b"half")
        if how == "Ctrl-C":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("SIGTERM was not heard")

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(pipeline, "write_tensors", interrupted)
    result = evoattn("run", FAMILY, "--preset", "tiny", "--out", "out", "--force")
    assert result.exit_code == 130 and result.stderr.count("\n") == 1 and "interrupted" in result.stderr
    assert there(work) == ["out"] and (work / "out" / "run.json").read_bytes() == before
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), 3),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 3),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_out_of_memory_and_of_disk(error: Exception, code: int, work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(pipeline, "forward", fail)
    result = evoattn("run", FAMILY, "--preset", "tiny")
    assert result.exit_code == code and ("--max-seqs" in result.stderr) == (code == 3)
    assert there(work) == []


def test_a_fault_of_the_program_is_not_hidden(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("a bug")

    monkeypatch.setattr(pipeline, "forward", fail)
    result = evoattn("run", FAMILY, "--preset", "tiny")
    assert isinstance(result.exception, RuntimeError) and there(work) == []
