"""OuterProductMean: AlphaFold 2 supplement, algorithm 10."""

import functools
from typing import ClassVar

import pytest
import torch
from torch import nn

from evoattn import OuterProductMean
from evoattn.ops import pairwise
from tests.blocks import oracles
from tests.blocks.alphafold import GoldenTests, Run, exchanged, scaled, without_mask
from tests.blocks.common import Case, assert_same
from tests.blocks.contract import BlockTests, SlicedTests, assert_refused


def never_divided(block: nn.Module) -> Run:
    return lambda m, mask: block(m, mask) * (mask.float().mT @ mask.float() + block.eps).unsqueeze(-1)


def divided_by_all_sequences(block: nn.Module) -> Run:
    return lambda m, mask: never_divided(block)(m, mask) / len(m)


class TestOtherSystems(BlockTests, SlicedTests):
    """Boltz: projections without biases, the bias of the output not divided, by at least 1."""

    cases = (
        Case(
            "sum", lambda: OuterProductMean(8, 6, 3, norm="sum", proj_bias=False),
            functools.partial(oracles.outer_product_mean, norm_of="sum"), ("m",), ("msa_mask",), "z",
        ),
    )  # fmt: skip

    def test_pairs_that_no_sequence_covers_get_the_bias(self) -> None:
        (case,) = self.cases
        block, (m,) = case.block(), case.draw()
        out = block(m, torch.zeros(m.shape[:-1], dtype=torch.bool))
        assert torch.equal(out, block.out.bias.expand_as(out))

    def test_unknown_norm_is_refused(self, no_type_checks: None) -> None:
        assert_refused(lambda: OuterProductMean(8, 6, 3, norm="mean"), ["'mean'", "'sum and bias'", "'sum'"])


class TestOuterProductMean(BlockTests, SlicedTests, GoldenTests):
    cases = (Case("as published", lambda: OuterProductMean(8, 6, 3), oracles.outer_product_mean, ("m",), ("msa_mask",), "z"),)
    golden_keys = ("outer_product_mean",)
    mutants: ClassVar = {
        "a and b exchanged": exchanged("left", "right"),
        "division dropped": never_divided,
        "divided by all sequences": divided_by_all_sequences,
        "mask dropped": without_mask,
        "bias dropped": scaled("out.bias", 0.0),
        "a scaled by 1.02": scaled("left.weight"),
    }

    def golden_block(self) -> OuterProductMean:
        return OuterProductMean(32, 24, 10)

    def test_i_is_a_and_j_is_b(self) -> None:
        """a is 1 at (sequence 0, residue 0), b at (sequence 0, residue 2): their product is at (0, 2), halved by the second sequence."""
        block = OuterProductMean(2, 1, 1, eps=0.0)
        block.norm = nn.Identity()
        block.left.weight.data, block.right.weight.data = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        block.out.weight.data = torch.ones(1, 1)
        m = torch.zeros(2, 3, 2)
        m[0, 0, 0] = m[0, 2, 1] = 1.0
        expected = torch.zeros(3, 3)
        expected[0, 2] = 0.5
        assert torch.equal(block(m)[..., 0], expected)

    def test_pairs_that_no_sequence_covers_get_the_bias_over_eps(self) -> None:
        (case,) = self.cases
        block, (m,) = case.block(), case.draw()
        out = block(m, torch.zeros(m.shape[:-1], dtype=torch.bool))
        assert torch.allclose(out, (block.out.bias / block.eps).expand_as(out), rtol=1e-12, atol=0.0)

    def test_sums_beyond_float16(self) -> None:
        """The sum over sequences passes float16's largest number, 65504; the mean does not.

        Allowed is one rounding of float16 for each of the four steps from m to delta.
        """
        (case,) = self.cases
        block = case.block(torch.float16)
        for layer in (block.left, block.right):
            layer.weight.data *= 120.0
        m = case.draw(dtype=torch.float16)[0].repeat(4, 1, 1)
        x = block.double().norm(m.double())
        assert torch.einsum("sic,sjd->ijcd", block.left(x), block.right(x)).abs().max() > 65504
        truth = block(m.double())
        assert truth.abs().max() < 65504
        error = (block.half()(m) - truth).norm() / truth.norm()
        assert error <= 4 * torch.finfo(torch.float16).eps

    def test_blocks_of_rows_change_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Inputs this small fit one block; forced through blocks of one and of four rows, forward and backward."""
        (case,) = self.cases
        whole = case.evaluate(case.block(), case.draw(2), case.draw_masks(2), case.cotangent(2))
        per_row = 2 * case.draw()[0].shape[1] * 9
        for rows in (1, 4):
            monkeypatch.setattr(pairwise, "OUTER_TILE", rows * per_row)
            assert_same(case.evaluate(case.block(), case.draw(2), case.draw_masks(2), case.cotangent(2)), whole)
