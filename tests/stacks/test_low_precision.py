"""float16 and bfloat16 through a stack of 8 blocks, on inputs a hundred times larger than usual."""

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from evoattn import EvoformerConfig, set_execution
from tests.stacks.cases import build, outputs

DEEP = EvoformerConfig(
    n_blocks=8, c_m=32, c_z=32, c_s=16, n_head_msa_row=2, n_head_msa_column=2, n_head_tri_start=2, n_head_tri_end=2,
    c_hidden_mul=32, c_hidden_opm=8, msa_transition_n=2, pair_transition_n=2,
)  # fmt: skip
KINDS = {"evoformer": DEEP, "extra": replace(DEEP, c_s=None, msa_column="global")}


def relative_error(got: Tensor, truth: Tensor) -> float:
    return ((got.double() - truth).norm() / truth.norm()).item()


@pytest.mark.parametrize("mode", ["autocast", "whole model"])
@pytest.mark.parametrize(("kind", "dtype"), [("evoformer", torch.bfloat16), ("evoformer", torch.float16), ("extra", torch.float16)])
def test_large_inputs(kind: str, dtype: torch.dtype, mode: str) -> None:
    """Finite, forward and backward; and no backend is more than twice as far from float64 as the reference in the same dtype.

    What is compared is what the stack adds to its inputs: beside inputs of 100 an error in it would not show.
    """
    exact = build(KINDS[kind])
    m, z = (100 * torch.randn(shape) for shape in ((8, 16, 32), (16, 16, 32)))
    present = torch.arange(16) < 14
    masks = (torch.arange(8) < 7)[:, None] & present, present[:, None] & present
    cast = dtype if mode == "whole model" else torch.float32
    inputs = [x.to(cast).requires_grad_() for x in (m, z)]
    starts = [z] if kind == "extra" else [m, z, torch.zeros(())]
    with torch.no_grad():
        truth = [y - x for y, x in zip(outputs(exact, *(x.double() for x in inputs), *masks), starts, strict=True)]
    errors = {}
    for backend in ("sdpa", "streaming", "reference"):
        stack = set_execution(copy.deepcopy(exact).to(cast), backend=backend)
        context: AbstractContextManager[object] = torch.autocast("cpu", dtype) if mode == "autocast" else nullcontext()
        with context:
            out = outputs(stack, *inputs, *masks)
        total = torch.stack([x.float().mean() for x in out]).sum()
        assert all(x.isfinite().all() for x in (*out, *torch.autograd.grad(total, [*inputs, *stack.parameters()]))), backend
        errors[backend] = [relative_error(y.detach().double() - x, t) for y, x, t in zip(out, starts, truth, strict=True)]
    for backend, found in errors.items():
        for error, plain in zip(found, errors["reference"], strict=True):
            assert error <= 2 * plain, f"{backend}: {errors}"


@pytest.mark.parametrize("kind", ["evoformer", "extra"])
def test_products_in_bfloat16(kind: str) -> None:
    """As a setting: no further from float64 than autocast; representations, outputs and gradients stay float32; in place too."""
    exact = build(KINDS[kind])
    inputs = [torch.randn(shape) for shape in ((8, 16, 32), (16, 16, 32))]
    wide = copy.deepcopy(exact).float()
    bf16 = set_execution(copy.deepcopy(wide), dtype="bf16")
    with torch.no_grad():
        truth = outputs(exact, *(x.double() for x in inputs))
        with torch.autocast("cpu", torch.bfloat16):
            usual = [relative_error(x, t) for x, t in zip(outputs(wide, *inputs), truth, strict=True)]
        run_ = bf16.run_(*(x.clone() for x in inputs))
    out = outputs(bf16, *inputs)
    for results in (out, [run_] if kind == "extra" else run_):
        assert all(x.dtype == torch.float32 for x in results)
        for x, t, error in zip(results, truth, usual, strict=True):
            assert 1e-4 < relative_error(x.detach(), t) <= 2 * error  # float32 would be below 1e-5
    torch.stack([x.mean() for x in out]).sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in bf16.parameters())


def test_representations_in_bfloat16() -> None:
    """With products in bfloat16 the representations may be so too, half the memory; the single one, a projection outside, is float32."""
    exact = build(DEEP)
    m, z = (torch.randn(shape).bfloat16() for shape in ((8, 16, 32), (16, 16, 32)))
    stack = set_execution(copy.deepcopy(exact).float(), dtype="bf16")
    with torch.no_grad():
        truth = outputs(exact, m.double(), z.double())
        out = stack(m, z)
        in_place = stack.run_(m, z)
    for results in (out, in_place):
        assert [x.dtype for x in results] == [torch.bfloat16, torch.bfloat16, torch.float32]
        assert all(relative_error(x, t) < 0.03 for x, t in zip(results, truth, strict=True))
