"""Blocks and stacks of AlphaFold 3 and its kin against numbers from running each: outputs, sub-blocks, gradients."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from evoattn import MSAModule, MSAModuleConfig, PairformerConfig, PairformerStack, load_weights
from evoattn.primitives import attention as attention_modules
from tests.helpers import Read, assert_golden, assert_golden_gradient
from tests.parity import record
from tests.stacks.families import AF3_MSA, AF3_SINGLE, MAIN_CASE, REFERENCES, UPDATES_Z, Arrays, Reference

WITH_PARAMETER_GRADIENTS = [
    "af3_pairformer_block", "af3_msa_stack_block", "boltz2_pairformer_layer", "boltz2_msa_layer", "protenix_pairformer_block",
    "openfold3_pairformer_block", "rf3_pairformer_block",
]  # fmt: skip
WITH_ONES = [
    "af3_pairformer_block", "af3_msa_stack_block", "boltz1_pairformer_layer", "boltz2_pairformer_layer", "boltz2_msa_layer",
    "protenix_pairformer_block", "openfold3_pairformer_block", "rf3_pairformer_block",
]  # fmt: skip
PADDED = [name for name in REFERENCES if not name.startswith("rf3")]
CASES = [*((name, "ones") for name in WITH_ONES), *((name, case) for name in PADDED for case in ("rand", "pad"))]
TURNED = ("protenix", "openfold3")
"""Systems whose ending node is the starting one of the transposed z, and so is its output."""


def outputs(reference: Reference, arrays: Arrays, case: str, **changes: object) -> list[Tensor]:
    block = reference.load(reference.build(**changes), arrays)
    with torch.no_grad():
        return list(block(*reference.inputs(arrays), *reference.given_masks(arrays, case)))


def compare_outputs(reference: Reference, arrays: Arrays, case: str, out: list[Tensor]) -> dict[str, float]:
    valid = reference.valid(arrays, case)
    names = (reference.x, reference.z)
    return {
        f"out/{name}": assert_golden(name, got, arrays[f"{case}/out/{name}"], where)
        for name, got, where in zip(names, out, valid, strict=True)
    }


def follow_the_rule_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protenix' single representation has no mask, so that padded residues take part in it: those which, in z, may attend nothing.

    Ours are 0 there. Under its rule, the mean of all values, nothing else differs.
    """
    if name == "protenix_pairformer_block":
        monkeypatch.setattr(attention_modules, "attention", attention_of_protenix)


def attention_of_protenix(q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor], mask: Tensor | None = None, backend: str) -> Tensor:
    logits = torch.einsum("...qhd,...khd->...hqk", q * q.shape[-1] ** -0.5, k)
    for bias in biases:
        logits = logits + bias
    if mask is not None:
        logits = logits + torch.where(mask, 0.0, -1e9)
    return torch.einsum("...hqk,...khd->...qhd", logits.softmax(-1), v)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_outputs(name: str, case: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, arrays = REFERENCES[name], read(name, f"{case}/out/")
    if case == "pad":
        follow_the_rule_of(name, monkeypatch)
    for part, error in compare_outputs(reference, arrays, case, outputs(reference, arrays, case)).items():
        record(name, case, part, error)


@pytest.mark.parametrize("name", [name for name, reference in REFERENCES.items() if reference.sub])
def test_sub_blocks(name: str, read: Read) -> None:
    """Each sub-block on the input that the reference gave it: the sum of the reference's updates so far."""
    case = MAIN_CASE[name]
    reference, arrays = REFERENCES[name], read(name, f"{case}/sub/")
    block = reference.load(reference.build(), arrays)
    (x, z), (mask, pair_mask) = reference.inputs(arrays), reference.given_masks(arrays, case)
    for child in reference.order:
        module = block.get_submodule(child)
        if child == "outer_product":
            got = module(x, mask)
        elif child in ("msa_average", "single_attn"):
            got = module(x, z, mask, pair_mask)
        else:
            got = module(*((z, pair_mask) if child in UPDATES_Z else (x, mask)))
        expected = arrays[f"{case}/sub/{reference.sub[child]}"].reshape(got.shape)
        if child == "tri_attn_end" and reference.family in TURNED:
            expected = expected.swapaxes(-3, -2)
        record(name, case, f"sub/{reference.sub[child]}", assert_golden(child, got, expected))
        update = torch.from_numpy(expected)
        x, z = (x, z + update) if child in UPDATES_Z else (x + update, z)
    for key, got in ((reference.x, x), (reference.z, z)):  # the updates add up to the reference's result: none was left out
        np.testing.assert_allclose(got.detach(), arrays[f"{case}/out/{key}"], atol=3e-6)


@pytest.mark.parametrize("name", REFERENCES)
def test_gradients_of_inputs(name: str, read: Read) -> None:
    case = MAIN_CASE[name]
    reference, arrays = REFERENCES[name], read(name, f"{case}/grad/")
    block = reference.load(reference.build(), arrays)
    inputs = reference.inputs(arrays)
    out = list(block(*inputs, *reference.given_masks(arrays, case)))
    gradients = torch.autograd.grad(reference.weighted_sum(out, arrays, [None, None]), inputs)
    for key, got in zip((reference.x, reference.z), gradients, strict=True):
        record(name, case, f"grad/{key}", assert_golden_gradient(key, got, arrays[f"{case}/grad/{key}"]))


@pytest.mark.parametrize("name", PADDED)
def test_gradients_under_padding(name: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the outputs in the valid region."""
    reference, arrays = REFERENCES[name], read(name, "pad/grad_valid/")
    follow_the_rule_of(name, monkeypatch)
    block = reference.load(reference.build(), arrays)
    inputs, valid = reference.inputs(arrays), reference.valid(arrays, "pad")
    out = list(block(*inputs, *reference.given_masks(arrays, "pad")))
    gradients = torch.autograd.grad(reference.weighted_sum(out, arrays, valid), inputs)
    for key, got, where in zip((reference.x, reference.z), gradients, valid, strict=True):
        record(name, "pad", f"grad_valid/{key}", assert_golden_gradient(key, got, arrays[f"pad/grad_valid/{key}"], where))


@pytest.mark.parametrize("name", WITH_PARAMETER_GRADIENTS)
def test_gradients_of_parameters(name: str, read: Read) -> None:
    """The arrays of a gradient have the layout of the parameters, so loading them as parameters lays them out as ours."""
    case = MAIN_CASE[name]
    reference, arrays = REFERENCES[name], read(name, f"{case}/grad_param/")
    block = reference.load(reference.build(), arrays)
    expected = reference.load(reference.build(), arrays, f"{case}/grad_param/")
    out = list(block(*reference.inputs(arrays), *reference.given_masks(arrays, case)))
    reference.weighted_sum(out, arrays, [None, None]).backward()
    for (parameter, got), (_, gradient) in zip(block.named_parameters(), expected.named_parameters(), strict=True):
        assert got.grad is not None
        record(name, case, f"grad_param/{parameter}", assert_golden_gradient(parameter, got.grad, gradient.detach().numpy()))


def af3_stacks(arrays: Arrays) -> tuple[MSAModule, PairformerStack]:
    """AlphaFold 3's MSA module and Pairformer, found under the names of its whole parameter file."""
    parameters = {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}
    stacks = MSAModule(MSAModuleConfig(n_blocks=2, **AF3_MSA)).eval(), PairformerStack(PairformerConfig(n_blocks=2, **AF3_SINGLE)).eval()
    for stack in stacks:
        load_weights(stack, parameters)
    return stacks


@pytest.mark.parametrize("case", ["rand", "pad"])
def test_stacks_of_alphafold3(case: str, read: Read) -> None:
    arrays = read("af3_stack2", f"{case}/out/")
    msa_module, pairformer = af3_stacks(arrays)
    inputs = {name: torch.from_numpy(arrays[f"in/{name}"]).requires_grad_() for name in ("msa", "pair", "single")}
    masks = {
        name: arrays[f"{case}/{mask}"].astype(bool) for name, mask in (("msa", "msa_mask"), ("pair", "pair_mask"), ("single", "seq_mask"))
    }
    given = {name: torch.from_numpy(mask) for name, mask in masks.items()}
    m, z = msa_module.run_blocks(inputs["msa"], inputs["pair"], given["msa"], given["pair"])
    s, z = pairformer(inputs["single"], z, given["single"], given["pair"])
    total = torch.zeros(())
    for name, got in (("msa", m), ("pair", z), ("single", s)):
        valid = masks[name] if case == "pad" else np.ones_like(masks[name])
        record("af3_stack2", case, f"out/{name}", assert_golden(name, got, arrays[f"{case}/out/{name}"], valid))
        total = total + (got * torch.from_numpy(arrays[f"in/r_{name}"] * valid[..., None])).sum()
    kind = "grad" if case == "rand" else "grad_valid"
    for name, got in zip(inputs, torch.autograd.grad(total, list(inputs.values())), strict=True):
        valid = masks[name] if case == "pad" else np.ones_like(masks[name])
        record("af3_stack2", case, f"{kind}/{name}", assert_golden_gradient(name, got, arrays[f"{case}/{kind}/{name}"], valid))
