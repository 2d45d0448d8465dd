"""The benchmark for a GPU, on a CPU: it runs, times what is right, and does not time what is wrong."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from evoattn import PairformerConfig, preset


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.torch, "compile", lambda function: function)


def test_the_benchmark_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, small in {"SECONDS": 0.0, "BLOCKS": 18, "C": 16, "N_SEQ": 4, "PARITY": 20}.items():
        monkeypatch.setattr(gpu, name, small)
    monkeypatch.setattr(gpu, "EvoformerConfig", lambda: preset("tiny").evoformer)
    monkeypatch.setattr(gpu, "PairformerConfig", lambda: PairformerConfig(c_s=32, c_z=16, n_head_single=2))
    right = gpu.attention
    wrong = lambda *args, backend, **call: right(*args, **call, backend=backend) * (1.5 if backend == "streaming" else 1.0)  # noqa: E731
    monkeypatch.setattr(gpu, "attention", wrong)
    rows = gpu.main(["--device", "cpu", "--lengths", "18", "--minutes", "1", "--out", str(tmp_path / "gpu.json")])
    assert json.loads((tmp_path / "gpu.json").read_text())["rows"] == rows
    state = {(row["case"], row["path"]): row for row in rows}
    for case in ("triangle attention, n 18, forward", "MSA row attention, 4 x 18, forward and backward"):
        assert state[case, "sdpa"]["milliseconds"] > 0 and state[case, "sdpa"]["wrong"] == ""
        assert "allowed" in state[case, "streaming"]["wrong"] and "milliseconds" not in state[case, "streaming"]
        assert state[case, "deepspeed"]["why_not"]
    for case in ("triangle update, n 18, 16 channels, forward", "Evoformer block, 4 x 18, forward", "Pairformer block, n 18, forward"):
        assert all(row.get("milliseconds") or row.get("why_not") for row in rows if row["case"].startswith(case)), case


def test_nothing_is_started_when_the_time_is_over() -> None:
    problem = gpu.Problem("rows", 2, 17)
    rows = list(gpu.attention_rows(torch.device("cpu"), torch.float32, problem, lambda: True))
    assert {row.get("skipped") for row in rows if "why_not" not in row} == {"the time was over"}


def test_floors() -> None:
    """4.29e9 exponentials at N = 1024; 2 * 2 * D products for each."""
    floors = gpu.Problem("triangle", 1024, 1024).floors_ms("NVIDIA H200")
    assert floors["exponentials"] == pytest.approx(4.29e9 / 3.9e12 * 1e3, rel=1e-2)
    assert floors["products"] == pytest.approx(0.55e12 / 989e12 * 1e3, rel=1e-2)
    assert gpu.Problem("triangle", 1024, 1024).floors_ms("some card") == {}
