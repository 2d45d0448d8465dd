"""Which switches of a profile the modules of each config heed: set otherwise, these change shapes or numbers, and no others do."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evoattn import (
    PROFILES,
    ConfigError,
    ESMFoldConfig,
    EvoformerBlock,
    EvoformerConfig,
    MSAModule,
    MSAModuleConfig,
    MSATransformerConfig,
    PairformerBlock,
    PairformerConfig,
    Profile,
)
from evoattn.config import TemplateConfig
from evoattn.primitives import redraw_
from evoattn.stacks import ESMFoldBlock, MSATransformerEncoder, TemplatePairStack

SWITCHES = [each.name for each in fields(Profile) if each.name != "name"]
OF_TRAINING_OR_FEATURES = {"dropout_row", "dropout_column", "dropout_mul_in", "residues", "deletions", "deletion_mean"}
SAME_EITHER_WAY = {"msa_op"}
"""Heeded, since another value means another stack; but blocks have one of their own."""

PAIR = {"n_blocks": 1, "c_z": 16, "n_head_tri_start": 2, "n_head_tri_end": 2, "c_hidden_mul": 8}
N_SEQ, N_RES = 3, 5


def pair() -> list[Tensor]:
    """z, and a mask that is not symmetric."""
    return [torch.randn(N_RES, N_RES, 16), torch.rand(N_RES, N_RES) > 0.3]


def with_msa(z: Tensor, pair_mask: Tensor) -> list[Tensor]:
    msa_mask = torch.rand(N_SEQ, N_RES) > 0.4
    msa_mask[:, 1] = False
    return [torch.randn(N_SEQ, N_RES, 8), z, msa_mask, pair_mask]


def with_single(z: Tensor, pair_mask: Tensor) -> list[Tensor]:
    return [torch.randn(N_RES, 8), z, torch.tensor([True, True, False, True, True]), pair_mask]


@dataclass(frozen=True)
class Case:
    """A config, the module whose numbers it decides, and inputs for it."""

    config: Any
    build: Callable[[Any], nn.Module]
    inputs: Callable[[], list[Tensor]]


MSA = {"c_m": 8, "c_hidden_opm": 4}
CASES = {
    "Evoformer": Case(
        EvoformerConfig(**PAIR, **MSA, n_head_msa_row=2, n_head_msa_column=2), EvoformerBlock, lambda: with_msa(*pair()),
    ),
    "extra-MSA": Case(
        EvoformerConfig(**PAIR, **MSA, n_head_msa_row=2, n_head_msa_column=2, msa_column="global"), EvoformerBlock,
        lambda: with_msa(*pair()),
    ),
    "Pairformer": Case(PairformerConfig(**PAIR, c_s=8, n_head_single=2), PairformerBlock, lambda: with_single(*pair())),
    "MSA module": Case(MSAModuleConfig(**{**PAIR, "n_blocks": 2}, **MSA, n_head_msa=2), MSAModule, lambda: with_msa(*pair())),
    "templates": Case(TemplateConfig(**PAIR), TemplatePairStack, pair),
    "ESMFold": Case(ESMFoldConfig(**PAIR, c_s=8, n_head_single=2), ESMFoldBlock, lambda: with_single(*pair())[:3]),
    "MSA Transformer": Case(
        MSATransformerConfig(n_blocks=1, c_m=8, n_head=2, c_hidden_transition=8, c_row_position=8), MSATransformerEncoder,
        lambda: [torch.randint(4, 24, (N_SEQ, N_RES))],
    ),
}  # fmt: skip


def others(profile: Profile, switch: str) -> list[Any]:
    """Values that published systems have instead."""
    own = getattr(profile, switch)
    return sorted({getattr(other, switch) for other in PROFILES.values()} - {own}, key=str)


def outputs(case: Case, config: Any, state: dict[str, Tensor] | None) -> list[Tensor] | None:
    """In evaluation; None where the parameters do not fit."""
    model = redraw_(case.build(config), seed=1).eval()
    if state is not None:
        if {name: x.shape for name, x in state.items()} != {name: x.shape for name, x in model.state_dict().items()}:
            return None
        model.load_state_dict(state)
    torch.manual_seed(0)
    with torch.no_grad():
        out = model(*case.inputs())
    parts = out if isinstance(out, tuple) else [out] if isinstance(out, Tensor) else vars(out).values()
    return [x for x in parts if x is not None]


def test_every_switch_is_heeded_somewhere_or_is_of_training_or_features() -> None:
    heeded = {switch for case in CASES.values() for switch in case.config.SWITCHES}
    assert heeded | OF_TRAINING_OR_FEATURES == set(SWITCHES) and not heeded & OF_TRAINING_OR_FEATURES


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("name", CASES)
def test_what_changes_the_numbers_is_heeded_and_nothing_else(name: str, switch: str) -> None:
    case = CASES[name]
    config = case.config
    state = redraw_(case.build(config), seed=1).state_dict()
    expected = outputs(case, config, state)
    assert expected is not None
    for value in others(config.profile, switch):
        try:
            changed = replace(config, profile=replace(config.profile, **{switch: value}))
        except ConfigError:
            assert switch in config.SWITCHES  # refused by the config itself
            continue
        got = outputs(case, changed, state)
        same = got is not None and all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        told = bool(config.differences(config.profile, changed.profile))
        assert told is not same or switch in SAME_EITHER_WAY, f"{switch} = {value!r}: same numbers {same}, told apart {told}"
