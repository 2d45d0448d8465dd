"""``torch.compile(fullgraph=True)`` goes through attention, whatever the backend, and through every block."""

import subprocess
import sys
from pathlib import Path


def test_one_graph() -> None:
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-m", "tests.ops.compiled"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line.strip() for line in done.stdout.splitlines()] == [
        "attention auto with log-sum-exp",
        "attention streaming",
        "attention of one's own with log-sum-exp",
        "one forward pass",
        "opcheck",
        "block Evoformer",
        "block Pairformer",
        "block pair features as keys and values",
        "block pair-weighted averaging",
        "flex_attention",
    ]
