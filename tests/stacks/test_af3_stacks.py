"""Pairformer and MSA module, for the profile of each system: padding, batches, backends, in place, checkpointing, gradients, refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import evoattn.stacks.blocks as stack_blocks
from evoattn import (
    ConfigError,
    MSAModule,
    MSAModuleConfig,
    PairformerConfig,
    PairformerStack,
    ShapeError,
    profile,
    set_execution,
)
from evoattn.primitives import redraw_
from evoattn.updates import SlicedBlock, update_

PAIR: dict[str, Any] = {"n_blocks": 2, "c_z": 8, "n_head_tri_start": 2, "n_head_tri_end": 4, "c_hidden_mul": 6, "pair_transition_n": 2}
SYSTEMS = ("alphafold3", "boltz", "openfold3_transposed", "rosettafold3")  # Protenix has no switch that these have not
N_SEQ, N_RES = 4, 6


@dataclass(frozen=True)
class Kind:
    """A stack with its inputs: x is the single or the MSA representation."""

    stack: type[PairformerStack] | type[MSAModule]
    config: PairformerConfig | MSAModuleConfig
    x: tuple[int, ...]

    def build(self, dtype: torch.dtype = torch.float64) -> PairformerStack | MSAModule:
        """Without a parameter at zero, in evaluation mode."""
        return redraw_(self.stack(self.config), seed=1).to(dtype).eval()  # type: ignore[arg-type, return-value]

    def inputs(self, *batch: int) -> list[Tensor]:
        """Both representations and their masks, with holes anywhere."""
        x, z = torch.randn(*batch, *self.x, dtype=torch.float64), torch.randn(*batch, N_RES, N_RES, 8, dtype=torch.float64)
        return [x, z, torch.rand(x.shape[:-1]) > 0.2, torch.rand(z.shape[:-1]) > 0.2]


KINDS = {
    f"{name} {system}": Kind(stack, config(system), x)
    for system in SYSTEMS
    for name, stack, config, x in (
        (
            "pairformer", PairformerStack, lambda system: PairformerConfig(**PAIR, c_s=12, n_head_single=3, profile=profile(system)),
            (N_RES, 12),
        ),
        (
            "msa", MSAModule,
            lambda system: MSAModuleConfig(**PAIR, c_m=10, n_head_msa=2, c_head_msa=3, c_hidden_opm=4, profile=profile(system)),
            (N_SEQ, N_RES, 10),
        ),
    )
}  # fmt: skip


def outputs(stack: nn.Module, *inputs: Tensor | None) -> list[Tensor]:
    """Both representations of the whole stack, whatever its forward returns."""
    return list(stack.run_blocks(*inputs))  # type: ignore[operator]


def assert_close(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-11)


def gradients(stack: nn.Module, inputs: Sequence[Tensor], out: Sequence[Tensor]) -> list[Tensor]:
    """Of a weighted sum of the outputs, in the inputs and the parameters."""
    total = torch.stack([(x * torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape)).sum() for x in out]).sum()
    return list(torch.autograd.grad(total, [*inputs, *stack.parameters()], materialize_grads=True))


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_nothing(name: str) -> None:
    """NaN in padded residues and sequences, one of them in the middle: no valid output and no gradient notices."""
    kind = KINDS[name]
    stack, (x, z, mask, pair_mask) = kind.build(), kind.inputs()
    places = torch.tensor([0, 1, 3, 4, 5, 6])
    rows = torch.tensor([0, 2, 3, 4]) if x.dim() == 3 else None

    def spread(y: Tensor, fill: float, *at: tuple[int, Tensor]) -> Tensor:
        for axis, index in at:
            shape = list(y.shape)
            shape[axis] = 8 if index is places else 6
            y = torch.full(shape, fill, dtype=y.dtype).index_copy(axis, index, y)
        return y

    of_x = ((0, places),) if rows is None else ((0, rows), (1, places))
    of_z = ((0, places), (1, places))
    given = [x.requires_grad_(), z.requires_grad_()]
    wide = [spread(y.detach(), torch.nan, *at).requires_grad_() for y, at in zip(given, (of_x, of_z), strict=True)]
    masks = [spread(y.double(), 0.0, *at).bool() for y, at in ((mask, of_x), (pair_mask, of_z))]
    results = []
    for inputs, both, crop in ((given, (mask, pair_mask), False), (wide, masks, True)):
        out = outputs(stack, *inputs, *both)
        assert all(y.isfinite().all() for y in out)
        if crop:
            out = [y.index_select(0, at[0][1]) if len(at) == 1 else y.index_select(0, at[0][1]).index_select(1, at[1][1])
                   for y, at in zip(out, (of_x, of_z), strict=True)]  # fmt: skip
        _, _, *of_parameters = gradients(stack, inputs, out)
        results.append([*out, *of_parameters])
    assert_close(*results)


@pytest.mark.parametrize("name", KINDS)
def test_batch_equals_a_loop(name: str) -> None:
    stack, inputs = KINDS[name].build(), KINDS[name].inputs(2, 2)
    with torch.no_grad():
        together = outputs(stack, *inputs)
        apart = [outputs(stack, *(x[i, j] for x in inputs)) for i in range(2) for j in range(2)]
    assert_close([x.flatten(0, 1) for x in together], [torch.stack(entries) for entries in zip(*apart, strict=True)])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("backend", ["streaming", "auto"])
def test_backends_agree(name: str, backend: str) -> None:
    stack, (x, z, *masks) = KINDS[name].build(), KINDS[name].inputs(2)
    given, results = [x.requires_grad_(), z.requires_grad_()], []
    for asked in ("reference", backend):
        out = outputs(set_execution(stack, backend=asked), *given, *masks)
        results.append([*out, *gradients(stack, given, out)])
    assert_close(*results)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("length", "masked"), [(1, True), (4, False)])
def test_in_place_equals_forward(name: str, length: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(x: Tensor, block: SlicedBlock, *more: Any, drop: Any = None) -> Tensor:
        return update_(x, block, *more, memory=length * block.slice_bytes(x, x.element_size()))

    stack, inputs = KINDS[name].build(), KINDS[name].inputs(2)
    given = inputs if masked else [*inputs[:2], None, None]
    with torch.no_grad():
        expected = stack(*given)
    monkeypatch.setattr(stack_blocks, "update_", update)
    z = given[1]
    got = stack.run_(*given)
    tuples = [out if isinstance(out, tuple) else (out,) for out in (got, expected)]
    assert_close(*tuples)
    assert tuples[0][-1] is z and not any(out.requires_grad for out in tuples[0])


@pytest.mark.parametrize("name", ["pairformer alphafold3", "msa rosettafold3"])
def test_checkpointing_changes_no_gradient(name: str) -> None:
    """Under dropout too."""
    stack, (x, z, *masks) = KINDS[name].build().train(), KINDS[name].inputs()
    given, results = [x.requires_grad_(), z.requires_grad_()], []
    for checkpoint in (False, True):
        torch.manual_seed(3)
        out = outputs(set_execution(stack, checkpoint=checkpoint), *given, *masks)
        results.append([*out, *gradients(stack, given, out)])
    assert_close(*results)


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    """But what only updates an m that nobody reads, in the last of the blocks whose outer product comes first."""
    stack, inputs = KINDS[name].build(), KINDS[name].inputs()
    out = stack(*inputs)
    (out if isinstance(out, Tensor) else out[0] + out[1].mean()).square().mean().backward()
    without = {parameter for parameter, x in stack.named_parameters() if x.grad is None}
    unread = {parameter for parameter, _ in stack.named_parameters() if parameter.startswith("blocks.1.msa_")}
    assert without == (unread if name == "msa alphafold3" else set())


@pytest.mark.parametrize("name", ["pairformer alphafold3", "msa alphafold3", "msa rosettafold3"])
def test_no_block_is_the_identity(name: str) -> None:
    kind = KINDS[name]
    x, z, *masks = kind.inputs()
    assert_close(outputs(replace(kind, config=replace(kind.config, n_blocks=0)).build(), x, z, *masks), [x, z])


def test_no_rows() -> None:
    """An alignment of no rows updates the pair representation by itself."""
    stack, (m, z, _, pair_mask) = KINDS["msa alphafold3"].build(), KINDS["msa alphafold3"].inputs()
    masked = stack(m, z, torch.zeros(m.shape[:-1], dtype=torch.bool), pair_mask)
    assert_close([stack(m[:0], z, None, pair_mask)], [masked])


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("pairformer alphafold3", lambda s, z, a, b: (s[..., :-1], z, a, b), r"PairformerStack: s has shape \(6, 11\).*c_s = 12"),
        ("pairformer alphafold3", lambda s, z, a, b: (s[1:], z, None, b), r"PairformerStack: z has shape .*does not fit s \(5, 12\)"),
        ("pairformer alphafold3", lambda s, z, a, b: (s, z, a[1:], b), r"PairformerStack: mask has shape \(5,\); expected .*\(6,\)"),
        ("pairformer alphafold3", lambda s, z, a, b: (s, z, a, b.int()), r"PairformerStack: pair_mask has dtype torch\.int32"),
        ("msa alphafold3", lambda m, z, a, b: (m, z[None], a, b[None]), r"MSAModule: z has shape \(1, 6, 6, 8\).*batch axes"),
        ("msa alphafold3", lambda m, z, a, b: (m[0], z, a[0], b), r"MSAModule: m has shape \(6, 10\)"),
    ],
)
def test_bad_input(name: str, change: Any, words: str) -> None:
    bad = change(*KINDS[name].inputs())
    for call in (KINDS[name].build(), KINDS[name].build().run_):
        with pytest.raises(ShapeError, match=f"(?s){words}"):
            call(*bad)


def test_embedding_of_the_msa(no_type_checks: None) -> None:
    """Lines 1 to 4 of algorithm 8."""
    kind = KINDS["msa boltz"]
    stack = replace(kind, config=replace(kind.config, c_msa_feat=5, c_single_inputs=7)).build()
    assert isinstance(stack, MSAModule)
    feat, single = torch.randn(2, N_SEQ, N_RES, 5, dtype=torch.float64), torch.randn(2, N_RES, 7, dtype=torch.float64)
    m = stack.embed(feat, single)
    row = torch.einsum("bnf,cf->bnc", feat[:, 2], stack.msa_feat.weight) + torch.einsum("bnf,cf->bnc", single, stack.single_inputs.weight)
    assert_close([m[:, 2]], [row])
    with pytest.raises(ShapeError, match=r"single_inputs has shape \(2, 5, 7\).*expected \(2, 6, 7\)"):
        stack.embed(feat, single[:, :-1])
    plain = kind.build()
    assert isinstance(plain, MSAModule)
    with pytest.raises(ConfigError, match=r"config\.c_msa_feat and config\.c_single_inputs are None; give the widths"):
        plain.embed(feat, single)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        (PairformerConfig, {"c_s": 0}, "PairformerConfig: c_s is 0"),
        (PairformerConfig, {"n_head_single": 7}, "PairformerConfig: n_head_single = 7 does not divide c_s = 384"),
        (PairformerConfig, {"single_pair_as": ("keys", "keys")}, "PairformerConfig: single_pair_as is"),
        (PairformerConfig, {"n_head_tri_end": 3}, "PairformerConfig: n_head_tri_end = 3 does not divide c_z = 128"),
        (MSAModuleConfig, {"n_head_msa": 7}, "MSAModuleConfig: n_head_msa = 7 does not divide c_m = 64"),
        (MSAModuleConfig, {"c_head_msa": 0}, "MSAModuleConfig: c_head_msa is 0"),
        (MSAModuleConfig, {"dropout_msa": 1}, "MSAModuleConfig: dropout_msa is 1"),
        (MSAModuleConfig, {"c_msa_feat": 34}, "MSAModuleConfig: c_msa_feat is 34 and c_single_inputs None; .*give both widths"),
    ],
)
def test_bad_config(config: Any, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**changes)
