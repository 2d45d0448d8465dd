"""Every switch by which published systems differ: set wrong, a model is refused at load, and its numbers are wrong."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from evoattn import (
    PROFILES,
    EvoformerBlock,
    EvoformerConfig,
    MSAModule,
    MSAModuleBlock,
    MSAModuleConfig,
    PairformerBlock,
    PairformerConfig,
    PairformerStack,
    Profile,
    WeightsError,
    load_weights,
)
from evoattn.primitives import redraw_
from tests.helpers import Read
from tests.stacks.families import MAIN_CASE, REFERENCES, Arrays
from tests.stacks.test_golden_families import compare_outputs

OF_THE_MATHS = [  # file, switch, a wrong value of the same shapes
    ("af3_pairformer_block", "ending_bias", "ki"),
    ("af3_pairformer_block", "ending_bias", "jk"),
    ("af3_pairformer_block", "starting_mask", "ik"),
    ("af3_pairformer_block", "mask_transition", "all"),
    ("af3_pairformer_block", "triangle_mul_scale", "mean"),
    ("af3_msa_stack_block", "ending_bias", "ki"),
    ("af3_msa_stack_block", "starting_mask", "ik"),
    ("af3_msa_stack_block", "opm_norm", "sum"),
    ("af3_msa_stack_block", "opm_first", False),
    ("af3_msa_stack_block", "pwa_mask", "pair"),
    ("af3_msa_stack_block", "mask_transition", "all"),
    ("boltz2_pairformer_layer", "ending_bias", "ik"),
    ("boltz2_pairformer_layer", "starting_mask", "ki"),
    ("boltz1_msa_layer", "opm_norm", "sum and bias"),
    ("boltz1_msa_layer", "opm_first", True),
    ("boltz1_msa_layer", "pwa_mask", "residues"),
    ("boltz1_msa_layer", "ending_bias", "ik"),
    ("protenix_msa_block", "ending_bias", "ik"),
    ("protenix_msa_block", "opm_norm", "sum"),
    ("protenix_msa_block", "opm_first", False),
    ("protenix_msa_block", "pwa_mask", "pair"),
    ("openfold3_msa_module_block", "ending_bias", "ki"),
    ("openfold3_pairformer_block_0.4.5", "ending_bias", "ik"),
    ("openfold3_msa_module_block", "starting_mask", "ki"),
    ("openfold3_msa_module_block", "mask_transition", "none"),
    ("openfold3_msa_module_block", "pwa_mask", "residues"),
    ("openfold3_msa_module_block", "opm_first", False),
    ("rf3_pairformer_block", "ending_bias", "ki"),
    ("rf3_pairformer_block", "triangle_mul_scale", "sum"),
]
OF_THE_SHAPES = [
    ("af3_pairformer_block", "transition", "relu"),
    ("af3_pairformer_block", "triangle_attn_bias", True),
    ("af3_pairformer_block", "triangle_mul_bias", True),
    ("af3_pairformer_block", "single_q_bias", False),
    ("af3_pairformer_block", "single_bias", True),
    ("af3_msa_stack_block", "opm_proj_bias", True),
    ("rf3_pairformer_block", "triangle_attn_bias", False),
    ("rf3_pairformer_block", "single_q_bias", True),
]


@pytest.mark.parametrize(("name", "switch", "wrong"), OF_THE_MATHS)
def test_wrong_switch_gives_other_numbers(name: str, switch: str, wrong: Any, read: Read) -> None:
    case = MAIN_CASE[name]
    reference, arrays = REFERENCES[name], read(name, f"{case}/out/")
    right, mutant = reference.load(reference.build(), arrays), reference.build(**{switch: wrong})
    mutant.load_state_dict(right.state_dict())
    inputs = [*reference.inputs(arrays), *reference.given_masks(arrays, case)]
    with torch.no_grad():
        compare_outputs(reference, arrays, case, list(right(*inputs)))
        with pytest.raises(AssertionError, match="off by up to"):
            compare_outputs(reference, arrays, case, list(mutant(*inputs)))


@pytest.mark.parametrize(("name", "switch", "wrong"), [*OF_THE_MATHS, *OF_THE_SHAPES])
def test_wrong_switch_is_refused(name: str, switch: str, wrong: Any, read: Read) -> None:
    """By name, also where the shapes fit."""
    reference, arrays = REFERENCES[name], read(name, "param/")
    with pytest.raises(WeightsError, match=rf"{switch} is {wrong!r} and must be"):
        reference.load(reference.build(**{switch: wrong}), arrays)


@pytest.mark.parametrize(("name", "switch", "wrong"), OF_THE_SHAPES)
def test_wrong_shapes_are_refused(name: str, switch: str, wrong: Any, read: Read) -> None:
    """Sub-blocks by themselves have no profile to compare; their shapes tell."""
    reference, arrays = REFERENCES[name], read(name, "param/")
    block = reference.build(**{switch: wrong})
    del block.config
    with pytest.raises(WeightsError, match=r"missing: [1-9]|wrong shape: [1-9]|unexpected: [1-9]"):
        reference.load(block, arrays)


def test_a_norm_of_boltz2_left_out(read: Read) -> None:
    name = "boltz2_pairformer_layer_postnorm"
    reference, arrays = REFERENCES[name], read(name, "param/")
    with pytest.raises(WeightsError, match=r"unexpected: 2\n.*s_post_norm"):
        reference.load(reference.build(single_post_norm=False), arrays)


def test_the_last_block_without_msa_update() -> None:
    for name, has in (("alphafold3", True), ("boltz", True), ("protenix", False), ("openfold3", False)):
        module = MSAModule(MSAModuleConfig(n_blocks=2, c_m=8, c_z=8, c_hidden_mul=8, c_hidden_opm=4, profile=PROFILES[name]))
        first, last = module.blocks
        assert isinstance(first, MSAModuleBlock) and isinstance(last, MSAModuleBlock)
        assert first.update_msa and last.update_msa is has and hasattr(last, "msa_average") is has


def test_shared_weights() -> None:
    """RosettaFold 3's four rounds through one block are four blocks with the same parameters; its gradient is the sum of theirs."""
    config = MSAModuleConfig(
        n_blocks=3, c_m=8, c_z=8, n_head_msa=2, n_head_tri_start=2, n_head_tri_end=2, c_hidden_mul=8, c_hidden_opm=4,
        profile=PROFILES["rosettafold3"],
    )  # fmt: skip
    shared = redraw_(MSAModule(config), seed=1).double().eval()
    apart = MSAModule(replace(config, profile=replace(config.profile, share_msa_weights=False))).double().eval()
    assert isinstance(shared, MSAModule) and len(shared.blocks) == 1 and len(apart.blocks) == 3
    for block in apart.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    m, z = torch.randn(4, 5, 8, dtype=torch.float64), torch.randn(5, 5, 8, dtype=torch.float64)
    together, separate = shared(m, z), apart(m, z)
    assert torch.equal(together, separate)
    (together.square().sum()).backward()
    (separate.square().sum()).backward()
    for name, parameter in shared.blocks[0].named_parameters():
        each = [block.get_parameter(name).grad for block in apart.blocks]
        torch.testing.assert_close(parameter.grad, sum(x for x in each if x is not None))
    with torch.no_grad():
        assert torch.allclose(shared.run_(m.clone(), z.clone()), together, atol=1e-12)


# profile -> sub-block -> the axes that share one mask; published code, see docs/algorithms.md
DROPPED = {
    "alphafold2": {"msa_row": (-3,), "tri_mul_out": (-3,), "tri_mul_in": (-3,), "tri_attn_start": (-3,), "tri_attn_end": (-2,)},
    "protenix": {"msa_average": (-3,), "tri_mul_out": (-3,), "tri_mul_in": (-3,), "tri_attn_start": (-3,), "tri_attn_end": (-2,)},
    "boltz": {
        "msa_average": (-2, -1), "tri_mul_out": (-2, -1), "tri_mul_in": (-2, -1), "tri_attn_start": (-2, -1), "tri_attn_end": (-3, -1),
    },
    "rosettafold3": {"msa_average": (-2,), "tri_mul_out": (-2,), "tri_mul_in": (-2,), "tri_attn_start": (-2,), "tri_attn_end": (-3,)},
}  # fmt: skip


def dropout_mask(profile: Profile, child: str) -> Tensor:
    """What dropout does to an update of ones by `child`, the others being zero: True where it is kept, [2, 20, 20, 16]."""
    shapes = {"n_blocks": 1, "c_m": 16, "c_z": 16, "dropout_msa": 0.5, "dropout_pair": 0.5, "profile": profile}
    block = EvoformerBlock(EvoformerConfig(**shapes)) if profile.msa_op == "row_column" else MSAModuleBlock(MSAModuleConfig(**shapes))
    block.train()
    for name, module in block.named_children():
        if not name.startswith("drop"):
            module.register_forward_hook(lambda module, inputs, out, name=name: torch.full_like(out, float(name == child)))
    inputs = [torch.zeros(2, 20, 20, 16), torch.zeros(2, 20, 20, 16)]
    m, z = block(*inputs)
    kept = (m if child.startswith("msa") else z).detach()
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    return kept > 0


def shared_axes(kept: Tensor) -> tuple[int, ...]:
    return tuple(axis for axis in (-3, -2, -1) if torch.equal(kept, kept.narrow(axis, 0, 1).expand_as(kept)))


@pytest.mark.parametrize(("name", "child"), [(name, child) for name, children in DROPPED.items() for child in children])
def test_dropout_axes(name: str, child: str) -> None:
    kept = dropout_mask(PROFILES[name], child)
    assert shared_axes(kept) == DROPPED[name][child]
    assert not torch.equal(kept[0], kept[1])  # each batch entry draws its own


@pytest.mark.parametrize(
    ("name", "child", "switch", "wrong"),
    [
        ("boltz", "tri_mul_out", "dropout_row", "columns"), ("boltz", "tri_attn_end", "dropout_column", "rows"),
        ("rosettafold3", "msa_average", "dropout_row", "rows"), ("protenix", "tri_mul_in", "dropout_mul_in", "column"),
    ],
)  # fmt: skip
def test_wrong_dropout_axes_show(name: str, child: str, switch: str, wrong: str) -> None:
    profile = replace(PROFILES[name], **{switch: wrong})  # type: ignore[arg-type]
    assert shared_axes(dropout_mask(profile, child)) != DROPPED[name][child]


def test_names_do_not_tell_the_versions_of_openfold3_apart(read: Read) -> None:
    reference, arrays = REFERENCES["openfold3_msa_module_block"], read("openfold3_msa_module_block", "param/")
    with pytest.raises(WeightsError, match=r"(?s)bias_ki.*bias_ik.*ending_bias"):
        load_weights(reference.build(), _parameters(arrays))
    right = reference.load(reference.build(), arrays)
    other = reference.build(ending_bias="ki")
    load_weights(other, _parameters(arrays), version="bias_ki", scope="")
    for mine, theirs in zip(right.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def _parameters(arrays: Arrays) -> dict[str, Any]:
    return {name.removeprefix("param/"): array for name, array in arrays.items() if name.startswith("param/")}


def test_defaults_are_those_of_alphafold3() -> None:
    """AlphaFold 3's code (`model/network/evoformer.py`, `modules.py`): sizes and profile of both stacks."""
    p, m = PairformerConfig(), MSAModuleConfig()
    assert (p.n_blocks, p.c_s, p.c_z, p.n_head_single, p.n_head_tri_start, p.n_head_tri_end) == (48, 384, 128, 16, 4, 4)
    assert (m.n_blocks, m.c_m, m.c_z, m.n_head_msa, m.c_hidden_opm, m.msa_transition_n) == (4, 64, 128, 8, 32, 4)
    assert p.profile == m.profile == PROFILES["alphafold3"]
    with torch.device("meta"):
        assert PairformerBlock(p).single_attn.attn.d_head == 24 and MSAModuleBlock(m).msa_average.attn.d_head == 8
        assert len(PairformerStack(replace(p, n_blocks=0)).blocks) == 0
