"""MSARowAttention: AlphaFold 2 supplement, algorithm 7."""

import functools
from typing import ClassVar

import pytest
import torch

from evoattn import MSARowAttention
from tests.blocks import oracles
from tests.blocks.alphafold import AttentionGoldenTests, exchanged, scaled, transposed_bias, without_mask
from tests.blocks.contract import (
    BlockTests,
    PairAsTests,
    SlicedTests,
    TwoInputTests,
    assert_refused,
    mixes_of,
    published_and_all,
    ramp,
    transparent,
)

MIXES = mixes_of(
    functools.partial(MSARowAttention, 8, 6, 2),
    functools.partial(oracles.msa_row_attention, heads=2),
    ("m", "z"),
    ("msa_mask", "pair_mask"),
    "m",
)


class TestMSARowAttention(BlockTests, SlicedTests, TwoInputTests, PairAsTests, AttentionGoldenTests):
    cases = published_and_all(MIXES)
    mixes = MIXES
    golden_keys = ("msa_row_attention_with_pair_bias",)
    key_axis = -1
    mutants: ClassVar = {
        "bias dropped": scaled("pair_bias.weight", 0.0),
        "bias transposed": transposed_bias,
        "mask dropped": without_mask,
        "queries scaled by 1.02": scaled("attn.q.weight"),
        "values scaled by 1.02": scaled("attn.v.weight"),
        "queries and keys exchanged": exchanged("attn.q", "attn.k"),
    }

    def golden_block(self) -> MSARowAttention:
        return MSARowAttention(32, 24, 4)

    def test_sequences_attend_along_residues_with_one_bias_for_all(self) -> None:
        """m[s, i] = 10 s + i. Without logits a row gives its mean; a bias of 50 on (0, 2) makes residue 0 copy residue 2, in each row."""
        block = transparent(MSARowAttention(2, 2, heads=1))
        block.pair_norm = torch.nn.Identity()
        m, z = ramp(4, 3), torch.zeros(3, 3, 2)
        block.pair_bias.weight.data = torch.tensor([[0.0, 1.0]])
        rows = 10.0 * torch.arange(4).unsqueeze(1)
        assert torch.equal(block(m, z)[..., 0], (rows + 1.0).expand(4, 3))
        z[0, 2, 1] = 50.0
        assert torch.equal(block(m, z)[..., 0], rows + torch.tensor([2.0, 1.0, 1.0]))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"heads": 3}, ["3", "8"]),
            ({"pair_as": ("bias", "queries")}, ["queries", "'keys'"]),
            ({"pair_as": "bias"}, ["'bias'", "tuple"]),
            ({"pair_as": ("keys",), "pair_mode": "appended"}, ["appended", "'values'"]),
            ({"pair_mode": "absolute"}, ["absolute", "'relative'"]),
        ],
    )
    def test_unknown_settings_are_refused(self, settings: dict, words: list[str], no_type_checks: None) -> None:
        assert_refused(lambda: MSARowAttention(8, 6, **{"heads": 2, **settings}), words)
