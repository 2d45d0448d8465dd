"""Stacks that run in place, slice by slice: the same numbers as forward, whatever the length of the slices."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import evoattn.stacks.blocks as stack_blocks
from evoattn import (
    EvoformerConfig,
    EvoformerStack,
    EvoformerTrunk,
    ExtraMSAStack,
    Recycled,
    capture_attention,
    model,
    preset,
    set_execution,
)
from evoattn.config import profile
from evoattn.errors import MemoryLimitError, ShapeError
from evoattn.primitives import redraw_
from evoattn.stacks import EvoformerBlock
from evoattn.updates import SlicedBlock, update_

N_SEQ, N_RES = 5, 13
SIZES: dict[str, Any] = {
    "n_blocks": 1, "c_m": 16, "c_z": 8, "c_s": 12, "n_head_msa_row": 4, "n_head_msa_column": 2, "n_head_tri_start": 2, "n_head_tri_end": 4,
    "c_hidden_mul": 6, "c_hidden_opm": 5,
}  # fmt: skip
ALL_WAYS = ("bias", "keys", "values")
CONFIGS = {
    "alphafold2": EvoformerConfig(**SIZES),
    "extra": EvoformerConfig(**SIZES, msa_column="global", profile=profile("alphafold2_multimer")),
    "relative pair features": EvoformerConfig(**SIZES, msa_pair_as=ALL_WAYS, triangle_pair_as=ALL_WAYS),
    "appended pair features": EvoformerConfig(**SIZES, msa_pair_as=ALL_WAYS, triangle_pair_as=ALL_WAYS, pair_mode="appended"),
}


def inputs(*batch: int, masked: bool = True) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    m, z = torch.randn(*batch, N_SEQ, N_RES, 16).double(), torch.randn(*batch, N_RES, N_RES, 8).double()
    return (m, z, torch.rand(m.shape[:-1]) > 0.2, torch.rand(z.shape[:-1]) > 0.2) if masked else (m, z, None, None)


def stack_of(name: str) -> EvoformerStack:
    return redraw_(EvoformerStack(CONFIGS[name]), seed=1).double().eval()  # type: ignore[return-value]


def cut(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Make every slice `length` long."""

    def update(x: Tensor, block: SlicedBlock, *more: Any, drop: Any = None) -> Tensor:
        return update_(x, block, *more, memory=length * block.slice_bytes(x, x.element_size()))

    monkeypatch.setattr(stack_blocks, "update_", update)


@pytest.mark.parametrize("batch", [(1,), (2,), (3,)])
def test_equals_forward_for_every_length(monkeypatch: pytest.MonkeyPatch, batch: tuple[int, ...]) -> None:
    stack, (m, z, msa_mask, pair_mask) = stack_of("alphafold2"), inputs(*batch)
    with torch.no_grad():
        expected = stack(m, z, msa_mask, pair_mask)
    for length in range(1, N_RES + 2):
        cut(monkeypatch, length)
        for got, wanted in zip(stack.run_(m.clone(), z.clone(), msa_mask, pair_mask), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("length", [1, 4])
def test_equals_forward_for_every_kind(monkeypatch: pytest.MonkeyPatch, name: str, masked: bool, length: int) -> None:
    stack, given = stack_of(name), inputs(2, masked=masked)
    with torch.no_grad():
        expected = stack(*given)
    cut(monkeypatch, length)
    for got, wanted in zip(stack.run_(*given), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_a_wrong_slice_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing after the first slice is what prepare and delta are apart for: it gives other numbers."""
    stack, given = stack_of("alphafold2"), inputs()

    def careless(x: Tensor, block: SlicedBlock, *more: Any, drop: Any = None) -> Tensor:
        for start in range(x.shape[block.slices]):
            piece = x.narrow(block.slices, start, 1)
            piece += block.delta(piece, slice(start, start + 1), block.prepare(x, *more))
        return x

    with torch.no_grad():
        expected = stack(*given)
    monkeypatch.setattr(stack_blocks, "update_", careless)
    assert (stack.run_(*given)[1] - expected[1]).abs().max() > 1e-3


def test_uses_up_its_inputs_and_forward_does_not() -> None:
    stack, (m, z, *masks) = stack_of("alphafold2"), inputs()
    before = m.clone(), z.clone()
    with torch.no_grad():
        stack(m, z, *masks)
    assert torch.equal(m, before[0]) and torch.equal(z, before[1])
    out_m, out_z, _ = stack.run_(m, z, *masks)
    assert out_m is m and out_z is z and not torch.equal(z, before[1])


def test_padding_of_nan_stays_out() -> None:
    stack, (m, z, _, _) = stack_of("alphafold2"), inputs(masked=False)
    with torch.no_grad():
        expected = stack(m, z)
    wide_m, wide_z = torch.full((N_SEQ, N_RES + 2, 16), torch.nan).double(), torch.full((N_RES + 2, N_RES + 2, 8), torch.nan).double()
    wide_m[:, :N_RES], wide_z[:N_RES, :N_RES] = m, z
    there = torch.arange(N_RES + 2) < N_RES
    got_m, got_z, _ = stack.run_(wide_m, wide_z, there.expand(N_SEQ, -1), there[:, None] & there)
    torch.testing.assert_close(got_m[:, :N_RES], expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got_z[:N_RES, :N_RES], expected[1], rtol=1e-12, atol=1e-12)


def test_extra_stack_without_rows() -> None:
    stack = redraw_(ExtraMSAStack(CONFIGS["extra"]), seed=1).double().eval()
    m, z = torch.zeros(0, N_RES, 16).double(), torch.randn(N_RES, N_RES, 8).double()
    with torch.no_grad():
        expected = stack(m, z)
    torch.testing.assert_close(stack.run_(m, z), expected, rtol=1e-12, atol=1e-12)


def test_forward_hooks_fire_and_attention_can_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    stack, given = stack_of("alphafold2"), inputs()
    seen: list[str] = []
    stack.blocks[0].register_forward_hook(lambda module, *_: seen.append(type(module).__name__))
    with torch.no_grad(), capture_attention(stack, index=3) as whole:
        stack(*given)
    for length in (1, 2, N_RES):
        cut(monkeypatch, length)
        with capture_attention(stack, index=3) as sliced:
            stack.run_(*(x.clone() for x in given))
        assert whole.keys() == sliced.keys() and len(whole) == 4
        for name, weights in whole.items():
            torch.testing.assert_close(sliced[name], weights, rtol=1e-12, atol=1e-12)
    assert seen == ["EvoformerBlock"] * 4
    with pytest.raises(ShapeError, match=r"index 5 is out of range for 'blocks.0.msa_row.attn'; its last batch axis has 5 entries"), \
            capture_attention(stack, ["*msa_row*"], index=N_SEQ):  # fmt: skip
        stack.run_(*given)


def test_no_gradient_is_recorded_and_the_block_forgets() -> None:
    stack, given = stack_of("alphafold2"), inputs()
    assert not any(x.requires_grad for x in stack.run_(*given))
    block = stack.blocks[0]
    assert isinstance(block, EvoformerBlock) and "update" not in vars(block)


def test_the_trunk_leaves_its_features_and_what_is_recycled_alone() -> None:
    trunk = redraw_(EvoformerTrunk(preset("tiny")), seed=1).eval()
    assert isinstance(trunk, EvoformerTrunk)
    features = {
        "target_feat": torch.randn(7, 22), "residue_index": torch.arange(7), "msa_feat": torch.randn(3, 7, 49),
        "extra_msa_feat": torch.randn(4, 7, 25),
    }  # fmt: skip
    copies = {name: x.clone() for name, x in features.items()}
    recorded = trunk(features, recycles=1)
    with torch.no_grad():
        in_place = trunk(features, recycles=1)
    assert all(torch.equal(features[name], copy) for name, copy in copies.items())
    torch.testing.assert_close(in_place.pair, recorded.pair)
    torch.testing.assert_close(in_place.msa, recorded.msa)


def test_a_budget_shortens_slices_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the floor up: the slices asked for fit, and the numbers stay."""
    stack, given = stack_of("alphafold2"), inputs(2)
    with torch.no_grad():
        expected = stack(*given)
    costs = stack.update_costs(*given[:2])
    floor = max(cost.floor for cost in costs)
    asked: list[int] = []

    def update(x: Tensor, block: SlicedBlock, *more: Any, memory: int) -> Tensor:
        asked.append(max(1, memory // block.slice_bytes(x, x.element_size())))
        return update_(x, block, *more, memory=memory)

    monkeypatch.setattr(stack_blocks, "update_", update)
    for budget in (floor, floor + 5000, 2**30):
        asked.clear()
        set_execution(stack, memory_budget=budget)
        for got, wanted in zip(stack.run_(given[0].clone(), given[1].clone(), *given[2:]), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
        assert all(cost.peak(budget) <= budget for cost in costs)
        got_lengths = [min(length, cost.length) for length, cost in zip(asked, costs, strict=True)]
        assert got_lengths == [cost.slice_length(budget) for cost in costs]
    assert max(asked) > N_RES  # whole in the end
    with torch.no_grad():
        assert all(torch.equal(x, y) for x, y in zip(stack(*given), stack.run_(*(x.clone() for x in given[:2]), *given[2:]), strict=True))


def test_a_budget_below_the_floor_is_refused_untouched() -> None:
    stack, (m, z, *masks) = stack_of("alphafold2"), inputs()
    floor = max(cost.floor for cost in stack.update_costs(m, z))
    before = m.clone(), z.clone()
    set_execution(stack, memory_budget=floor - 1)
    with pytest.raises(MemoryLimitError, match=r"EvoformerStack: a memory budget of 145 MiB is too little .* the least is 145 MiB"):
        stack.run_(m, z, *masks)
    assert torch.equal(m, before[0]) and torch.equal(z, before[1])


@pytest.mark.parametrize("config", ["tiny", "chains"])
@pytest.mark.parametrize("rows", [1, 3, 100])
def test_the_trunk_embeds_pairs_by_rows(monkeypatch: pytest.MonkeyPatch, config: str, rows: int) -> None:
    """As all at once, with what is recycled and chains; forward leaves what is recycled alone, run_ writes over it."""
    trunk_config = preset("tiny") if config == "tiny" else replace(preset("tiny"), max_chain=2)
    trunk = redraw_(EvoformerTrunk(trunk_config), seed=1).double().eval()
    assert isinstance(trunk, EvoformerTrunk)
    features: dict[str, Tensor] = {
        "target_feat": torch.randn(2, 7, 22).double(), "residue_index": torch.arange(14).view(2, 7),
        "asym_id": torch.arange(14).view(2, 7) // 3, "seq_mask": torch.rand(2, 7) > 0.2,
        "msa_feat": torch.randn(2, 3, 7, 49).double(), "extra_msa_feat": torch.randn(2, 4, 7, 25).double(),
    }  # fmt: skip
    previous = Recycled(*(9 * torch.randn(shape).double() for shape in ((2, 7, 32), (2, 7, 7, 16), (2, 7, 3))))
    before = previous.pair.clone()
    expected = trunk(features, previous=previous)
    monkeypatch.setattr(model, "AT_ONCE", rows * 2 * 7 * 16)
    with torch.no_grad():
        got = trunk(features, previous=previous)
        assert torch.equal(previous.pair, before)
        used = trunk.run_(features, previous=previous)
    assert used.pair is previous.pair
    for out in (got, used):
        torch.testing.assert_close(vars(out), vars(expected), rtol=1e-12, atol=1e-12)
