"""PairWeightedAveraging: AlphaFold 3 supplement, algorithm 10."""

import functools

import pytest
import torch

from evoattn import BackendError, PairWeightedAveraging, attention, explain, set_execution
from evoattn.primitives import capture_attention
from tests.blocks import oracles
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, SlicedTests, TwoInputTests, assert_refused


def case(mask: str, d_head: int) -> Case:
    make = functools.partial(PairWeightedAveraging, 8, 6, 2, d_head=d_head, mask=mask)
    oracle = functools.partial(oracles.pair_weighted_averaging, heads=2, mask=mask)
    no_gradient = ("pair_norm.bias",)  # it adds one number to all logits of a query
    return Case(f"mask of {mask}", make, oracle, ("m", "z"), ("msa_mask", "pair_mask"), "m", no_gradient)


class TestPairWeightedAveraging(BlockTests, TwoInputTests, SlicedTests):
    cases = (case("residues", d_head=4), case("pair", d_head=3))

    @pytest.mark.parametrize("backend", ["streaming", "reference"])
    def test_backend_in_float32(self, case: Case, backend: str) -> None:
        super().test_backend_in_float32(case, backend)

    def test_a_backend_that_cannot_is_refused(self) -> None:
        with pytest.raises(BackendError, match=r"sdpa.*cannot run(?s:.*)needs queries and values of one width above 0, got d 0 and dv 20"):
            self.cases[0].block(backend="sdpa")(*self.cases[0].draw())


def test_one_softmax_per_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries and keys are 0 wide, and the rows of the alignment are part of the values' width."""
    shapes = []

    def spy(q, k, v, **settings):
        shapes.append((tuple(q.shape), tuple(v.shape), settings["scale"]))
        return attention(q, k, v, **settings)

    monkeypatch.setattr("evoattn.primitives.attention.attention", spy)
    PairWeightedAveraging(8, 6, 2)(torch.randn(5, 7, 8), torch.randn(7, 7, 6))
    assert shapes == [((1, 7, 2, 0), (1, 7, 2, 5 * 4), 1.0)]


def test_backends_of_width_zero() -> None:
    """Which can take it, and what those say that cannot; the default scale is 1, not 0 ** -0.5."""
    q, v, bias = torch.zeros(3, 5, 2, 0), torch.randn(3, 5, 2, 4), torch.randn(1, 2, 5, 5)
    answer = explain(q, q, v, biases=[bias])
    assert answer.chosen == "streaming"
    assert answer.reasons["sdpa"] == ["needs queries and values of one width above 0, got d 0 and dv 4"]
    expected = torch.einsum("hqk,bkhd->bqhd", bias[0].softmax(-1), v)
    for backend in ("streaming", "reference"):
        torch.testing.assert_close(attention(q, q, v, biases=[bias], backend=backend), expected)


@pytest.mark.parametrize("backend", ["streaming", "reference"])
def test_gradients_of_width_zero(backend: str) -> None:
    q, v, bias = torch.zeros(2, 4, 3, 0), torch.randn(2, 4, 3, 5), torch.randn(1, 3, 4, 4)
    leaves = [x.double().requires_grad_() for x in (q, v, bias)]
    mask = torch.tensor([True, True, False, True]).expand(1, 1, 1, 4)

    def run(q, v, bias):
        return attention(q, q, v, biases=[bias], mask=mask, backend=backend)

    assert torch.autograd.gradcheck(run, leaves)


def test_captured_weights() -> None:
    """The same for every row of the alignment."""
    block = set_execution(PairWeightedAveraging(8, 6, 2), backend="reference")
    m, z = torch.randn(3, 5, 8), torch.randn(5, 5, 6)
    for row in (0, 2):
        with capture_attention(block, index=row) as maps:
            block(m, z)
        weights = block.pair_bias(block.pair_norm(z)).permute(2, 0, 1).softmax(-1)
        torch.testing.assert_close(maps["attn"], weights)


@pytest.mark.parametrize(("settings", "words"), [({"heads": 3}, ["3", "8"]), ({"mask": "rows"}, ["'rows'", "'residues'", "'pair'"])])
def test_unknown_settings_are_refused(settings: dict, words: list[str], no_type_checks: None) -> None:
    assert_refused(lambda: PairWeightedAveraging(8, 6, **{"heads": 2, **settings}), words)
