"""Whose parameters a file holds, whether the model computes as they do, and what is said where it is wrong."""

import re
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor

from evoattn import (
    EvoformerConfig,
    EvoformerStack,
    PairformerConfig,
    PairformerStack,
    Profile,
    TriangleAttention,
    WeightsError,
    load_weights,
    profile,
)
from evoattn.config import PROFILES, TemplateConfig
from evoattn.weights import FAMILIES, Identity, identify
from evoattn.weights.identify import check_profile
from tests.weights.cases import EVOFORMER, of_trunk, published
from tests.weights.test_convert import KIN, as_published, small_stacks

Arrays = dict[str, Tensor]


def pairformer_of(name: str) -> PairformerStack:
    return small_stacks(name)["pairformer"]


@pytest.mark.parametrize("name", KIN)
def test_every_family_is_told_by_its_names(name: str) -> None:
    """And no other family takes the file for its own."""
    family, (version, available) = name.partition(",")[0], KIN[name]
    _, theirs = as_published(family, version, available)
    answers = identify(theirs)
    assert {answer.family for answer in answers} == {family} and version in [answer.version for answer in answers]
    assert all(answer.profile == PROFILES[FAMILIES[family].versions[answer.version]] for answer in answers)


def test_alphafold2_and_its_parts() -> None:
    assert [(answer.family, answer.version) for answer in identify(published())] == [("alphafold2", "monomer")]
    block = {name.partition("/evoformer_iteration/")[2]: x for name, x in published().items() if "/evoformer_iteration/" in name}
    assert [answer.version for answer in identify(block)] == ["monomer", "multimer_v1_v2"]


def test_names_that_cannot_tell_demand_a_choice() -> None:
    model, theirs = as_published("openfold3", "bias_ik")
    empty = pairformer_of("openfold3_transposed")
    with pytest.raises(
        WeightsError, match=r"do not tell .*version='bias_ki'; .*version='bias_ik'\. They differ in ending_bias, and the wrong one loads"
    ):
        load_weights(empty, theirs)
    load_weights(empty, theirs, version="bias_ik")
    assert all(torch.equal(a, b) for a, b in zip(empty.parameters(), model["pairformer"].parameters(), strict=True))
    with pytest.raises(WeightsError, match=r"ending_bias is 'ik' and must be 'ki'"):
        load_weights(empty, theirs, version="bias_ki")
    with pytest.raises(WeightsError, match=r"version is 'bias_kk'; .* openfold3 'bias_ki', 'bias_ik'\."):
        load_weights(empty, theirs, version="bias_kk")


def test_a_block_without_switches_needs_no_choice() -> None:
    """Numerics that are no part of the module cannot be wrong in it."""
    model, theirs = as_published("openfold3", "bias_ik")
    block = TriangleAttention(24, 3, node="starting", d_head=6, bias=False)
    load_weights(block, theirs, scope="pairformer_stack.blocks.1.pair_stack.tri_att_start")
    assert torch.equal(block.attn.q.weight, model["pairformer"].blocks[1].tri_attn_start.attn.q.weight)


def test_boltz_does_not_land_in_an_alphafold3_model() -> None:
    _, theirs = as_published("boltz", "boltz2", ("pre_norm_s.",))
    wrong = pairformer_of("alphafold3")
    before = [parameter.clone() for parameter in wrong.parameters()]
    right = pairformer_of("boltz")
    assert [x.shape for x in wrong.parameters()] == [x.shape for x in right.parameters()]  # nothing but the numerics tells them apart
    with pytest.raises(WeightsError, match=r"of Boltz \(boltz2\), which .* ending_bias is 'ik' and must be 'ki'.*Nothing"):
        load_weights(wrong, theirs)
    assert all(torch.equal(a, b) for a, b in zip(wrong.parameters(), before, strict=True))
    load_weights(right, theirs)


def evoformer(switch: str) -> tuple[EvoformerStack, str, str]:
    """A stack whose config has this switch as another published system has it; that value, and the right one."""
    own = profile("alphafold2")
    value = next(getattr(p, switch) for p in PROFILES.values() if getattr(p, switch) not in (getattr(own, switch), "extra_msa"))
    stack = EvoformerStack(EVOFORMER)
    object.__setattr__(stack, "config", replace(EVOFORMER, profile=replace(own, **{switch: value})))
    return stack, value, getattr(own, switch)


@pytest.mark.parametrize("switch", EVOFORMER.SWITCHES)
def test_every_switch_by_which_it_computes_is_compared(switch: str) -> None:
    """tests/stacks/test_heeded_switches.py shows that these are the ones."""
    stack, value, right = evoformer(switch)
    with pytest.raises(WeightsError, match=re.escape(f"{switch} is {value!r} and must be {right!r}")):
        load_weights(stack, published())


@pytest.mark.parametrize("switch", [each.name for each in fields(Profile) if each.name not in ("name", *EVOFORMER.SWITCHES)])
def test_no_other_switch_is_in_the_way(switch: str) -> None:
    """Dropout of one's own in training, features of one's own, an embedding of templates that the stack has not."""
    stack, value, right = evoformer(switch)
    assert value != right and load_weights(stack, published()).used


def test_masks_of_the_extra_msa_alone_are_nothing_to_another_stack() -> None:
    """OpenFold's Evoformer computes as AlphaFold 2's: it masks transitions in the extra-MSA stack only."""
    own, openfold = profile("alphafold2"), profile("openfold")
    assert EVOFORMER.differences(own, openfold) == [] and TemplateConfig().differences(own, openfold) == []
    assert EvoformerConfig.extra_msa().differences(own, openfold) == ["mask_transition"]
    assert EVOFORMER.differences(own, replace(own, mask_transition="all")) == ["mask_transition"]


def test_a_profile_of_a_part_is_compared_too() -> None:
    """Of whatever module has a config; the message says which."""
    model = torch.nn.ModuleDict({"inner": pairformer_of("alphafold3")})
    with pytest.raises(WeightsError, match=r"in inner, "):
        check_profile(model, Identity("boltz", "boltz1", profile("boltz")))


# --- a message of its own for each mistake -----------------------------------------------------------------------------------------------


def protenix() -> tuple[PairformerStack, Arrays]:
    model, theirs = as_published("protenix", "protenix")
    return model["pairformer"], {name: x for name, x in theirs.items() if name.startswith("pairformer_stack.")}


def renumbered(arrays: Arrays, change: Callable[[int], int | None]) -> Arrays:
    """With other numbers for the blocks; None leaves one out."""
    found = {}
    for name, x in arrays.items():
        words = name.split(".")
        number = change(int(words[2]))
        if number is not None:
            found[".".join([*words[:2], str(number), *words[3:]])] = x
    return found


def test_wrong_family() -> None:
    _, theirs = protenix()
    with pytest.raises(WeightsError, match=r"wrong family: the mapping looks like Protenix, not Boltz: it holds \d+ arrays, pair"):
        load_weights(pairformer_of("boltz"), theirs, "boltz")
    with pytest.raises(WeightsError, match=r"wrong family: the mapping looks like AlphaFold 2, not Protenix"):
        load_weights(pairformer_of("protenix"), published(), "protenix")


def test_no_family() -> None:
    with pytest.raises(WeightsError, match=r"is of no family known \(alphafold2, .*: it holds 1 arrays, x\.weight\. If it is a part"):
        load_weights(pairformer_of("boltz"), {"x.weight": torch.ones(2)})


def test_transposed() -> None:
    model, theirs = protenix()
    name = "pairformer_stack.blocks.1.single_transition.linear_no_bias.weight"
    theirs[name] = theirs[name].T.contiguous()
    with pytest.raises(WeightsError, match=rf"Transposed: {re.escape(name)} would fit with the last two axes exchanged"):
        load_weights(model, theirs)
    arrays = of_trunk()
    name = next(name for name in arrays if name.endswith("evoformer_iteration/msa_transition/transition1//weights"))
    arrays[name] = arrays[name].swapaxes(1, 2)
    with pytest.raises(WeightsError, match=rf"Transposed: {re.escape(name)} would fit"):
        load_weights(EvoformerStack(EVOFORMER), arrays)


def test_missing_block() -> None:
    model, theirs = protenix()
    with pytest.raises(
        WeightsError, match=r"Missing blocks: .* nothing for blocks\.1, e\.g\. blocks\.1\.\S+ \(from pairformer_stack\.blocks\.1\."
    ):
        load_weights(model, renumbered(theirs, lambda n: None if n == 1 else n))
    arrays = {name: x[:1] if "/evoformer_iteration/" in name else x for name, x in published().items()}
    with pytest.raises(WeightsError, match=r"Missing blocks: the source has nothing for blocks\.1, e\.g\. \S+ \(from layer 1 of "):
        load_weights(EvoformerStack(EVOFORMER), arrays)


def test_extra_block() -> None:
    model, theirs = protenix()
    more = {**theirs, **renumbered(theirs, lambda n: 2 if n == 1 else None)}
    with pytest.raises(
        WeightsError, match=r"Extra blocks: the model has no pairformer_stack\.blocks\.2 of the source, e\.g\. pairformer_stack\.blocks\."
    ):
        load_weights(model, more)
    assert load_weights(model, more, strict=False).unexpected
    with pytest.raises(WeightsError, match=r"Extra blocks: the model has 1, and \d+ arrays have more layers, e\.g\. \S+ 2\."):
        load_weights(EvoformerStack(replace(EVOFORMER, n_blocks=1)), published())


def test_what_the_account_says_of_the_model() -> None:
    """Left at its value, zero throughout, and which entry was read."""
    model, theirs = protenix()
    zero, lost = (f"pairformer_stack.blocks.0.pair_transition.{name}.weight" for name in ("layernorm1", "linear_no_bias"))
    theirs[zero] = torch.zeros_like(theirs[zero])
    del theirs[lost]
    account = load_weights(model, {"state_dict": theirs, "epoch": 3}, strict=False)
    assert account.zero == ("blocks.0.pair_transition.norm.weight",)
    assert account.left == ("blocks.0.pair_transition.down.weight",)
    assert account.taken == "the entry 'state_dict'"
    text = str(account)
    assert "read: the entry 'state_dict'" in text and "left at the value they had: 1" in text and "zero throughout: blocks.0.pair" in text


def test_default_configs_of_the_families_lines() -> None:
    """What `evoattn weights list` tells users to type is Python that names a family's own numerics."""
    for family in FAMILIES.values():
        compile(family.line, family.name, "exec")
        assert family.versions and set(family.versions.values()) <= set(PROFILES)
    assert PairformerConfig().profile == profile("alphafold3")
