"""Updates recomputed in the backward pass, in slices of every length: the same outputs and gradients, from far fewer kept numbers."""

import gc
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evoattn import PairformerStack, set_execution
from evoattn import updates as updates_module
from evoattn.config import MSAModuleConfig, MSATransformerConfig, PairformerConfig
from evoattn.ops import pairwise, sdpa
from evoattn.ops.tiles import spans
from evoattn.primitives import redraw_
from evoattn.stacks import MSAModule, MSATransformerEncoder, checkpointing
from evoattn.updates import recomputed, update, update_
from tests.stacks.test_in_place import CONFIGS, N_RES, N_SEQ, inputs, stack_of

MODES = ("updates", "blocks", "both")


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
    monkeypatch.setattr(updates_module, "slices_of", lambda x, block, memory: list(spans(x.shape[block.slices], length)))


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
        for mode in MODES:
            compare(redraw_(stack, seed=1).double().eval(), given, mode)


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

    assert kept("both") == kept("blocks") < kept("updates") < kept(False) / 2


def test_attentions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is computed once, forward; the backward pass takes its result over."""
    cut(monkeypatch, 4)
    calls: list[int] = []
    forward = sdpa.cpu_forward
    monkeypatch.setattr(sdpa, "cpu_forward", lambda problem: calls.append(1) or forward(problem))
    stack, (m, z, *_) = set_execution(stack_of("alphafold2"), checkpoint="updates"), inputs(masked=False)
    out = stack(m.requires_grad_(), z.requires_grad_())
    computed = len(calls)
    out[1].sum().backward()
    assert computed > 4 and len(calls) == computed


def test_the_end_of_a_branch_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value is not read in the backward pass. A layer that somebody watches, or has put something else in place of, is called."""
    calls: list[nn.Module | str] = []
    linear, products = nn.Linear.forward, pairwise._Outer.products
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: calls.append(layer) or linear(layer, x))
    monkeypatch.setattr(pairwise._Outer, "products", lambda self, rows: calls.append("outer products") or products(self, rows))

    class Adapted(nn.Linear):
        pass

    stack, (m, z, *_) = set_execution(stack_of("alphafold2"), checkpoint="updates"), inputs(masked=False)
    block = stack.blocks[0]
    ends = [block.msa_row.attn.out, block.msa_column.attn.out, block.msa_transition.down, block.tri_attn_start.attn.out]
    block.tri_attn_end.attn.out.register_forward_hook(lambda *_: None)
    block.pair_transition.down.__class__ = Adapted
    watched = [block.tri_attn_end.attn.out, block.pair_transition.down]
    out = stack(m.requires_grad_(), z.requires_grad_())
    assert set(ends) | set(watched) | {"outer products"} <= set(calls)
    forward = list(calls)
    calls.clear()
    out[1].sum().backward()
    assert not set(ends) & set(calls) and set(watched) <= set(calls)
    assert calls.count("outer products") == forward.count("outer products")  # for the gradient of the weight


def test_blocks_run_in_place_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slice by slice, on copies; the backward pass goes through the block once more."""
    ways: list[str] = []
    monkeypatch.setattr(checkpointing, "update_", lambda *given, **named: ways.append("in place") or update_(*given, **named))
    monkeypatch.setattr(checkpointing, "update", lambda *given, **named: ways.append("whole") or update(*given, **named))
    stack, (m, z, *_) = set_execution(stack_of("alphafold2"), checkpoint="blocks"), inputs(masked=False)
    before = m.clone(), z.clone()
    out = stack(m.requires_grad_(), z.requires_grad_())
    assert set(ways) == {"in place"} and torch.equal(m, before[0]) and torch.equal(z, before[1])
    updates = len(ways)
    out[1].sum().backward()
    assert ways[updates:] == ["whole"] * updates


@pytest.mark.parametrize("mode", MODES)
def test_backward_twice(mode: str) -> None:
    stack, given = set_execution(stack_of("alphafold2"), checkpoint=mode), inputs(masked=True)
    m, z, *masks = given
    out = stack(m.requires_grad_(), z.requires_grad_(), *masks)
    first, second = (torch.autograd.grad(out[1].square().sum(), [m, z], retain_graph=True) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


def test_an_alignment_without_rows() -> None:
    """As without recomputation: gradients of 0, and not none, which other processes would wait for."""
    stack, z = set_execution(stack_of("alphafold2"), checkpoint="updates"), inputs(masked=False)[1]
    block = stack.blocks[0].msa_row
    out = recomputed(z.new_zeros(0, N_RES, 16), block, z, None, None)
    assert out.shape == (0, N_RES, 16)
    grads = torch.autograd.grad(out.sum(), list(block.parameters()))
    assert all(not grad.any() for grad in grads)


@pytest.mark.parametrize("mode", MODES)
def test_the_order_of_gradients_is_always_the_same(mode: str) -> None:
    """In every process, whether its sample is padded or not: DeepSpeed sums gradients in the order in which they come."""

    def order(masked: bool) -> list[str]:
        stack, names = set_execution(stack_of("alphafold2"), checkpoint=mode), []
        for name, parameter in stack.named_parameters():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: names.append(name))
        given = [x.requires_grad_() if x is not None and x.is_floating_point() else x for x in inputs(masked=masked)]
        out = stack(*given)
        (out[1].square().sum() + out[2].square().sum()).backward()
        return names

    assert order(masked=True) == order(masked=False)


def test_only_what_wants_gradients() -> None:
    """Frozen parameters and inputs get none; the others are not changed by that."""
    given = inputs(masked=True)
    found = []
    for mode in (False, *MODES):
        stack = set_execution(stack_of("alphafold2"), checkpoint=mode)
        stack.requires_grad_(False)
        wanted = [p for name, p in stack.named_parameters() if "tri_mul_out" in name or "outer_product.left" in name]
        assert len(wanted) > 5
        for p in wanted:
            p.requires_grad_(True)
        out = stack(*given)
        found.append(torch.autograd.grad(out[1].square().sum(), wanted))
    for grads in found[1:]:
        for got, expected in zip(grads, found[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("mode", "named"), [("updates", "TriangleMultiplication"), ("blocks", "EvoformerBlock")])
def test_a_parameter_changed_too_early(mode: str, named: str) -> None:
    """The block would be computed again with other parameters than forward: an error, as autograd itself gives, and no wrong gradient."""
    stack, (m, z, *_) = set_execution(stack_of("alphafold2"), checkpoint=mode), inputs(masked=False)
    out = stack(m.requires_grad_(), z.requires_grad_())
    with torch.no_grad():
        stack.blocks[0].tri_mul_out.out.weight.mul_(2.0)
    with pytest.raises(RuntimeError, match=f"{named}: a parameter was changed in place between the forward and the backward"):
        out[1].sum().backward()


def test_products_in_bfloat16() -> None:
    """The backward pass computes in the precision of the forward pass, though it is called outside of autocast."""
    m, z = (x.float().requires_grad_() for x in inputs(masked=False)[:2])

    def gradients(**execution: Any) -> Tensor:
        stack = set_execution(stack_of("alphafold2").float(), **execution)
        found = torch.autograd.grad(stack(m, z)[1].square().mean(), [m, z, *stack.blocks.parameters()], allow_unused=True)
        return torch.cat([g.flatten() for g in found if g is not None])

    exact = gradients()
    plain, *again = (float((gradients(dtype="bf16", checkpoint=mode) - exact).norm()) for mode in (False, *MODES))
    assert all(1e-3 * float(exact.norm()) < error < 1.3 * plain for error in again)


def test_parameters_that_are_elsewhere() -> None:
    """DeepSpeed's ZeRO-3 takes parameters away between uses; then nothing is sliced, and autograd itself asks for them."""
    z = inputs(masked=False)[1]
    stack = stack_of("alphafold2")
    block = stack.blocks[0].tri_mul_out
    block.proj.weight.ds_id = 0  # DeepSpeed's mark
    taken: list[str] = []
    block.register_forward_pre_hook(lambda module, given: taken.append("whole"))
    expected = update(z, block, None)
    torch.testing.assert_close(recomputed(z.requires_grad_(), block, None), expected)
    assert taken == ["whole", "whole"]


def storages(more: list[Tensor]) -> dict[int, int]:
    """Size of the memory behind every tensor that Python knows, and of `more`, by its place."""
    tensors = [x for x in gc.get_objects() if issubclass(type(x), Tensor)] + more
    return {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
