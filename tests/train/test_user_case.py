"""Case T20 of the users' pains: checkpointing, two processes, and a sample without templates on one of them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

T20 = """
import sys
from dataclasses import replace
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from evoattn import PRESETS, EvoformerTrunk, set_execution
from evoattn.config import TemplateConfig
from evoattn.primitives.init import redraw_

rank, meeting_point = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
templates = TemplateConfig(n_blocks=1, c_z=8, c_hidden_mul=8, n_head_tri_start=2, n_head_tri_end=2)
config = replace(PRESETS["tiny"], templates=templates)  # with two Evoformer blocks

def features(which):
    torch.manual_seed(which)
    found = {"target_feat": torch.randn(6, 22), "residue_index": torch.arange(6), "msa_feat": torch.randn(3, 6, 49),
             "extra_msa_feat": torch.randn(2, 6, 25)}
    if which == 0:
        angles = {name: torch.randn(1, 6, 7, 2) for name in ("template_torsion_angles_sin_cos", "template_alt_torsion_angles_sin_cos")}
        found |= angles | {
            "template_aatype": torch.randint(20, (1, 6)), "template_all_atom_positions": torch.randn(1, 6, 4, 3) * 5,
            "template_all_atom_mask": torch.ones(1, 6, 4, dtype=torch.bool),
            "template_torsion_angles_mask": torch.ones(1, 6, 7, dtype=torch.bool),
        }
    return found

def gradients(model, trunk, which, dtype):
    trunk.zero_grad()
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        out = model(features(which))
        loss = out.msa.float().mean() + out.pair.float().square().mean() + out.single.float().mean()
    loss.backward()
    return [parameter.grad.clone() for parameter in trunk.parameters()]  # AttributeError where one has none

for dtype in (torch.float32, torch.bfloat16):
    trunk = redraw_(EvoformerTrunk(config), seed=1).eval()
    alone = [gradients(trunk, trunk, which, dtype) for which in (0, 1)]
    set_execution(trunk, checkpoint=True)
    again = gradients(trunk, trunk, rank, dtype)
    assert all(torch.equal(x, y) for x, y in zip(again, alone[rank])), "checkpointing changes a gradient"
    together = gradients(DistributedDataParallel(trunk), trunk, rank, dtype)
    for got, *each in zip(together, *alone):
        torch.testing.assert_close(got, torch.stack(each).mean(0), rtol=1e-5, atol=1e-5 * (1 + got.abs().max().item()))
dist.destroy_process_group()
print("equal")
"""


def test_t20(tmp_path: Path) -> None:
    command = [sys.executable, "-c", T20]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meet")], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [text.strip().splitlines()[-1:] for text in said] == [["equal"], ["equal"]], said
