"""PairTransition: AlphaFold 2 supplement, algorithm 15."""

import functools
from typing import ClassVar

import torch

from evoattn import PairTransition
from tests.blocks import oracles
from tests.blocks.alphafold import GoldenTests, scaled
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, SlicedTests


class TestPairTransition(BlockTests, SlicedTests, GoldenTests):
    cases = (Case("as published", lambda: PairTransition(6, 2), oracles.transition, ("z",), ("pair_mask",), "z"),)
    golden_keys = ("pair_transition",)
    mutants: ClassVar = {"hidden layer scaled by 1.02": scaled("up.weight"), "bias dropped": scaled("down.bias", 0.0)}

    def golden_block(self) -> PairTransition:
        return PairTransition(24, 2)

    def test_the_mask_changes_nothing_finite(self) -> None:
        """AlphaFold 2 computes a mask here and does not use it."""
        (case,) = self.cases
        z, mask = case.draw()[0], case.draw_masks()[0]
        assert torch.equal(case.block()(z, mask), case.block()(z))


class TestOtherSystems(BlockTests, SlicedTests):
    """SwiGLU as in AlphaFold 3, and the update zero at masked positions as in OpenFold3."""

    cases = (
        Case("swiglu", lambda: PairTransition(6, 2, "swiglu"), oracles.transition, ("z",), ("pair_mask",), "z"),
        Case(
            "zero where masked", lambda: PairTransition(6, 2, "swiglu", zero_masked=True),
            functools.partial(oracles.transition, zero_masked=True), ("z",), ("pair_mask",), "z",
        ),
    )  # fmt: skip
