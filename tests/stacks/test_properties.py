"""What must hold for any stack, whatever its parameters: padding, permutation, batches, backends, sizes at the edge."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from evoattn import PROFILES, EvoformerBlock, EvoformerConfig, ShapeError, set_execution
from tests.stacks.cases import CONFIGS, EXTRA, SMALL, build, outputs, representations, scattered_masks

ROWS = [0, 1, 3, 4, 5]  # where the rows and columns of the alignment stand among padding
COLUMNS = [0, 1, 2, 4, 5, 6, 8]


def at(x: Tensor, *axes: tuple[int, Sequence[int]]) -> Tensor:
    """`x` at the given indices of the given axes."""
    for axis, index in axes:
        x = x.index_select(axis, torch.tensor(index))
    return x


def spread(x: Tensor, fill: float | bool, *axes: tuple[int, Sequence[int]]) -> Tensor:
    """`x` with its entries moved to the given indices of the given axes, and `fill` between and after them."""
    for axis, index in axes:
        shape = list(x.shape)
        shape[axis] = max(index) + 2
        x = torch.full(shape, fill, dtype=x.dtype).index_copy(axis, torch.tensor(index), x)
    return x


def gradients(out: Sequence[Tensor], cotangents: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[Tensor]:
    """Of sum(out * cotangents); zeros where nothing depends on an input."""
    total = torch.stack([(y * r).sum() for y, r in zip(out, cotangents, strict=True)]).sum()
    return list(torch.autograd.grad(total, wanted, materialize_grads=True))


def assert_close(name: str, got: Tensor, expected: Tensor) -> None:
    """To rounding in float64; the scale is that of the expected tensor, or of the outputs (about 1) where it is tiny."""
    allowed = 1e-11 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(got, expected, rtol=0.0, atol=allowed, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("fill", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", CONFIGS)
def test_padding_changes_nothing(name: str, fill: float) -> None:
    """Rows and columns full of NaN, some of them in the middle: no valid output, no gradient of an input or a parameter notices."""
    stack = build(CONFIGS[name])
    m, z = representations(stack.config)
    msa_mask, pair_mask = scattered_masks(m)
    r = [torch.randn_like(x) for x in outputs(stack, m, z)]
    inputs = [m.requires_grad_(), z.requires_grad_()]
    plain = outputs(stack, m, z, msa_mask, pair_mask)
    expected = gradients(plain, r, [*inputs, *stack.parameters()])

    rows, columns, both = (0, ROWS), (1, COLUMNS), ((0, COLUMNS), (1, COLUMNS))
    padded = [spread(m.detach(), fill, rows, columns).requires_grad_(), spread(z.detach(), fill, *both).requires_grad_()]
    out = outputs(stack, *padded, spread(msa_mask, False, rows, columns), spread(pair_mask, False, *both))
    assert all(x.isfinite().all() for x in out)
    places = {3: [(rows, columns), both, ((0, COLUMNS),)], 1: [both]}[len(out)]
    valid = [at(x, *place) for x, place in zip(out, places, strict=True)]
    for index, (got, want) in enumerate(zip(valid, plain, strict=True)):
        assert_close(f"output {index}", got, want)
    grad_m, grad_z, *of_parameters = gradients(valid, r, [*padded, *stack.parameters()])
    found = [at(grad_m, rows, columns), at(grad_z, *both), *of_parameters]
    names = ["m", "z", *(name for name, _ in stack.named_parameters())]
    for name, got, want in zip(names, found, expected, strict=True):
        assert_close(f"gradient of {name}", got, want)
    assert grad_m.isfinite().all() and grad_z.isfinite().all()


@pytest.mark.parametrize("name", CONFIGS)
def test_order_of_sequences(name: str) -> None:
    """Permuting all rows but the query permutes those rows of m, and nothing else."""
    stack = build(CONFIGS[name])
    m, z = representations(stack.config, n_seq=6)
    msa_mask, pair_mask = scattered_masks(m)
    order = torch.tensor([0, 4, 1, 5, 3, 2])
    *msa, pair = stack.run_blocks(m, z, msa_mask, pair_mask)
    *permuted, same = stack.run_blocks(m[order], z, msa_mask[order], pair_mask)
    assert_close("pair", same, pair)
    assert_close("msa", permuted[0], msa[0][order])
    assert not torch.allclose(permuted[0], msa[0])


@pytest.mark.parametrize("batch", [(3,), (2, 2)])
@pytest.mark.parametrize("name", CONFIGS)
def test_batch_equals_a_loop(name: str, batch: tuple[int, ...]) -> None:
    stack = build(CONFIGS[name])
    m, z = representations(stack.config, n_seq=4, n_res=5, batch=batch)
    msa_mask, pair_mask = scattered_masks(m)
    r = [torch.randn_like(x) for x in outputs(stack, m, z)]
    wanted = [m.requires_grad_(), z.requires_grad_(), *stack.parameters()]
    together = outputs(stack, m, z, msa_mask, pair_mask)
    flat = [x.flatten(0, len(batch) - 1) for x in (m, z, msa_mask, pair_mask)]
    one_by_one = [outputs(stack, *entry) for entry in zip(*flat, strict=True)]
    apart = [torch.stack(entries).unflatten(0, batch) for entries in zip(*one_by_one, strict=True)]
    for got, want in zip(together, apart, strict=True):
        assert_close("output", got, want)
    for got, want in zip(gradients(together, r, wanted), gradients(apart, r, wanted), strict=True):
        assert_close("gradient", got, want)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("backend", ["sdpa", "streaming"])
def test_backends_agree(name: str, backend: str) -> None:
    """In float64, where only rounding may differ, forward and backward."""
    stack = build(CONFIGS[name])
    m, z = representations(stack.config, n_seq=5, n_res=9)
    masks = scattered_masks(m)
    wanted = [m.requires_grad_(), z.requires_grad_(), *stack.parameters()]
    results = []
    for asked in ("reference", backend):
        out = outputs(set_execution(stack, backend=asked), m, z, *masks)
        results.append([*out, *gradients(out, [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view(x.shape) for x in out], wanted)])
    for want, got in zip(*results, strict=True):
        assert_close("output or gradient", got, want)


@pytest.mark.parametrize(("n_seq", "n_res"), [(1, 7), (4, 1), (1, 1), (3, 17)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_lengths_at_the_edge(name: str, n_seq: int, n_res: int, masked: bool) -> None:
    """A single sequence, a single residue: finite, forward and backward."""
    stack = build(CONFIGS[name], torch.float32)
    m, z = (x.requires_grad_() for x in representations(stack.config, n_seq, n_res, dtype=torch.float32))
    masks = scattered_masks(m) if masked else (None, None)
    out = outputs(stack, m, z, *masks)
    assert all(x.isfinite().all() for x in out)
    assert all(g.isfinite().all() for g in gradients(out, [torch.ones_like(x) for x in out], [m, z, *stack.parameters()]))


def test_no_extra_sequences() -> None:
    """No row and only masked rows are the same: both give the outer product's bias over its eps, as AlphaFold 2's padding does."""
    stack = build(EXTRA)
    m, z = representations(EXTRA, n_seq=2)
    masked = stack(m, z, torch.zeros(2, 7, dtype=torch.bool))
    assert_close("pair", stack(m[:0], z, torch.ones(0, 7, dtype=torch.bool)), masked)
    assert_close("pair", stack(m[:0], z), masked)


def test_no_block_is_the_identity() -> None:
    stack = build(replace(SMALL, n_blocks=0))
    m, z = representations(SMALL)
    out = stack(m, z)
    assert torch.equal(out[0], m) and torch.equal(out[1], z) and torch.equal(out[2], stack.single(m[0]))


def test_parameter_count() -> None:
    """OpenFold's Evoformer block has as many at AlphaFold 2's sizes, and 48 of them; its extra-MSA stack has 4."""
    block = EvoformerBlock(EvoformerConfig())
    assert sum(p.numel() for p in block.parameters()) == 1_829_952
    assert (EvoformerConfig().n_blocks, EvoformerConfig.extra_msa().n_blocks) == (48, 4)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, z, mm, zm: (m[..., :-1], z, mm, zm), r"m has shape \(5, 7, 31\).*c_m = 32"),
        (lambda m, z, mm, zm: (m, z[..., :-1], mm, zm), r"z has shape \(7, 7, 15\).*c_z = 16"),
        (lambda m, z, mm, zm: (m, z[:, :-1], mm, zm), r"z has shape \(7, 6, 16\).*equal length"),
        (lambda m, z, mm, zm: (m, z[:6, :6], mm, zm), r"z has shape \(6, 6, 16\), which does not fit m \(5, 7, 32\).*\(7, 7, 16\)"),
        (lambda m, z, mm, zm: (torch.stack([m, m]), z, None, None), r"z has shape \(7, 7, 16\).*expected \(2, 7, 7, 16\).*batch axes"),
        (lambda m, z, mm, zm: (m, z[None], mm, zm[None]), r"z has shape \(1, 7, 7, 16\).*expected \(7, 7, 16\)"),
        (lambda m, z, mm, zm: (m, z, mm[:, :-1], zm), r"msa_mask has shape \(5, 6\); expected .*\(5, 7\)"),
        (lambda m, z, mm, zm: (m, z, mm, zm[0]), r"pair_mask has shape \(7,\); expected .*\(7, 7\)"),
        (lambda m, z, mm, zm: (m, z, mm.float(), zm), r"msa_mask has dtype torch.float32.*mask.bool\(\)"),
        (lambda m, z, mm, zm: (m, z, mm, zm.long()), r"pair_mask has dtype torch.int64"),
        (lambda m, z, mm, zm: (m[0], z, mm[0], zm), r"m has shape \(7, 32\); expected \[\*batch, N_seq, N_res, c_m\]"),
        (lambda m, z, mm, zm: (m.long(), z, mm, zm), r"m has dtype torch.int64.*floating"),
        (lambda m, z, mm, zm: (m[:0], z, mm[:0], zm), r"m has shape \(0, 7, 32\), an alignment of no rows.*query"),
    ],
)
@pytest.mark.parametrize("profile", ["alphafold2", "alphafold2_multimer"])
def test_bad_input(change, words: str, profile: str) -> None:
    stack = build(replace(SMALL, profile=PROFILES[profile]))
    m, z = representations(SMALL)
    bad = change(m, z, *scattered_masks(m))
    with pytest.raises(ShapeError, match=f"(?s)EvoformerStack: {words}"):
        stack(*bad)
    if bad[0].shape[0]:  # a block by itself refuses the same, but for the missing query
        with pytest.raises(ShapeError, match=f"(?s)EvoformerBlock: {words}"):
            stack.blocks[0](*bad)


def test_inputs_are_not_changed() -> None:
    stack = build(SMALL)
    inputs = [*representations(SMALL)]
    inputs += scattered_masks(inputs[0])
    inputs[0][1, 2] = math.nan
    inputs[2][1, 2] = False
    before = [x.clone() for x in inputs]
    stack(*inputs)
    assert all(torch.equal(x.nan_to_num(7.0) if x.is_floating_point() else x, y.nan_to_num(7.0) if y.is_floating_point() else y)
               for x, y in zip(inputs, before, strict=True))  # fmt: skip
