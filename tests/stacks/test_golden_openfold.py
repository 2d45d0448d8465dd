"""OpenFold's blocks and stack, and OpenFold3's block of their kind, against numbers from running them: outputs, sub-blocks, gradients."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evoattn import EvoformerBlock, EvoformerConfig, EvoformerStack, WeightsError, load_weights, profile
from evoattn.primitives import attention as attention_modules
from evoattn.weights import FAMILIES
from evoattn.weights.openfold import BLOCK
from tests.helpers import Read, assert_golden, assert_golden_gradient
from tests.parity import record

Arrays = dict[str, np.ndarray]
BLOCK_FILE, FUSED, STACK, EXTRA, OPENFOLD3 = (
    "openfold_evoformer_block", "openfold_evoformer_block_opmfirst_fused", "openfold_evoformer_stack2", "openfold_extra_msa_block",
    "openfold3_evoformer_block",
)  # fmt: skip
FILES = (BLOCK_FILE, FUSED, STACK, EXTRA, OPENFOLD3)
CASES = [(name, case) for name in FILES for case in ("ones", "rand", "pad") if case != "ones" or name in (BLOCK_FILE, EXTRA)]
OUTPUTS = ("msa", "pair", "single")
MSA_BLOCKS = ("msa_row", "msa_column", "msa_transition")
PAIR_BLOCKS = ("tri_mul_out", "tri_mul_in", "tri_attn_start", "tri_attn_end", "pair_transition")


def build(file: Arrays, **changes: Any) -> nn.Module:
    """The block or stack of a file; `changes` are switches of its profile."""
    meta = json.loads(str(file["meta_json"]))
    k, extra, whole = meta["kwargs"], meta["cls"] == "ExtraMSABlock", meta["cls"] == "EvoformerStack"
    family, version = source(meta)
    config = EvoformerConfig(
        n_blocks=k.get("no_blocks", 1), c_m=k["c_m"], c_z=k["c_z"], c_s=k.get("c_s"),
        n_head_msa_row=k["no_heads_msa"], n_head_msa_column=k["no_heads_msa"], c_head_msa=k["c_hidden_msa_att"],
        n_head_tri_start=k["no_heads_pair"], n_head_tri_end=k["no_heads_pair"], c_head_tri=k["c_hidden_pair_att"],
        c_hidden_mul=k["c_hidden_mul"], c_hidden_opm=k["c_hidden_opm"],
        msa_transition_n=k["transition_n"], pair_transition_n=k["transition_n"], msa_column="global" if extra else "attention",
        profile=replace(profile(FAMILIES[family].versions[version]), **changes),
    )  # fmt: skip
    return (EvoformerStack(config) if whole else EvoformerBlock(config)).eval()


def load(module: nn.Module, file: Arrays, prefix: str = "param/") -> nn.Module:
    arrays = {name.removeprefix(prefix): array for name, array in file.items() if name.startswith(prefix)}
    family, version = source(json.loads(str(file["meta_json"])))
    load_weights(module, arrays, family, version=version, scope="")
    return module


def source(meta: dict[str, Any]) -> tuple[str, str]:
    """The family of a file's parameters, and their version."""
    if meta["source"].startswith("openfold3"):
        return "openfold3", "evoformer"
    return "openfold", "multimer" if meta["kwargs"]["opm_first"] else "monomer"


def loaded(file: Arrays) -> nn.Module:
    return load(build(file), file)


def inputs(file: Arrays) -> list[Tensor]:
    return [torch.from_numpy(file[f"in/{name}"]).requires_grad_() for name in ("m", "z")]


def masks(file: Arrays, case: str) -> list[Tensor]:
    return [torch.from_numpy(file[f"{case}/{name}_mask"]).bool() for name in ("msa", "pair")]


def valid(file: Arrays, case: str) -> list[np.ndarray | None]:
    """Of msa, pair and single: under padding, where their masks are."""
    msa, pair = (mask.numpy() if case == "pad" else None for mask in masks(file, case))
    return [msa, pair, None if msa is None else msa[0]]


def weighted_sum(out: Sequence[Tensor], file: Arrays, where: Sequence[np.ndarray | None] = (None, None, None)) -> Tensor:
    """The scalar whose gradients the file holds."""
    total = torch.zeros(())
    for name, y, mask in zip(OUTPUTS, out, where, strict=False):
        weights = torch.from_numpy(file[f"in/r_{name}"])
        total = total + (y * (weights if mask is None else weights * torch.from_numpy(mask.astype(np.float32))[..., None])).sum()
    return total


def compare(out: Sequence[Tensor], file: Arrays, case: str) -> dict[str, float]:
    return {
        f"out/{name}": assert_golden(name, y, file[f"{case}/out/{name}"], where)
        for name, y, where in zip(OUTPUTS, out, valid(file, case), strict=False)
    }


@pytest.mark.parametrize(("name", "case"), CASES)
def test_outputs(name: str, case: str, read: Read) -> None:
    file = read(name, f"{case}/out/")
    for part, error in compare(loaded(file)(*inputs(file), *masks(file, case)), file, case).items():
        record(name, case, part, error)


@pytest.mark.parametrize("name", [BLOCK_FILE, EXTRA])
def test_sub_blocks(name: str, read: Read) -> None:
    """Each on the sum of the reference's updates so far. Its ending node is the starting one of the transposed z, and so is its output."""
    file = read(name, "rand/sub/")
    block, (m, z), (msa_mask, pair_mask) = loaded(file), inputs(file), masks(file, "rand")
    for child in (*MSA_BLOCKS, "outer_product", *PAIR_BLOCKS):
        expected = file[f"rand/sub/{BLOCK[child]}"]
        expected = expected.swapaxes(-3, -2) if child == "tri_attn_end" else expected
        module = block.get_submodule(child)
        if child == "msa_row":
            got = module(m, z, msa_mask, pair_mask)
        else:
            got = module(*((z, pair_mask) if child in PAIR_BLOCKS else (m, msa_mask)))
        record(name, "rand", f"sub/{BLOCK[child]}", assert_golden(child, got, expected))
        update = torch.from_numpy(expected)
        m, z = (m + update, z) if child in MSA_BLOCKS else (m, z + update)
    np.testing.assert_allclose(z.detach(), file["rand/sub/pair_stack"], atol=3e-6)
    np.testing.assert_allclose(m.detach(), file["rand/out/msa"], atol=3e-6)


@pytest.mark.parametrize("name", FILES)
def test_gradients_of_inputs(name: str, read: Read) -> None:
    file = read(name, "rand/grad/")
    given = inputs(file)
    gradients = torch.autograd.grad(weighted_sum(loaded(file)(*given, *masks(file, "rand")), file), given)
    for key, got in zip("mz", gradients, strict=True):
        record(name, "rand", f"grad/{key}", assert_golden_gradient(key, got, file[f"rand/grad/{key}"]))


def test_gradients_of_parameters(read: Read) -> None:
    """The tensors of a gradient have the layout of the parameters, so loading them as parameters lays them out as ours."""
    name = BLOCK_FILE
    file = read(name, "rand/grad_param/")
    module, expected = loaded(file), load(build(file), file, "rand/grad_param/")
    weighted_sum(module(*inputs(file), *masks(file, "rand")), file).backward()
    for (parameter, got), (_, gradient) in zip(module.named_parameters(), expected.named_parameters(), strict=True):
        assert got.grad is not None, parameter
        record(name, "rand", f"grad_param/{parameter}", assert_golden_gradient(parameter, got.grad, gradient.detach().numpy()))


@pytest.mark.parametrize("name", FILES)
def test_gradients_under_padding(name: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cotangents of the stack's single representation reach padded residues, where its rule and ours differ: it follows its own."""
    file = read(name, "pad/grad_valid/")
    given, where = inputs(file), valid(file, "pad")
    if name == STACK:
        monkeypatch.setattr(attention_modules, "attention", attention_of_openfold)
        where[2] = None
    gradients = torch.autograd.grad(weighted_sum(loaded(file)(*given, *masks(file, "pad")), file, where), given)
    for key, got, mask in zip("mz", gradients, where, strict=False):
        record(name, "pad", f"grad_valid/{key}", assert_golden_gradient(key, got, file[f"pad/grad_valid/{key}"], mask))


def attention_of_openfold(
    q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, backend: str
) -> Tensor:
    """An additive mask of -1e9, under which float32 leaves a row that may attend nothing the mean of the values."""
    logits = torch.einsum("...qhd,...khd->...hqk", q * q.shape[-1] ** -0.5, k)
    if mask is not None:
        logits = logits + torch.where(mask, 0.0, -1e9)
    for bias in biases:
        logits = logits + bias
    return torch.einsum("...hqk,...khd->...qhd", logits.softmax(-1), v)


WRONG = [
    (BLOCK_FILE, "opm_first", True), (BLOCK_FILE, "ending_bias", "ik"), (BLOCK_FILE, "starting_mask", "ki"),
    (BLOCK_FILE, "opm_norm", "sum"), (EXTRA, "mask_transition", "none"), (OPENFOLD3, "ending_bias", "ki"),
    (OPENFOLD3, "mask_transition", "none"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "switch", "value"), WRONG)
def test_a_wrong_switch_is_refused_and_would_give_other_numbers(name: str, switch: str, value: Any, read: Read) -> None:
    file = read(name, "rand/out/")
    wrong = build(file, **{switch: value})
    with pytest.raises(WeightsError, match=switch):
        load(wrong, file)
    wrong.load_state_dict(loaded(file).state_dict())
    with pytest.raises(AssertionError, match="off by up to"):
        compare(wrong(*inputs(file), *masks(file, "rand")), file, "rand")


def test_names_of_release_1(read: Read) -> None:
    """Below ``core`` all side by side; the parameters are the same."""
    file = read(BLOCK_FILE, "rand/out/")
    old = ("msa_transition", "outer_product_mean")
    renamed = {}
    for name, array in file.items():
        if name.startswith("param/"):
            plain = name.removeprefix("param/")
            moved = plain.startswith(("pair_stack.", *old))
            renamed[f"evoformer.blocks.0.{'core.' if moved else ''}{plain.removeprefix('pair_stack.')}"] = array
    block = build(file)
    load_weights(block, renamed, "openfold", version="monomer", scope="evoformer.blocks.0")
    for ours, other in zip(block.parameters(), loaded(file).parameters(), strict=True):
        assert torch.equal(ours, other)
