"""TiedRowAttention, ungated column attention and SequenceToPair, of the MSA Transformer and ESMFold. tests/stacks compares with ESM."""

import functools

import pytest
import torch

from evoattn import MSAColumnAttention
from evoattn.blocks import SequenceToPair, TiedRowAttention
from evoattn.updates import update, update_
from tests.blocks import esm_oracles
from tests.blocks.common import Case, assert_same, padded, places
from tests.blocks.contract import BlockTests, SlicedTests, assert_refused, ramp


class TestTiedRowAttention(BlockTests):
    cases = (
        Case(
            "as published", lambda: TiedRowAttention(8, 4), functools.partial(esm_oracles.tied_row_attention, heads=4), ("m",),
            ("msa_mask",), "m", without_gradient=("attn.k.bias",),  # it adds one number to all logits of a query
        ),
    )  # fmt: skip

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("fill", [torch.nan, torch.inf, "huge"])
    def test_padding_changes_nothing(self, case: Case, fill: float | str, dtype: torch.dtype) -> None:
        """But the scale, as published: 5 rows become 7, which larger queries undo."""
        value = 1e30 if fill == "huge" else fill
        block, (m,), (mask,) = case.block(dtype), case.draw(dtype=dtype), case.draw_masks()
        cotangent = case.cotangent(dtype=dtype)
        truth = case.evaluate(block, [m], [mask], cotangent)
        for parameter in block.attn.q.parameters():
            parameter.data *= (7 / 5) ** 0.5
        got = case.evaluate(block, [padded("m", m, value)], [padded("msa_mask", mask, False)], padded("m", cotangent, 0.0))
        assert got["output"].isfinite().all()
        compared = ("output", "gradient of m")
        assert_same({name: got[name][places("m")] for name in compared}, {name: truth[name] for name in compared})

    def test_one_map_for_all_rows(self) -> None:
        """m[s, i] = 10 s + i. Without logits each row gives its own mean, over the residues of the first."""
        block = TiedRowAttention(2, heads=1)
        block.norm = torch.nn.Identity()
        block.attn.q.weight.data.zero_()
        for layer in (block.attn.v, block.attn.out):
            layer.weight.data = torch.eye(2)
        mask = torch.ones(5, 3, dtype=torch.bool)
        assert torch.equal(block(ramp(5, 3))[..., 0], (1 + 10.0 * torch.arange(5))[:, None].expand(5, 3))
        mask[1] = False  # masked rows have no part in the map, but are averaged with it
        mask[0, 0] = False
        assert torch.equal(block(ramp(5, 3), mask)[..., 0], (1.5 + 10.0 * torch.arange(5))[:, None].expand(5, 3))

    def test_the_map_is_the_one_that_averages(self) -> None:
        (case,) = self.cases
        block, (m,), (mask,) = case.block(), case.draw(2), case.draw_masks(2)
        maps, v = block.weights(m, mask), block.attn.v(block.norm(m)).unflatten(-1, (4, 2))
        average = torch.einsum("bhij,bsjhd->bsihd", maps, v).flatten(-2)
        torch.testing.assert_close(block(m, mask), block.attn.out(average))
        assert maps.shape == (2, 4, 6, 6)

    def test_heads_have_to_divide_the_width(self) -> None:
        assert_refused(lambda: TiedRowAttention(8, 3), ["3", "8"])


class TestUngatedColumnAttention(BlockTests, SlicedTests):
    cases = (
        Case(
            "MSA Transformer", lambda: MSAColumnAttention(8, 4, gated=False, qkv_bias=True),
            functools.partial(esm_oracles.column_attention, heads=4), ("m",), ("msa_mask",), "m",
            without_gradient=("attn.k.bias",),
        ),
    )  # fmt: skip


class TestSequenceToPair(BlockTests):
    cases = (Case("as published", lambda: SequenceToPair(10, 6), esm_oracles.sequence_to_pair, ("s",), ("mask",), "z"),)

    def test_j_is_q_and_i_is_k(self) -> None:
        """With q_j = s_j and k_i = 1: the product is s_j, the difference s_j - 1."""
        block = SequenceToPair(1, 2)
        block.norm = torch.nn.Identity()
        block.norm.normalized_shape = (1,)
        block.proj.weight.data, block.proj.bias.data = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 1.0])
        block.out.weight.data = torch.eye(2)
        out = block(torch.tensor([[3.0], [5.0]]))
        assert out.tolist() == [[[3.0, 2.0], [5.0, 4.0]]] * 2

    @pytest.mark.parametrize("memory", [1, 10**6])
    def test_slices_equal_the_whole(self, memory: int) -> None:
        (case,) = self.cases
        block, (s,), (mask,) = case.block(), case.draw(2), case.draw_masks(2)
        z = torch.randn(2, 6, 6, 6, dtype=torch.float64)
        with torch.no_grad():
            whole = update(z, block, s, mask)
            torch.testing.assert_close(update_(z.clone(), block, s, mask, memory=memory), whole)

    def test_hidden_channels_are_half_of_the_pairs_unless_told(self) -> None:
        assert SequenceToPair(10, 6).proj.out_features == 6 and SequenceToPair(10, 6, c_hidden=5).out.in_features == 10
