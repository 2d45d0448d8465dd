"""TriangleAttention: AlphaFold 2 supplement, algorithms 13 (starting node) and 14 (ending node)."""

import functools
from typing import ClassVar

import pytest
import torch

from evoattn import TriangleAttention
from tests.blocks import oracles
from tests.blocks.alphafold import AttentionGoldenTests, exchanged, scaled, transposed_bias, without_mask
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, PairAsTests, SlicedTests, assert_refused, mixes_of, published_and_all, ramp, transparent

MUTANTS = {
    "bias dropped": scaled("pair_bias.weight", 0.0),
    "bias transposed": transposed_bias,
    "mask dropped": without_mask,
    "mask transposed": lambda block: lambda z, mask: block(z, mask.mT),
    "other node": lambda block: lambda z, mask: block(z.transpose(0, 1), mask.mT).transpose(0, 1),
    "queries scaled by 1.02": scaled("attn.q.weight"),
    "queries and keys exchanged": exchanged("attn.q", "attn.k"),
}


def mixes(node: str, heads: int) -> list[Case]:
    make = functools.partial(TriangleAttention, 6, heads, node=node)
    return mixes_of(make, functools.partial(oracles.triangle_attention, heads=heads, node=node), ("z",), ("pair_mask",), "z")


def case(name: str, node: str, **switch: str) -> Case:
    """A switch of other systems, together with their layers without biases and heads of another width."""
    make = functools.partial(TriangleAttention, 6, 2, node=node, d_head=4, bias=False, **switch)
    return Case(name, make, functools.partial(oracles.triangle_attention, heads=2, node=node, **switch), ("z",), ("pair_mask",), "z")


class TestStartingNode(BlockTests, SlicedTests, PairAsTests, AttentionGoldenTests):
    mixes = mixes("starting", 3)
    cases = (*published_and_all(mixes), case("mask ki, no biases, wide heads", "starting", starting_mask="ki"))
    golden_keys = ("triangle_attention_starting_node",)
    key_axis = -1
    mutants: ClassVar = MUTANTS

    def golden_block(self) -> TriangleAttention:
        return TriangleAttention(24, 3, node="starting")


class TestEndingNode(BlockTests, SlicedTests, PairAsTests, AttentionGoldenTests):
    mixes = mixes("ending", 2)
    cases = (
        *published_and_all(mixes),
        case("third edge ik, no biases, wide heads", "ending", ending_bias="ik"),
        case("third edge jk, no biases, wide heads", "ending", ending_bias="jk"),
    )
    golden_keys = ("triangle_attention_ending_node",)
    key_axis = -2
    mutants: ClassVar = MUTANTS

    def golden_block(self) -> TriangleAttention:
        return TriangleAttention(24, 2, node="ending")


def test_orientation_by_hand() -> None:
    """z[i, j] = 10 i + j. Without logits ij gives the mean of z_ik, or of z_kj; a bias of 50 on one third edge selects one k."""
    starting, ending = (transparent(TriangleAttention(2, heads=1, node=node)) for node in ("starting", "ending"))
    for block in (starting, ending):
        block.pair_bias.weight.data = torch.tensor([[0.0, 1.0]])
    index, z = torch.arange(3.0), ramp(3, 3)
    assert torch.equal(starting(z)[..., 0], (10 * index + 1).unsqueeze(1).expand(3, 3))
    assert torch.equal(ending(z)[..., 0], (10 + index).expand(3, 3))

    third = z.clone()
    third[0, 2, 1] = 50.0  # b_jk with j = 0, k = 2: all i0 look at i2
    expected = (10 * index + 1).unsqueeze(1).repeat(1, 3)
    expected[:, 0] = z[:, 2, 0]
    assert torch.equal(starting(third)[..., 0], expected)

    third = z.clone()
    third[2, 0, 1] = 50.0  # b_ki with k = 2, i = 0: all 0j look at 2j
    expected = (10 + index).repeat(3, 1)
    expected[0] = z[2, :, 0]
    assert torch.equal(ending(third)[..., 0], expected)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"node": "end"}, ["'end'", "'starting'", "'ending'"]),
        ({"heads": 4}, ["4", "6"]),
        ({"pair_as": ("biases",)}, ["biases", "'bias'"]),
        ({"pair_as": ("bias", "values"), "pair_mode": "appended"}, ["appended", "'keys'"]),
        ({"ending_bias": "ij"}, ["'ij'", "'ki'", "'ik'", "'jk'"]),
        ({"starting_mask": "jk"}, ["'jk'", "'ik'", "'ki'"]),
        ({"ending_bias": "jk", "pair_as": ("keys",)}, ["'jk'", "'keys'", "'bias'"]),
    ],
)
def test_unknown_settings_are_refused(settings: dict, words: list[str], no_type_checks: None) -> None:
    assert_refused(lambda: TriangleAttention(6, **{"heads": 2, "node": "starting", **settings}), words)
