"""MSATransition: AlphaFold 2 supplement, algorithm 9."""

from typing import ClassVar

import torch

from evoattn import MSATransition
from tests.blocks import oracles
from tests.blocks.alphafold import GoldenTests, scaled
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, SlicedTests


class TestMSATransition(BlockTests, SlicedTests, GoldenTests):
    cases = (Case("as published", lambda: MSATransition(8, 3), oracles.transition, ("m",), ("msa_mask",), "m"),)
    golden_keys = ("msa_transition",)
    mutants: ClassVar = {"hidden layer scaled by 1.02": scaled("up.weight"), "bias dropped": scaled("down.bias", 0.0)}

    def golden_block(self) -> MSATransition:
        return MSATransition(32, 4)

    def test_the_mask_changes_nothing_finite(self) -> None:
        """AlphaFold 2 computes a mask here and does not use it."""
        (case,) = self.cases
        m, mask = case.draw()[0], case.draw_masks()[0]
        assert torch.equal(case.block()(m, mask), case.block()(m))
