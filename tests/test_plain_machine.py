"""A machine with torch and nothing else: no kernel package, no plotting, no compiler, no GPU."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

ABSENT = {"triton", "deepspeed", "flash_attn", "cuequivariance_torch", "cuequivariance", "matplotlib", "pyhmmer", "pyfamsa"}

class Nothing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing)

import torch
import evoattn
from evoattn.ops import ATTENTION

config = evoattn.preset("tiny").evoformer
for dtype in (torch.float32, torch.bfloat16):
    block = evoattn.EvoformerBlock(config).to(dtype)
    m, z = torch.randn(3, 9, config.c_m, dtype=dtype), torch.randn(9, 9, config.c_z, dtype=dtype, requires_grad=True)
    m, pair = block(m, z)
    pair.float().sum().backward()
    assert m.isfinite().all() and pair.isfinite().all() and z.grad.isfinite().all()

    q = torch.randn(2, 9, 4, 8, dtype=dtype)
    explanation = evoattn.explain(q, q, q, biases=[torch.randn(1, 4, 9, 9, dtype=dtype)])
    assert explanation.chosen in ATTENTION.names, explanation
    assert f"-> {explanation.chosen}" in str(explanation) and all(name in str(explanation) for name in ATTENTION.names), explanation

    for name in ATTENTION.names:  # asked for by name: runs, or says what is missing
        against = explanation.reasons[name]
        try:
            evoattn.attention(q, q, q, biases=[torch.randn(1, 4, 9, 9, dtype=dtype)], backend=name)
            assert not against, name
        except evoattn.BackendError as error:
            assert against and all(reason in str(error) for reason in against), (name, error)

try:
    evoattn.set_execution(block, backend="flash")
except evoattn.BackendError as error:
    assert all(name in str(error) for name in (*ATTENTION.names, "auto", "flash")), error
else:
    raise AssertionError("an unknown backend was accepted")

print(*sorted(ABSENT & {name.split(".")[0] for name in sys.modules}), "plain")
"""


def test_plain_machine() -> None:
    """Import, run a block in float32 and bfloat16, choose a path and say which, refuse what is not there by name."""
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, cwd=root, env={"PATH": "", "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "plain"
