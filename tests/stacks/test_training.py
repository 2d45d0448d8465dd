"""Training: dropout, activation checkpointing, a gradient for every parameter; two processes are in tests/train/test_user_case.py."""

import copy
from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import Tensor, nn

from evoattn import PROFILES, EvoformerBlock, EvoformerConfig, set_execution
from tests.stacks.cases import CONFIGS, EXTRA, SMALL, build, outputs, representations, scattered_masks


def loss_of(stack: nn.Module, m: Tensor, z: Tensor, *masks: Tensor | None) -> Tensor:
    return torch.stack([x.square().mean() for x in outputs(stack, m, z, *masks)]).sum()


def typical_error(found: list[Tensor], exact: list[Tensor]) -> float:
    """In relative norm."""
    return median(((x - y).norm() / y.norm()).item() for x, y in zip(found, exact, strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    stack = build(CONFIGS[name])
    m, z = representations(stack.config)
    loss_of(stack, m, z, *scattered_masks(m)).backward()
    for parameter, x in stack.named_parameters():
        assert x.grad is not None and x.grad.isfinite().all() and x.grad.any(), parameter


def test_parameters_of_an_extra_stack_that_nobody_reads() -> None:
    """With the outer product first, the last block's update of m goes nowhere; all other parameters get a gradient."""
    stack = build(replace(EXTRA, profile=PROFILES["alphafold2_multimer"]))
    loss_of(stack, *representations(EXTRA)).backward()
    without = {name for name, x in stack.named_parameters() if x.grad is None}
    assert without == {name for name, _ in stack.named_parameters() if name.startswith("blocks.1.msa_")}


@pytest.mark.parametrize("name", CONFIGS)
def test_training_lowers_the_loss(name: str) -> None:
    """From the initialisation meant for training, in which every residual branch starts at zero."""
    torch.manual_seed(0)
    model = type(build(CONFIGS[name]))(CONFIGS[name])
    inputs = representations(model.config, dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    for _ in range(4):
        loss = loss_of(model, *inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.98 * losses[0]


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["monomer", "extra", "appended"])
def test_checkpointing_changes_no_gradient(name: str, dtype: torch.dtype, dropout: bool) -> None:
    """In float64, and in float32 under autocast; with the same dropout. And each block does run a second time."""
    inputs = representations(CONFIGS[name])
    masks = scattered_masks(inputs[0])

    def run(dtype: torch.dtype, checkpoint: bool) -> tuple[list[Tensor], dict[int, int]]:
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        stack = set_execution(build(CONFIGS[name], wide), checkpoint=checkpoint).train(dropout)
        count = Counter[int]()
        for index, block in enumerate(stack.blocks):
            block.register_forward_pre_hook(lambda *_, index=index: count.update([index]))
        given = [x.to(wide, copy=True).requires_grad_() for x in inputs]
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = loss_of(stack, *given, *masks)
        loss.backward()
        return [loss.detach(), *(x.grad for x in (*given, *stack.parameters()))], dict(count)

    exact, usual, (recomputed, count) = run(torch.float64, False)[0], run(dtype, False)[0], run(dtype, True)
    assert count == {0: 2, 1: 2}
    if dtype == torch.float64:
        for got, truth in zip(recomputed, exact, strict=True):
            torch.testing.assert_close(got, truth, rtol=1e-10, atol=1e-12)
    else:
        assert typical_error(recomputed, exact) < 1.5 * typical_error(usual, exact) < 0.1


def test_dropout_only_in_training() -> None:
    stack = build(SMALL, torch.float32)
    inputs = representations(SMALL, dtype=torch.float32)
    assert torch.equal(stack(*inputs)[1], stack(*inputs)[1])
    stack.train()
    first, second = stack(*inputs)[1], stack(*inputs)[1]
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    first = stack(*inputs)[1]
    torch.manual_seed(5)
    assert torch.equal(stack(*inputs)[1], first)
    off = build(replace(SMALL, dropout_msa=0.0, dropout_pair=0.0), torch.float32)
    assert torch.equal(copy.deepcopy(off).train()(*inputs)[1], off(*inputs)[1])


# sub-block -> which representation it updates, its dropout rate, the axis that shares one mask (AlphaFold 2 supplement, algorithm 6)
DROPPED: dict[str, tuple[int, float, int | None]] = {
    "msa_row": (0, 0.5, -3), "msa_column": (0, 0.0, None), "msa_transition": (0, 0.0, None), "outer_product": (1, 0.0, None),
    "tri_mul_out": (1, 0.25, -3), "tri_mul_in": (1, 0.25, -3), "tri_attn_start": (1, 0.25, -3), "tri_attn_end": (1, 0.25, -2),
    "pair_transition": (1, 0.0, None),
}  # fmt: skip


@pytest.mark.parametrize("child", DROPPED)
def test_which_update_is_dropped_and_how(child: str) -> None:
    """With one sub-block's update all ones and the others zero, the block's update shows the dropout mask."""
    config = EvoformerConfig(c_m=16, c_z=16, dropout_msa=0.5, dropout_pair=0.25)
    block = EvoformerBlock(config).train()
    for name in DROPPED:
        getattr(block, name).register_forward_hook(lambda module, inputs, out, name=name: torch.full_like(out, float(name == child)))
    inputs = representations(config, batch=(2,), n_seq=20, n_res=20, dtype=torch.float32)
    which, rate, shared = DROPPED[child]
    delta = (block(*inputs)[which] - inputs[which]).detach()
    if shared is None:
        torch.testing.assert_close(delta, torch.ones_like(delta))
        return
    kept = delta > 0.5
    torch.testing.assert_close(delta, kept / (1 - rate), atol=1e-5, rtol=0)
    assert abs(kept.float().mean() - (1 - rate)) < 0.1
    first = kept.narrow(shared, 0, 1)
    assert torch.equal(kept, first.expand_as(kept))
    assert first.any(-1).all() and not torch.equal(first[0], first[1])  # every channel, and every batch entry, draws its own
