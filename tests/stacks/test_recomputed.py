"""Updates recomputed in the backward pass, in slices of every length: the same outputs and gradients, from far fewer kept numbers."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evoattn import PairformerStack, set_execution
from evoattn import execution as execution_module
from evoattn.config import MSAModuleConfig, MSATransformerConfig, PairformerConfig
from evoattn.primitives import redraw_
from evoattn.stacks import MSAModule, MSATransformerEncoder
from tests.stacks.test_in_place import CONFIGS, N_RES, N_SEQ, inputs, stack_of

MODES = ("updates", "both")


def losses_and_gradients(stack: nn.Module, given: Any) -> list[Tensor]:
    floats = [x.clone().requires_grad_() if x is not None and x.is_floating_point() else x for x in given]
    out = stack(*floats)
    out = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
    loss = sum((x.square().mean() for x in out), torch.zeros(()))
    wanted = [*(x for x in floats if x is not None and x.requires_grad), *stack.parameters()]
    return [loss, *(g for g in torch.autograd.grad(loss, wanted, allow_unused=True) if g is not None)]


def compare(stack: nn.Module, given: Any, mode: str) -> None:
    expected = losses_and_gradients(stack, given)
    got = losses_and_gradients(set_execution(stack, checkpoint=mode), given)
    assert len(got) == len(expected)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def cut(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(execution_module, "_slice_length", lambda x, block, memory: length)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("masked", [True, False])
def test_every_kind_of_evoformer(monkeypatch: pytest.MonkeyPatch, name: str, mode: str, masked: bool) -> None:
    cut(monkeypatch, 4)
    compare(stack_of(name), inputs(2, masked=masked), mode)


@pytest.mark.parametrize("length", range(1, N_RES + 2))
def test_every_length(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    cut(monkeypatch, length)
    compare(stack_of("alphafold2"), inputs(), "updates")


def test_other_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 4)
    s, m, z = torch.randn(N_RES, 12).double(), torch.randn(N_SEQ, N_RES, 16).double(), torch.randn(N_RES, N_RES, 8).double()
    pair: dict[str, Any] = {"n_blocks": 2, "c_z": 8, "n_head_tri_start": 2, "n_head_tri_end": 2, "c_hidden_mul": 6}
    pairformer = PairformerStack(PairformerConfig(c_s=12, n_head_single=2, **pair))
    msa_module = MSAModule(MSAModuleConfig(c_m=16, n_head_msa=2, c_hidden_opm=4, **pair))
    tokens = torch.randint(4, 24, (N_SEQ, N_RES))
    encoder = MSATransformerEncoder(MSATransformerConfig(n_blocks=2, c_m=16, n_head=2, c_hidden_transition=24, c_row_position=16))
    for stack, given in ((pairformer, (s, z)), (msa_module, (m, z)), (encoder, (tokens,))):
        compare(redraw_(stack, seed=1).double().eval(), given, "updates")


def test_dropout_is_drawn_once() -> None:
    """The same draws in the same order as without recomputation, and the gradients belong to them."""
    given, found = inputs(masked=False)[:2], []
    for mode in (False, *MODES):
        torch.manual_seed(5)
        found.append(losses_and_gradients(set_execution(stack_of("alphafold2").train(), checkpoint=mode), given))
    for got in found[1:]:
        for x, y in zip(got, found[0], strict=True):
            torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def test_keeps_less() -> None:
    """What is held between forward and backward: the representation after each update, and little more."""

    def kept(mode: Any) -> int:
        stack, (m, z, *_) = set_execution(stack_of("alphafold2"), checkpoint=mode), inputs(masked=False)
        held: list[Tensor] = []

        def pack(x: Tensor) -> Tensor:
            held.append(x)
            return x

        gc.collect()
        before = storages([])
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            out = stack(m.requires_grad_(), z.requires_grad_())
        after = storages(held)
        del out
        return sum(after[place] for place in after.keys() - before.keys())

    assert kept("both") < kept("updates") < kept(False) / 2


def storages(more: list[Tensor]) -> dict[int, int]:
    """Size of the memory behind every tensor that Python knows, and of `more`, by its place."""
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)] + more
    return {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
