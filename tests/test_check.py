"""``evoattn check`` and what follows from it: wrong kernels are found out, verdicts are remembered, "auto" heeds them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evoattn import check
from evoattn.check import Trial, try_apart, try_here
from evoattn.check_cases import SUBJECTS
from evoattn.check_cli import describe_trials
from evoattn.ops import ATTENTION, AttentionSpec, Backend, Registry, verdicts
from evoattn.ops.pairwise import OUTER_PRODUCT_MEAN
from evoattn.ops.triangle_update import TRIANGLE_UPDATE
from evoattn.ops.verdicts import Place, Verdict
from tests.cli.commands import evoattn
from tests.kernels_that_fail import ABORTING, HANGING, RIGHT, RUN, right

CPU = torch.device("cpu")
SPEC = AttentionSpec((2,), 16, 16, 4, 4, 8, 8, torch.float32, "cpu")
HERE = Place("cpu", None, "x86_64", "", torch.__version__, "0.1.0")


@pytest.fixture(autouse=True)
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A file of verdicts of one's own, and few cases."""
    path = tmp_path / "cache" / "verdicts.json"
    monkeypatch.setattr(verdicts, "file", lambda: path)
    monkeypatch.setattr(verdicts, "place_of", lambda device: replace(HERE, device=device.type))
    monkeypatch.setitem(SUBJECTS, "attention", replace(SUBJECTS["attention"], cases=SUBJECTS["attention"].cases[4:7]))
    monkeypatch.setitem(SUBJECTS, "triangle_update", replace(SUBJECTS["triangle_update"], cases=SUBJECTS["triangle_update"].cases[2:]))
    verdicts.known.cache_clear()
    yield path
    verdicts.known.cache_clear()


MUTANTS = {
    "right": right,
    "bias dropped": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [0 * bias for bias in biases], mask, scale),
    "mask dropped": lambda q, k, v, biases, mask, scale: RUN(q, k, v, biases, None, scale),
    "scale off by 2 %": lambda q, k, v, biases, mask, scale: RUN(q, k, v, biases, mask, 1.02 * scale),
    "no gradient of the keys": lambda q, k, v, biases, mask, scale: RUN(q, k.detach() + 0 * k, v, biases, mask, scale),
    "bias gradient twice": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [2 * b - b.detach() for b in biases], mask, scale),
    "NaN": lambda q, k, v, biases, mask, scale: (RUN(q, k, v, biases, mask, scale)[0] * torch.nan, None),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_kernels_are_found_out(mutant: str) -> None:
    exact, *_ = try_here("attention", Backend("mutant", MUTANTS[mutant], why_not=lambda spec: []), CPU)
    assert exact.verdict == ("passed" if mutant == "right" else "failed"), exact
    if mutant == "right":
        assert exact.cases == 3 and exact.milliseconds and exact.error is not None and exact.error <= 1
    else:
        assert "times what is allowed" in exact.why


def test_an_error_is_a_failure_and_names_the_case() -> None:
    def broken(*arguments: Any) -> Tensor:
        raise RuntimeError("no kernel image is available\nfor this device")

    trial, *_ = try_here("attention", Backend("broken", broken, why_not=lambda spec: []), CPU)
    assert trial.verdict == "failed" and trial.why.endswith("beside the pair bias: RuntimeError: no kernel image is available")


def test_a_kernel_that_takes_its_process_down() -> None:
    """What it did before it aborted stays known."""
    first, *others = try_apart("attention", ABORTING, CPU)
    assert (first.verdict, first.cases, first.dtype) == ("passed", 1, "float32")
    assert [(trial.verdict, trial.why) for trial in others] == [("failed", "its process ended with SIGABRT")] * 2


def test_a_kernel_that_never_answers() -> None:
    assert [trial.why for trial in try_apart("attention", HANGING, CPU, patience=0.2)] == ["no answer after 0.2 s"] * 3


def test_nothing_is_started_for_what_cannot_run() -> None:
    trials = try_apart("attention", replace(RIGHT, why_not=lambda spec: ["serves NVIDIA cards, not cpu"]), CPU)
    assert [(trial.verdict, trial.why) for trial in trials] == [("not usable", "serves NVIDIA cards, not cpu")] * 3


def verdict(backend: str, why: str = "", **changes: Any) -> Verdict:
    return replace(Verdict("attention", backend, "float32", HERE, None, None, why), **changes)


def test_auto_passes_over_what_failed_and_says_so() -> None:
    verdicts.remember([verdict("sdpa", "case 1: error of the output is 1e+03 times what is allowed")])
    explanation = ATTENTION.explain(SPEC)
    assert ATTENTION.select(SPEC).name == explanation.chosen == "streaming"
    assert "sdpa           can run, failed `evoattn check` on x86_64: case 1: error of the output is 1e+03 times" in str(explanation)
    assert ATTENTION.select(SPEC, "sdpa").name == "sdpa"  # asked for by name it runs
    assert ATTENTION.select(replace(SPEC, dtype=torch.bfloat16)).name == "sdpa"
    verdicts.remember([verdict("sdpa")])
    assert ATTENTION.select(SPEC).name == "sdpa"


def test_a_kernel_of_its_own_waits_for_its_check() -> None:
    registry = Registry("attention", [replace(RIGHT, why_not=lambda spec: []), *ATTENTION.backends])
    assert registry.select(SPEC).name == "sdpa"
    assert "right          can run, unverified on cpu in float32; `evoattn check` compares it" in str(registry.explain(SPEC))
    verdicts.remember([verdict("right")])
    assert registry.select(SPEC).name == "right"


@pytest.mark.parametrize(
    "changes",
    [
        {"place": replace(HERE, torch="2.12.0")},
        {"place": replace(HERE, driver="580.1")},
        {"place": replace(HERE, card="arm64")},
        {"place": replace(HERE, evoattn="0.0.1")},
        {"place": replace(HERE, device="cuda", arch="sm_90")},
        {"package": "einops", "package_version": "0.0.1"},
        {"op": "triangle_update"},
        {"dtype": "bfloat16"},
    ],
)
def test_a_verdict_holds_only_where_it_was_found(changes: dict[str, Any]) -> None:
    verdicts.remember([verdict("sdpa", "wrong", **changes)])
    assert ATTENTION.select(SPEC).name == "sdpa"
    assert len(verdicts.read()) == 1


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"op": "attention"}]', '{"op": 1}'])
def test_a_file_that_is_not_ours_is_no_verdict(text: str, remembered: Path) -> None:
    remembered.parent.mkdir()
    remembered.write_text(text)
    assert ATTENTION.select(SPEC).name == "sdpa" and verdicts.read() == []


def test_the_command(monkeypatch: pytest.MonkeyPatch, remembered: Path) -> None:
    result = evoattn("check", "--device", "cpu", "--op", "attention")
    assert result.exit_code == 0, result.output
    assert f"Remembered in {remembered}." in result.stdout
    assert all(f"attention           {name}" in result.stdout for name in ATTENTION.names)
    assert {(v.backend, v.dtype) for v in verdicts.read()} >= {("sdpa", "float32"), ("streaming", "float16"), ("reference", "bfloat16")}
    wrong = Backend("wrong", MUTANTS["bias dropped"], why_not=lambda spec: [])
    monkeypatch.setattr(ATTENTION, "backends", [wrong, ATTENTION.get("reference")])
    result = evoattn("check", "--device", "cpu", "--op", "attention", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["place"]["card"] == "x86_64" and found["trials"][0]["backend"] == "wrong" and found["trials"][0]["verdict"] == "failed"
    assert ATTENTION.select(SPEC).name == "reference"


@pytest.mark.parametrize(("options", "word"), [(["--device", "tpu"], "allowed are auto"), (["--op", "softmax"], "triangle_update")])
def test_wrong_usage(options: list[str], word: str) -> None:
    result = evoattn("check", *options)
    assert result.exit_code == 2 and word in result.stderr


def test_every_registry_is_checked() -> None:
    assert [subject.registry for subject in SUBJECTS.values()] == [ATTENTION, TRIANGLE_UPDATE, OUTER_PRODUCT_MEAN]
    for registry in (TRIANGLE_UPDATE, OUTER_PRODUCT_MEAN):
        assert all(trial.verdict == "passed" for trial in try_here(registry.op, registry.get("lean"), CPU))


def test_table() -> None:
    trials = [Trial("attention", "sdpa", "float32", 8, "", 0.123, 1.5), Trial("attention", "flex", "float32", why="serves cuda, not cpu")]
    said = describe_trials(trials, CPU)
    assert "attention           sdpa            float32   passed          8   0.12     1.50\n" in said
    assert "attention           flex            float32   not usable" in said and "serves cuda, not cpu" in said
    assert (torch.float32, torch.bfloat16, torch.float16) == check.DTYPES
