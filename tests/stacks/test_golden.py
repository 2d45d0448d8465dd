"""Whole blocks against numbers from running AlphaFold 2: outputs, sub-blocks, gradients of inputs and of parameters."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from evoattn import EvoformerBlock, load_weights
from evoattn.primitives import attention as attention_modules
from evoattn.weights.alphafold2 import SCOPES
from tests.helpers import assert_golden, assert_golden_gradient, golden
from tests.parity import record
from tests.stacks.cases import GOLDEN_BLOCKS, golden_arrays, golden_block, golden_config, golden_version

CASES = [(name, case) for name in GOLDEN_BLOCKS for case in ("ones", "rand", "pad") if f"{case}/out/msa" in golden(name)]


def having(prefix: str) -> list[str]:
    """The files that hold such numbers."""
    return [name for name in GOLDEN_BLOCKS if any(key.startswith(prefix) for key in golden(name))]


MSA_BLOCKS = ["msa_row", "msa_column", "msa_transition"]
PAIR_BLOCKS = ["tri_mul_out", "tri_mul_in", "tri_attn_start", "tri_attn_end", "pair_transition"]


def masks(file: dict[str, np.ndarray], case: str) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(file[f"{case}/msa_mask"]).bool(), torch.from_numpy(file[f"{case}/pair_mask"]).bool()


def run(block: EvoformerBlock, file: dict[str, np.ndarray], case: str) -> tuple[list[Tensor], list[Tensor]]:
    """The inputs, ready for gradients, and the outputs."""
    inputs = [torch.from_numpy(file[f"in/{name}"]).requires_grad_() for name in ("msa", "pair")]
    return inputs, list(block(*inputs, *masks(file, case)))


def check_outputs(block: EvoformerBlock, file: dict[str, np.ndarray], case: str) -> dict[str, float]:
    """The largest errors."""
    _, out = run(block, file, case)
    return {
        name: assert_golden(name, got, file[f"{case}/out/{name}"], valid=mask.numpy() if case == "pad" else None)
        for name, got, mask in zip(("msa", "pair"), out, masks(file, case), strict=True)
    }


def weighted_sum(out: Sequence[Tensor], file: dict[str, np.ndarray]) -> Tensor:
    """The scalar whose gradients the file holds."""
    return (out[0] * torch.from_numpy(file["in/r_msa"])).sum() + (out[1] * torch.from_numpy(file["in/r_pair"])).sum()


@pytest.mark.parametrize(("name", "case"), CASES)
def test_outputs(name: str, case: str) -> None:
    for key, error in check_outputs(*golden_block(name), case).items():
        record(name, case, f"out/{key}", error)


@pytest.mark.parametrize("name", having("rand/sub/"))
def test_sub_blocks(name: str) -> None:
    """Each sub-block on the input that the reference gave it: the sum of the reference's updates so far."""
    block, file = golden_block(name)
    m, z = (torch.from_numpy(file[f"in/{key}"]) for key in ("msa", "pair"))
    msa_mask, pair_mask = masks(file, "rand")
    column = "msa_column_global_attention" if block.config.msa_column == "global" else "msa_column_attention"
    scopes = {**SCOPES, "msa_column": column}
    order = ["outer_product", *MSA_BLOCKS] if block.config.profile.opm_first else [*MSA_BLOCKS, "outer_product"]
    for child in [*order, *PAIR_BLOCKS]:
        expected = file[f"rand/sub/{scopes[child]}/out"]
        module = getattr(block, child)
        if child == "msa_row":
            np.testing.assert_allclose(z, file[f"rand/sub/{scopes[child]}/pair_act"], atol=1e-6)
            got = module(m, z, msa_mask, pair_mask)
        elif child in MSA_BLOCKS or child == "outer_product":
            got = module(m, msa_mask)
        else:
            got = module(z, pair_mask)
        record(name, "rand", f"sub/{scopes[child]}", assert_golden(child, got, expected))
        update = torch.from_numpy(expected)
        m, z = (m + update, z) if child in MSA_BLOCKS else (m, z + update)
    np.testing.assert_allclose(m, file["rand/out/msa"], atol=2e-6)  # the updates add up to the reference's result: none was left out
    np.testing.assert_allclose(z, file["rand/out/pair"], atol=2e-6)


@pytest.mark.parametrize("name", GOLDEN_BLOCKS)
def test_gradients_of_inputs(name: str) -> None:
    block, file = golden_block(name)
    inputs, out = run(block, file, "rand")
    for key, got in zip(("msa", "pair"), torch.autograd.grad(weighted_sum(out, file), inputs), strict=True):
        record(name, "rand", f"grad/{key}", assert_golden_gradient(key, got, file[f"rand/grad/{key}"]))


@pytest.mark.parametrize("name", having("rand/grad_param/"))
def test_gradients_of_parameters(name: str) -> None:
    """The arrays of a gradient have the layout of the parameters, so loading them as parameters lays them out as ours."""
    block, file = golden_block(name)
    expected = EvoformerBlock(golden_config(file))
    load_weights(expected, golden_arrays(file, "rand/grad_param/"), version=golden_version(name), scope=GOLDEN_BLOCKS[name])
    weighted_sum(run(block, file, "rand")[1], file).backward()
    for (parameter, got), (_, gradient) in zip(block.named_parameters(), expected.named_parameters(), strict=True):
        assert got.grad is not None
        record(name, "rand", f"grad_param/{parameter}", assert_golden_gradient(parameter, got.grad, gradient.detach().numpy()))


def attention_of_alphafold(
    q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, backend: str
) -> Tensor:
    """AlphaFold 2's rule for masks: their logits become -1e9, so a query that may attend nothing gets the mean of v."""
    logits = torch.einsum("...qhd,...khd->...hqk", q * q.shape[-1] ** -0.5, k)
    for bias in biases:
        logits = logits + bias
    if mask is not None:
        logits = torch.where(mask, logits, -1e9)
    return torch.einsum("...hqk,...khd->...qhd", logits.softmax(-1), v)


@pytest.mark.parametrize("name", GOLDEN_BLOCKS)
def test_gradients_under_padding_with_the_rule_of_alphafold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file's cotangents cover padded queries, where its rule and ours differ. Under its rule even those positions agree."""
    block, file = golden_block(name)
    monkeypatch.setattr(attention_modules, "attention", attention_of_alphafold)
    inputs, out = run(block, file, "pad")
    for key, got in zip(("msa", "pair"), torch.autograd.grad(weighted_sum(out, file), inputs), strict=True):
        record(name, "pad", f"grad/{key}", assert_golden_gradient(key, got, file[f"pad/grad/{key}"]))


def swap_operands(block: EvoformerBlock) -> None:
    for layer in (block.tri_mul_in.proj, block.tri_mul_in.gate):
        for parameter in layer.parameters():
            parameter.data = torch.cat(parameter.data.chunk(2)[::-1])


def transpose_bias_of_ending_node(block: EvoformerBlock) -> None:
    attn, plain = block.tri_attn_end.attn, block.tri_attn_end.attn.forward
    attn.forward = lambda x, *, biases, **rest: plain(x, biases=[bias.mT for bias in biases], **rest)


def move_outer_product(block: EvoformerBlock) -> None:
    profile = block.config.profile
    object.__setattr__(block.config, "profile", replace(profile, opm_first=not profile.opm_first))


def drop_row_bias(block: EvoformerBlock) -> None:
    block.msa_row.pair_bias.weight.data.zero_()


def drop_triangle_bias(block: EvoformerBlock) -> None:
    block.tri_attn_start.pair_bias.weight.data.zero_()


def transpose_pair_mask(block: EvoformerBlock) -> None:
    plain = block.tri_attn_start.forward
    block.tri_attn_start.forward = lambda z, pair_mask: plain(z, pair_mask.mT)


MUTANTS = [swap_operands, transpose_bias_of_ending_node, move_outer_product, drop_row_bias, drop_triangle_bias, transpose_pair_mask]


@pytest.mark.parametrize("mutate", MUTANTS)
@pytest.mark.parametrize("name", ["af2_evoformer_iteration", "af2_extra_msa_iteration_fused_opmfirst"])
def test_mutants_are_rejected(name: str, mutate: Callable[[EvoformerBlock], None]) -> None:
    block, file = golden_block(name)
    check_outputs(block, file, "rand")
    mutate(block)
    with pytest.raises(AssertionError, match=r"off by up to"):
        check_outputs(block, file, "rand")
