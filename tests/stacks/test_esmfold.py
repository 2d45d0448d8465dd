"""ESMFold's trunk: its block against numbers from running it, the rest against formulas."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evoattn import ConfigError, ESMFoldConfig, ESMFoldTrunk, ShapeError, WeightsError, profile, redraw_, set_execution
from evoattn.primitives import attention as attention_modules
from evoattn.stacks import ESMFoldBlock, ESMFoldRecycled
from evoattn.updates import update
from tests.helpers import assert_golden, assert_golden_gradient, golden
from tests.parity import record
from tests.stacks.esm import ESMFOLD, Arrays, esmfold_block, esmfold_masks

NAME = "esmfold_trunk_block"
TINY = ESMFoldConfig(n_blocks=2, c_s=12, c_z=8, n_head_single=3, n_head_tri_start=2, n_head_tri_end=2, c_hidden_mul=6)
FILE = golden(NAME)


def representations(file: Arrays) -> list[Tensor]:
    return [torch.from_numpy(file[f"in/{name}"]).requires_grad_() for name in "sz"]


def compare(block: nn.Module, file: Arrays, case: str) -> dict[str, float]:
    """The largest errors in the valid region."""
    masks = esmfold_masks(file, case)
    with torch.no_grad():
        out = block(*representations(file), *masks)
    return {
        f"out/{name}": assert_golden(name, got, file[f"{case}/out/{name}"], mask.numpy())
        for name, got, mask in zip("sz", out, masks, strict=True)
    }


@pytest.mark.parametrize("case", ["ones", "rand", "pad"])
def test_outputs(case: str) -> None:
    for part, error in compare(esmfold_block(FILE), FILE, case).items():
        record(NAME, case, part, error)


def test_sub_blocks() -> None:
    """Each on the input that the reference gave it; its two MLPs add their input themselves."""
    block, file = esmfold_block(FILE), FILE
    s, z = (torch.from_numpy(file[f"in/{name}"]) for name in "sz")
    mask, pair_mask = esmfold_masks(file, "rand")
    residues, pairs = mask.numpy(), pair_mask.numpy()

    def check(name: str, got: Tensor, where: np.ndarray) -> Tensor:
        expected = file[f"rand/sub/{name}"]
        record(NAME, "rand", f"sub/{name}", assert_golden(name, got, expected, where))
        return torch.from_numpy(expected)

    check("pair_to_sequence", block.single_attn.pair_bias(block.single_attn.pair_norm(z)), np.ones_like(pairs))
    s = s + check("seq_attention", block.single_attn(s, z, mask), residues)
    s = check("mlp_seq", s + block.single_transition(s), residues)
    z = z + check("sequence_to_pair", block.sequence_to_pair(s), np.ones_like(pairs))
    for name, child in (("tri_mul_out",) * 2, ("tri_mul_in",) * 2, ("tri_att_start", "tri_attn_start"), ("tri_att_end", "tri_attn_end")):
        z = z + check(name, getattr(block, child)(z, pair_mask), pairs)
    z = check("mlp_pair", z + block.pair_transition(z), pairs)
    np.testing.assert_allclose(s, file["rand/out/s"], atol=2e-6)
    np.testing.assert_allclose(z, file["rand/out/z"], atol=3e-6)


def attention_of_openfold(
    q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, backend: str
) -> Tensor:
    """ESMFold's triangles: -1e9 is added to masked logits, so that where all are masked, all keys count alike, and pass gradients on."""
    logits = torch.einsum("...qhd,...khd->...hqk", q * q.shape[-1] ** -0.5, k)
    if mask is not None:
        logits = logits + torch.where(mask, 0.0, -1e9)
    for bias in biases:
        logits = logits + bias
    return torch.einsum("...hqk,...khd->...qhd", logits.softmax(-1), v)


def weighted(out: Sequence[Tensor], file: Arrays, valid: Sequence[Tensor | None] = (None, None)) -> Tensor:
    """The scalar whose gradients the file holds, over all positions or the valid ones."""
    cotangents = [torch.from_numpy(file[f"in/r_{name}"]) for name in "sz"]
    kept = [r if mask is None else r * mask.unsqueeze(-1) for r, mask in zip(cotangents, valid, strict=True)]
    return (out[0] * kept[0]).sum() + (out[1] * kept[1]).sum()


def test_gradients_of_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cotangents reach masked rows, so the reference's rule for these stands in for ours."""
    monkeypatch.setattr(attention_modules, "attention", attention_of_openfold)
    block, inputs = esmfold_block(FILE), representations(FILE)
    out = block(*inputs, *esmfold_masks(FILE, "rand"))
    for name, got in zip("sz", torch.autograd.grad(weighted(out, FILE), inputs), strict=True):
        record(NAME, "rand", f"grad/{name}", assert_golden_gradient(name, got, FILE[f"rand/grad/{name}"]))


def test_gradients_under_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of s at real residues, and of z everywhere: the file has it so."""
    monkeypatch.setattr(attention_modules, "attention", attention_of_openfold)
    block, inputs, masks = esmfold_block(FILE), representations(FILE), esmfold_masks(FILE, "pad")
    out = block(*inputs, *masks)
    for name, got in zip("sz", torch.autograd.grad(weighted(out, FILE, (masks[0], None)), inputs), strict=True):
        record(NAME, "pad", f"grad_valid/{name}", assert_golden_gradient(name, got, FILE[f"pad/grad_valid/{name}"]))


@pytest.mark.parametrize("case", ["rand", "pad"])
def test_the_rule_for_masked_rows_changes_no_gradient_of_what_is_valid(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    block, masks = esmfold_block(FILE), esmfold_masks(FILE, case)
    gradients = []
    for rule in (attention_modules.attention, attention_of_openfold):
        monkeypatch.setattr(attention_modules, "attention", rule)
        inputs = [*representations(FILE), *block.parameters()]
        gradients.append(torch.autograd.grad(weighted(block(*inputs[:2], *masks), FILE, masks), inputs))
    for ours, theirs in zip(*gradients, strict=True):
        assert_golden_gradient("gradient", ours, theirs.numpy())


def test_gradients_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays of a gradient have the layout of the parameters, so loading them as parameters lays them out as ours."""
    monkeypatch.setattr(attention_modules, "attention", attention_of_openfold)
    block, expected = esmfold_block(FILE), esmfold_block(FILE, "rand/grad_param/")
    weighted(block(*representations(FILE), *esmfold_masks(FILE, "rand")), FILE).backward()
    for (name, parameter), (_, gradient) in zip(block.named_parameters(), expected.named_parameters(), strict=True):
        assert parameter.grad is not None
        record(NAME, "rand", f"grad_param/{name}", assert_golden_gradient(name, parameter.grad, gradient.detach().numpy()))


# --- wrong blocks ------------------------------------------------------------------------------------------------------------------------


def with_profile(**switches: object) -> Callable[[], nn.Module]:
    """The switches of the family, save these; the parameters fit, so they are loaded into the right block first."""

    def build() -> nn.Module:
        wrong = ESMFoldBlock(ESMFoldConfig(**ESMFOLD, profile=replace(profile("esmfold"), **switches))).eval()
        wrong.load_state_dict(esmfold_block(FILE).state_dict())
        return wrong

    return build


def hooked(child: str, change: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """The block with the output of a layer changed."""

    def build() -> nn.Module:
        block = esmfold_block(FILE)
        block.get_submodule(child).register_forward_hook(lambda module, arguments, out: change(out))
        return block

    return build


def packed_otherwise() -> nn.Module:
    """q of all heads, k of all heads, v of all heads, as others pack them."""
    block = esmfold_block(FILE)
    packed = torch.from_numpy(FILE["param/seq_attention.proj.weight"])
    for layer, part in zip((block.single_attn.attn.q, block.single_attn.attn.k, block.single_attn.attn.v), packed.chunk(3), strict=True):
        layer.weight.data = part
    return block


def pair_first() -> nn.Module:
    """z learns from s before s learns from z."""
    block = esmfold_block(FILE)

    def forward(s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor) -> tuple[Tensor, Tensor]:
        learned = update(z, block.sequence_to_pair, s, mask)
        s = update(update(s, block.single_attn, z, mask, pair_mask), block.single_transition, mask)
        return s, block.update_pair(learned, pair_mask)

    block.forward = forward
    return block


def incoming_exchanged() -> nn.Module:
    """a and b of the incoming edges exchanged, as AlphaFold 2's files have them."""
    block = esmfold_block(FILE)
    for layer in (block.tri_mul_in.proj, block.tri_mul_in.gate):
        for parameter in layer.parameters():
            parameter.data = torch.cat(parameter.data.chunk(2)[::-1])
    return block


MUTANTS = {
    "ending bias ik": with_profile(ending_bias="ik"),
    "ending bias jk": with_profile(ending_bias="jk"),
    "transition gelu": with_profile(transition="gelu"),
    "mean over the third residue": with_profile(triangle_mul_scale="mean"),
    "q, k and v packed otherwise": packed_otherwise,
    "sequence to pair before the sequence": pair_first,
    "incoming a and b exchanged": incoming_exchanged,
    "sequence to pair transposed": hooked("sequence_to_pair", lambda delta: delta.transpose(-2, -3)),
    "q and k of sequence to pair exchanged": hooked("sequence_to_pair.proj", lambda out: torch.cat(out.chunk(2, -1)[::-1], -1)),
    "no bias from the pairs": hooked("single_attn.pair_bias", lambda bias: 0 * bias),
    "bias from the pairs transposed": hooked("single_attn.pair_bias", lambda bias: bias.transpose(-2, -3)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_blocks_are_rejected(mutant: str) -> None:
    with pytest.raises(AssertionError, match="off by up to"):
        compare(MUTANTS[mutant](), FILE, "rand")


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"transition": "swiglu"}, "transition is 'swiglu' and must be 'relu'"),
        ({"single_q_bias": True}, "single_q_bias is True and must be False"),
        ({"single_bias": False}, "single_bias is False and must be True"),
        ({"triangle_attn_bias": False}, "triangle_attn_bias is False"),
        ({"triangle_mul_bias": False}, "triangle_mul_bias is False"),
        ({"ending_bias": "ik"}, "ending_bias is 'ik' and must be 'ki'"),
    ],
)
def test_another_profile_is_refused(switches: dict, words: str) -> None:
    with pytest.raises(WeightsError, match=words):
        esmfold_block(FILE, profile=replace(profile("esmfold"), **switches))


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"transition": "swiglu"}, "missing"),
        ({"single_q_bias": True}, "missing"),
        ({"single_bias": False}, "unexpected"),
        ({"triangle_attn_bias": False}, "unexpected"),
        ({"triangle_mul_bias": False}, "unexpected"),
    ],
)
def test_switches_that_change_shapes_do_not_load(switches: dict, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nobody compared profiles."""
    monkeypatch.setattr(import_module("evoattn.weights.identify"), "check_profile", lambda model, identity: None)
    with pytest.raises(WeightsError, match=f"{words}: [1-9]"):
        esmfold_block(FILE, profile=replace(profile("esmfold"), **switches))


# --- dropout -----------------------------------------------------------------------------------------------------------------------------


def test_dropout_is_shared_along_the_axes_of_esmfold() -> None:
    """``row_drop`` has one mask for all j, ``col_drop`` one for all i; incoming multiplication takes the second, unlike AlphaFold 2."""
    block = ESMFoldBlock(replace(TINY, dropout_pair=0.5)).train()
    axes: dict[nn.Module, int] = {}

    def watched(x: Tensor, child: nn.Module, *inputs: Tensor, drop: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if drop is not None:
            dropped = drop(torch.ones(6, 6, 8))
            (axes[child],) = (axis for axis in (-3, -2) if torch.equal(dropped, dropped.narrow(axis, 0, 1).expand_as(dropped)))
        return update(x, child, *inputs)

    block.update = watched
    block(torch.randn(6, 12), torch.randn(6, 6, 8))
    named = [block.tri_mul_out, block.tri_mul_in, block.tri_attn_start, block.tri_attn_end]
    assert [axes.pop(child) for child in named] == [-2, -3, -2, -3]
    assert not axes


# --- the trunk ---------------------------------------------------------------------------------------------------------------------------


def trunk(**changes: object) -> ESMFoldTrunk:
    model = redraw_(ESMFoldTrunk(replace(TINY, **changes)), seed=1).double().eval()
    return model


def inputs(n: int = 6, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    s, z = torch.randn(*batch, n, 12, dtype=torch.float64), torch.randn(*batch, n, n, 8, dtype=torch.float64)
    mask = torch.ones(*batch, n, dtype=torch.bool)
    mask[..., 2] = mask[..., -1] = False
    return s, z, mask


def embedded(model: ESMFoldTrunk, s: Tensor, z: Tensor, mask: Tensor, index: Tensor, recycled: ESMFoldRecycled) -> tuple[Tensor, Tensor]:
    """What the blocks get, pair by pair."""
    s = s + model.recycled_s_norm(recycled.s)
    z = z + model.recycled_z_norm(recycled.z)
    boundaries = np.linspace(3.375, 21.375, 14)
    for i in range(len(s)):
        for j in range(len(s)):
            offset = min(max(int(index[j] - index[i]), -32), 32) + 33 if mask[i] and mask[j] else 0
            z[i, j] += model.relative_position.weight[offset]
            distance = 0.0 if recycled.positions is None else float((recycled.positions[i] - recycled.positions[j]).norm())
            z[i, j] += model.recycled_distance.weight[int((distance > boundaries).sum())]
    return s, z


@pytest.mark.parametrize("coordinates", [False, True])
def test_trunk_equals_its_formulas(coordinates: bool) -> None:
    model, (s, z, mask), index = trunk(), inputs(), torch.tensor([0, 1, 2, 40, 41, 90])
    recycled = ESMFoldRecycled(*(torch.randn_like(x) for x in (s, z)), 9 * torch.randn(6, 3, dtype=torch.float64) if coordinates else None)
    x, y = embedded(model, s, z.clone(), mask, index, recycled)
    for block in model.blocks:
        x, y = block(x, y, mask, mask[:, None] & mask)
    for context in (torch.enable_grad(), torch.no_grad()):  # without gradients it works in place
        with context:
            got = model(s, z, mask, residue_index=index, recycled=recycled)
        torch.testing.assert_close(got, (x, y), rtol=1e-9, atol=1e-9)


def test_the_first_pass_recycles_zeros() -> None:
    model, (s, z, mask) = trunk(), inputs()
    torch.testing.assert_close(model(s, z, mask), model(s, z, mask, recycled=ESMFoldRecycled(torch.zeros_like(s), torch.zeros_like(z))))
    torch.testing.assert_close(model(s, z, mask), model(s, z, mask, residue_index=torch.arange(6)))


def test_padding_and_batches_change_nothing() -> None:
    model, (s, z, mask) = trunk(), inputs(6, 2)
    index = torch.arange(6).expand(2, 6)
    got = model(s, z, mask, residue_index=index)
    for entry in range(2):
        torch.testing.assert_close([x[entry] for x in got], list(model(s[entry], z[entry], mask[entry])))
    kept = torch.tensor([0, 1, 3, 4])
    x, y = model(s[..., kept, :], z[..., kept[:, None], kept, :], residue_index=index[..., kept])
    torch.testing.assert_close(got[0][..., kept, :], x)
    torch.testing.assert_close(got[1][..., kept[:, None], kept, :], y)
    pairs = mask[:, None] & mask[..., None]
    filled = model(s.masked_fill(~mask[..., None], torch.nan), z.masked_fill(~pairs[..., None], torch.inf), mask)
    assert all(x.isfinite().all() for x in filled)
    torch.testing.assert_close(filled[0][..., kept, :], x)


def test_inputs_stay_and_checkpoints_change_nothing() -> None:
    model, (s, z, mask) = trunk(), inputs()
    before = s.clone(), z.clone()
    with torch.no_grad():
        model(s, z, mask)
    assert torch.equal(s, before[0]) and torch.equal(z, before[1])
    gradients = []
    for checkpoint in (False, True):
        set_execution(model, checkpoint=checkpoint)
        out = model(s, z, mask)
        gradients.append(torch.autograd.grad(out[0].sum() + out[1].square().sum(), list(model.parameters()), allow_unused=True))
    for plain, again in zip(*gradients, strict=True):
        assert (plain is None) == (again is None)
        assert plain is None or torch.equal(plain, again)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"s": torch.zeros(6, 13, dtype=torch.float64)}, "s has shape .*c_s = 12"),
        ({"z": torch.zeros(5, 5, 8, dtype=torch.float64)}, "z has shape .*does not fit s"),
        ({"residue_index": torch.zeros(5, dtype=torch.long)}, r"residue_index is torch.int64 of shape \(5,\); .*= \(6,\)"),
        ({"residue_index": torch.zeros(6)}, "residue_index is torch.float32"),
        ({"recycled": ((5, 12), (6, 6, 8))}, r"recycled.s has shape \(5, 12\); expected \(6, 12\)"),
        ({"recycled": ((6, 12), (6, 6, 7))}, "recycled.z has shape .*c_z = 8"),
        ({"recycled": ((6, 12), (6, 6, 8), (6, 2))}, r"recycled.positions has shape \(6, 2\); expected \(6, 3\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict, words: str, no_type_checks: None) -> None:
    s, z, mask = inputs()
    if "recycled" in change:
        change = {"recycled": ESMFoldRecycled(*(torch.zeros(shape) for shape in change["recycled"]))}
    with pytest.raises(ShapeError, match=words):
        trunk()(**{"s": s, "z": z, "mask": mask, **change})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"c_z": 9, "n_head_tri_start": 1, "n_head_tri_end": 1}, "c_z is 9; it must be even"),
        ({"n_head_single": 5}, "n_head_single = 5 does not divide c_s = 12"),
        ({"recycle_bins": 1}, "recycle_bins is 1; it must be an integer of at least 2"),
        ({"recycle_min": 30.0}, "recycle_min is 30.0"),
        ({"max_relative": -1}, "max_relative is -1"),
    ],
)
def test_configs_that_make_no_sense_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(TINY, **changes)
