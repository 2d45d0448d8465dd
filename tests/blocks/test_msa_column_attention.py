"""MSAColumnAttention: AlphaFold 2 supplement, algorithm 8."""

import functools
from typing import ClassVar

import torch

from evoattn import MSAColumnAttention
from tests.blocks import oracles
from tests.blocks.alphafold import AttentionGoldenTests, exchanged, scaled, without_mask
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, SlicedTests, assert_refused, ramp, transparent


class TestMSAColumnAttention(BlockTests, SlicedTests, AttentionGoldenTests):
    cases = (
        Case(
            "as published",
            lambda: MSAColumnAttention(8, 4),
            functools.partial(oracles.msa_column_attention, heads=4),
            ("m",),
            ("msa_mask",),
            "m",
        ),
    )
    golden_keys = ("msa_column_attention",)
    key_axis = -2
    mutants: ClassVar = {
        "mask dropped": without_mask,
        "queries scaled by 1.02": scaled("attn.q.weight"),
        "queries and keys exchanged": exchanged("attn.q", "attn.k"),
    }

    def golden_block(self) -> MSAColumnAttention:
        return MSAColumnAttention(32, 2)

    def test_residues_attend_along_sequences(self) -> None:
        """m[s, i] = 10 s + i. Without logits a column gives its mean, over the unmasked sequences."""
        block = transparent(MSAColumnAttention(2, heads=1))
        columns = torch.arange(3.0)
        assert torch.equal(block(ramp(5, 3))[..., 0], (20.0 + columns).expand(5, 3))
        mask = torch.ones(5, 3, dtype=torch.bool)
        mask[1:4, 2] = False
        mask[:3, 0] = False
        assert torch.equal(block(ramp(5, 3), mask)[..., 0], (torch.tensor([35.0, 20.0, 20.0]) + columns).expand(5, 3))

    def test_heads_have_to_divide_the_width(self) -> None:
        assert_refused(lambda: MSAColumnAttention(8, 3), ["3", "8"])
