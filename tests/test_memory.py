"""Memory as estimated and planned, against the allocations that torch really makes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import evoattn.stacks.blocks as stack_blocks
from evoattn import ConfigError, EvoformerConfig, EvoformerTrunk, Execution, ExtraMSAStack, PairformerConfig, preset, set_execution
from evoattn.blocks import cost as costs
from evoattn.config import profile
from evoattn.errors import MemoryLimitError
from evoattn.memory import estimate, free, free_memory, plan, planning
from evoattn.memory.recorded import Allocated
from evoattn.stacks import EvoformerStack, PairformerStack
from evoattn.stacks.blocks import BlockStack
from evoattn.updates import SlicedBlock, update_

N_SEQ, N_RES = 24, 40
SIZES: dict[str, Any] = {
    "n_blocks": 1, "c_m": 64, "c_z": 32, "c_s": 12, "n_head_msa_row": 4, "n_head_msa_column": 4, "n_head_tri_start": 2, "n_head_tri_end": 4,
    "c_hidden_mul": 24, "c_hidden_opm": 8,
}  # fmt: skip
SMALL = EvoformerConfig(**SIZES)
TRUNK = replace(preset("tiny"), evoformer=SMALL, extra=replace(SMALL, c_m=16, c_s=None, msa_column="global"))
WEIGHTS = 2**14
"""Bytes of parameters in bfloat16 at most, which autocast keeps while a block runs: next to nothing beside long proteins."""


def stacks() -> dict[str, tuple[BlockStack, tuple[int, ...]]]:
    """With the shape of their first representation."""
    single = PairformerConfig(n_blocks=1, c_z=32, c_s=24, n_head_single=4, c_hidden_mul=16, n_head_tri_start=2, n_head_tri_end=2)
    all_ways = replace(SMALL, msa_pair_as=("bias", "keys", "values"), triangle_pair_as=("bias", "keys"))
    return {
        "AlphaFold 2": (EvoformerStack(SMALL), (N_SEQ, N_RES, 64)),
        "extra": (ExtraMSAStack(replace(SMALL, msa_column="global", profile=profile("alphafold2_multimer"))), (N_SEQ, N_RES, 64)),
        "pair features": (EvoformerStack(all_ways), (N_SEQ, N_RES, 64)),
        "Pairformer": (PairformerStack(single), (N_RES, 24)),
    }


@pytest.mark.parametrize("low", [None, "bf16"])
@pytest.mark.parametrize("name", stacks())
def test_declared_costs_are_those_of_the_allocations(monkeypatch: pytest.MonkeyPatch, name: str, low: Any) -> None:
    """What each update keeps for all slices is declared to the byte or little above, and no slice takes more than declared."""
    monkeypatch.setattr(costs, "AT_ONCE", 2**10)
    monkeypatch.setattr("evoattn.blocks.slices.AT_ONCE", 2**10)
    stack, shape = stacks()[name]
    set_execution(stack.eval(), dtype=low)
    x, z = torch.randn(2, *shape), torch.randn(2, N_RES, N_RES, 32)
    declared = iter(stack.update_costs(x, z))
    seen: list[str] = []

    def update(x: Tensor, block: SlicedBlock, *inputs: Any, drop: Any = None) -> Tensor:
        cost = next(declared)
        seen.append(cost.name)
        with Allocated() as prepared:
            context = block.prepare(x, *inputs)
            kept, made = prepared.bytes, prepared.peak
        assert kept - WEIGHTS <= cost.context <= 1.6 * kept + 256, cost.name
        assert made - kept <= cost.making + WEIGHTS, cost.name
        for length in (1, cost.length // 2):
            with Allocated() as working:
                block.delta(x.narrow(block.slices, 0, length), slice(0, length), context)
            if not takes_pair(block):  # pair features as keys are worked through in tiles of their own
                assert 0.2 * length * cost.per_position <= working.peak <= length * cost.per_position + 2**16, cost.name
        return update_(x, block, *inputs)

    monkeypatch.setattr(stack_blocks, "update_", update)
    stack.run_blocks_(x, z, None, None)
    assert len(seen) >= 5 and next(declared, None) is None


def takes_pair(block: Any) -> bool:
    return getattr(getattr(block, "attn", None), "takes_pair", False)


def features(n_seq: int, n_res: int, n_extra: int) -> dict[str, Tensor]:
    return {
        "target_feat": torch.randn(1, n_res, 22), "residue_index": torch.arange(n_res)[None],
        "msa_feat": torch.randn(1, n_seq, n_res, 49), "extra_msa_feat": torch.randn(1, n_extra, n_res, 25),
    }  # fmt: skip


@pytest.mark.parametrize(("n_seq", "n_extra", "recycles"), [(16, 8, 2), (8, 64, 0), (96, 8, 1)])
def test_a_pass_takes_what_was_estimated(monkeypatch: pytest.MonkeyPatch, n_seq: int, n_extra: int, recycles: int) -> None:
    """Slices are made small, as they are beside the representations of a long protein."""
    monkeypatch.setattr(stack_blocks, "update_", lambda x, block, *inputs, drop=None: update_(x, block, *inputs, memory=2**16))
    monkeypatch.setattr(costs, "quick_slice", lambda x, block, itemsize: 2**16)
    for module in ("evoattn.blocks.cost", "evoattn.blocks.slices", "evoattn.model", "evoattn.memory.estimation"):
        monkeypatch.setattr(f"{module}.AT_ONCE", 2**12)
    trunk, given = EvoformerTrunk(TRUNK).eval(), features(n_seq, 96, n_extra)
    with torch.inference_mode(), Allocated() as allocated:
        trunk(given, recycles=recycles)
    found = estimate(TRUNK, n_seq, 96, n_extra=n_extra)
    assert found.working - costs.OVERHEAD == pytest.approx(allocated.peak, rel=0.12)
    assert found.parts["features"] == pytest.approx(sum(x.nbytes for x in given.values()), rel=0.05)
    assert found.parts["parameters"] == sum(p.nbytes for p in trunk.parameters())


@pytest.mark.parametrize("execution", [Execution(dtype="bf16"), Execution(checkpoint=True)])
def test_a_training_step_takes_what_was_estimated(monkeypatch: pytest.MonkeyPatch, execution: Execution) -> None:
    """Of three blocks, told from one and two that were never computed; beside small tiles, as are those of real sizes."""
    monkeypatch.setattr("evoattn.ops.tiles.TILE", 2**16)
    monkeypatch.setattr("evoattn.ops.pairwise.OUTER_TILE", 2**18)
    config = replace(TRUNK, evoformer=replace(SMALL, n_blocks=3))
    trunk = set_execution(EvoformerTrunk(config).train(), execution)
    with Allocated() as allocated:
        out = trunk(features(12, 40, 4))
        kept = allocated.bytes
        torch.autograd.backward([*vars(out).values()], [torch.ones_like(x) for x in vars(out).values()])
    found = estimate(config, 12, 40, n_extra=4, mode="training", execution=execution)
    recorded = [found.parts[name] for name in ("kept for the backward pass", "one block's backward pass, gradients")]
    assert recorded[0] == pytest.approx(kept, rel=0.1) and sum(recorded) == pytest.approx(allocated.peak, rel=0.1)


def test_blocks_add_parameters_and_nothing_else() -> None:
    one, many = (estimate(replace(TRUNK, evoformer=replace(SMALL, n_blocks=n)), 8, 32) for n in (1, 5))
    blocks = sum(p.nbytes for p in EvoformerStack(SMALL).blocks.parameters())
    assert many.working == one.working and many.parts["parameters"] - one.parts["parameters"] == 4 * blocks


def test_a_plan_by_hand() -> None:
    """The largest update is triangle multiplication: m, z, one operand, and what slices take."""
    config = EvoformerConfig(n_blocks=1)
    found = plan(config, 128, 1024, budget="2GiB")
    m, z = 128 * 1024 * 256 * 4, 1024 * 1024 * 128 * 4
    assert found.fits and found.estimate.at == "Evoformer, tri_mul_out" and found.execution == Execution(memory_budget=2**31)
    row = 1024 * 128 * 8 * 4  # of a slice: three times the channels of z, five times those of the product, in float32
    assert found.estimate.working == m + 2 * z + costs.OVERHEAD + 32 * row and m + 2 * z < found.floor < found.estimate.working - 20 * row
    assert found.estimate.working <= 1.35 * (m + 2 * z)
    found.require("1,024 residues")


def test_a_budget_shortens_slices() -> None:
    config = EvoformerConfig(n_blocks=1)
    floor = plan(config, 128, 512, budget="8GiB").floor
    tight = plan(config, 128, 512, budget=floor)
    assert tight.fits and tight.estimate.working <= floor
    wide = {cost.name: cost.slice_length(2**33) for cost in tight.updates}
    shorter = {cost.name for cost in tight.updates if cost.slice_length(floor) < wide[cost.name]}
    assert shorter <= {"Evoformer, tri_mul_out", "Evoformer, tri_mul_in"}  # the others have room
    assert not plan(config, 128, 512, budget=floor - 1).fits


def test_what_does_not_fit_is_told_with_what_would() -> None:
    found = plan(EvoformerConfig(), 128, 2048, budget="4GiB")
    words = r"(?s)^2,048 residues do not fit: at least 4\.\d\d GiB .*pair representation 2\.00 GiB, .*4\.00 GiB are"
    with pytest.raises(MemoryLimitError, match=words):
        found.require("2,048 residues")
    half, stretch = found.advice
    assert half.startswith("In bfloat16 it needs 2.") and half.endswith("which fits.")
    most = int(stretch.split()[4].replace(",", ""))
    assert plan(EvoformerConfig(), 128, most, budget="4GiB").fits and not plan(EvoformerConfig(), 128, most + 1, budget="4GiB").fits
    assert "DOES NOT FIT" in str(found) and stretch in str(found)


def test_training_recomputes_where_memory_is_short() -> None:
    """What costs no time first."""
    config, settings = replace(SMALL, n_blocks=24), {"n_seq": 64, "n_res": 128, "mode": "training"}
    needs = {c: estimate(config, execution=Execution(checkpoint=c), **settings).working for c in (False, "updates", "blocks")}
    assert needs[False] > needs["updates"] > needs["blocks"]
    for checkpoint, budget in needs.items():
        short = plan(config, budget=budget, **settings)
        assert short.fits and short.execution == Execution(checkpoint=checkpoint) and short.updates == ()
    assert not plan(config, budget="1MiB", **settings).fits


def test_the_default_budget_is_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory", lambda device: 2**30)
    found = plan(TRUNK, 8, 32)
    assert found.budget == 2**30 - found.estimate.parts["parameters"] - found.estimate.parts["features"]
    monkeypatch.setattr(planning, "free_memory", lambda device: None)
    assert plan(TRUNK, 8, 10**6).fits  # nothing is known, so nothing is refused


def test_free_memory_is_the_least_of_machine_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free, "_CGROUP", tmp_path)
    cpu = torch.device("cpu")
    assert free_memory(cpu) is None
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    assert free_memory(cpu) == 3000 * 1024
    for limit, expected_bytes in (("max", 3000 * 1024), ("1000000", 1000000 - 600000 + 50000)):
        for name, text in (("max", limit), ("current", "600000"), ("stat", "anon 550000\nfile 50000\n")):
            (tmp_path / f"memory.{name}").write_text(text + "\n")
        assert free_memory(cpu) == expected_bytes


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_res": 0}, r"memory: n_res is 0; it must be a whole number, at least 1"),
        ({"n_extra": -1}, r"memory: n_extra is -1"),
        ({"mode": "train"}, r"memory: mode is 'train'; allowed are 'inference' and 'training'"),
        ({"config": PairformerConfig(n_blocks=1)}, r"memory: config is a PairformerConfig; give a TrunkConfig or an EvoformerConfig"),
        ({"budget": "much"}, r"a memory size is 'much'; write a number above 0 with a unit"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(**{"config": TRUNK, "n_seq": 8, "n_res": 32, **changes})


def test_templates_count() -> None:
    """Four of them want more than the rest of AlphaFold 2's model 1; none want nothing."""
    many, none = (estimate(preset("af2_model_1"), 128, 256, n_templates=n) for n in (4, 0))
    assert many.at == "templates" and many.parts["kept by templates"] == 5 * 256 * 256 * 64 * 4
    assert none.at != "templates" and none.working < many.working
