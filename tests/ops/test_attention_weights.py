"""attention_weights(): the probabilities of chosen heads and rows."""

import numpy as np
import pytest
import torch

from evoattn.errors import ShapeError
from evoattn.ops import attention, attention_weights
from tests.ops.cases import BY_NAME, CASES, make


@pytest.mark.parametrize(
    "name", ["no_batch_masked", "msa_row", "two_biases", "mask_per_head", "shared_key_head_mask_per_head", "bias_per_query_and_head"]
)
def test_weights_are_what_attention_averages_with(name: str) -> None:
    """The values are chosen such that the average of them is the probabilities: one unit vector per key."""
    inputs, case = make(BY_NAME[name], torch.float64), BY_NAME[name]
    values = torch.eye(case.k, dtype=torch.float64)[:, None].expand(*case.batch, case.k, case.kv_heads, case.k)
    expected = attention(inputs.q, inputs.k, values, biases=inputs.biases, mask=inputs.mask, backend="reference").transpose(-2, -3)
    weights = attention_weights(inputs.q, inputs.k, biases=inputs.biases, mask=inputs.mask)
    torch.testing.assert_close(weights, expected)
    heads, rows = [case.heads - 1, 0], [-1, 0, 1]
    chosen = attention_weights(inputs.q, inputs.k, biases=inputs.biases, mask=inputs.mask, heads=heads, rows=rows)
    torch.testing.assert_close(chosen, expected[..., heads, :, :][..., rows, :])


def test_by_hand() -> None:
    """Logits 0 and log 3 give 1/4 and 3/4."""
    q, k = torch.zeros(2, 1, 4), torch.zeros(2, 1, 4)
    bias = torch.tensor([[[0.0, np.log(3)], [0.0, 0.0]]])
    torch.testing.assert_close(attention_weights(q, k, biases=[bias]), torch.tensor([[[0.25, 0.75], [0.5, 0.5]]]))
    mask = torch.tensor([[[True, False], [False, False]]])
    assert torch.equal(attention_weights(q, k, biases=[bias], mask=mask), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]))


def test_differentiable() -> None:
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 2, 4), (2, 5, 2, 4), (1, 2, 3, 5))]
    mask = torch.rand(2, 1, 1, 5) < 0.8
    assert torch.autograd.gradcheck(
        lambda q, k, bias: attention_weights(q, k, biases=[bias], mask=mask, heads=[1], rows=[0, 2]), inputs, fast_mode=True
    )


def test_half_precision_gives_float32() -> None:
    inputs = make(BY_NAME["msa_row"], torch.float16)
    weights = attention_weights(inputs.q, inputs.k, biases=inputs.biases)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))


@pytest.mark.parametrize(
    ("heads", "rows", "message"),
    [([2], None, r"heads \[2\] are out of range; there are 2"), (None, [0, -8], r"rows \[-8\] are .* 7")],
)
def test_out_of_range(heads: list[int] | None, rows: list[int] | None, message: str) -> None:
    inputs = make(CASES[0], torch.float32)
    with pytest.raises(ShapeError, match=message):
        attention_weights(inputs.q, inputs.k, heads=heads, rows=rows)
