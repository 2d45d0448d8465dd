"""MSAGlobalColumnAttention: AlphaFold 2 supplement, algorithm 19."""

import functools
from typing import ClassVar

import torch

from evoattn import MSAGlobalColumnAttention
from tests.blocks import oracles
from tests.blocks.alphafold import AttentionGoldenTests, scaled, without_mask
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, SlicedTests, assert_refused, ramp, transparent


class TestMSAGlobalColumnAttention(BlockTests, SlicedTests, AttentionGoldenTests):
    cases = (
        Case(
            "as published",
            lambda: MSAGlobalColumnAttention(8, 2),
            functools.partial(oracles.msa_global_column_attention, heads=2),
            ("m",),
            ("msa_mask",),
            "m",
        ),
    )
    golden_keys = ("msa_column_global_attention",)
    key_axis = -2
    mutants: ClassVar = {
        "mask dropped": without_mask,
        "queries scaled by 1.02": scaled("attn.q.weight"),
        "values scaled by 1.02": scaled("attn.v.weight"),
    }

    def golden_block(self) -> MSAGlobalColumnAttention:
        return MSAGlobalColumnAttention(32, 2)

    def test_the_query_is_the_mean_of_the_column(self) -> None:
        """Keys are 10 s in the one channel that counts, so with queries of one sign the column gives its last, or its first, sequence."""
        block = transparent(MSAGlobalColumnAttention(2, heads=1))
        pick = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        block.attn.q.weight.data, block.attn.k.weight.data = pick.clone(), pick.clone()
        m = ramp(5, 3)
        assert torch.equal(block(m)[..., 0], (40.0 + torch.arange(3.0)).expand(5, 3))
        assert torch.equal(block(-m)[..., 0], (-40.0 - torch.arange(3.0)).expand(5, 3))
        block.attn.q.weight.data *= -1
        assert torch.equal(block(m)[..., 0], torch.arange(3.0).expand(5, 3))

    def test_heads_have_to_divide_the_width(self) -> None:
        assert_refused(lambda: MSAGlobalColumnAttention(8, 3), ["3", "8"])
