"""What a mask promises, in every backend; and the helpers that make masks."""

import pytest
import torch
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.ops import (
    AttentionSpec,
    Backend,
    attention,
    attention_weights,
    causal_mask,
    explain,
    hide_nonfinite,
    mask_from_additive,
    pair_attention,
)
from tests.ops.cases import BACKENDS

POISON = [torch.nan, torch.inf, 1e30]


def leaves(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_query_with_no_allowed_key(backend: str) -> None:
    """It gives 0, its log-sum-exp is -inf, and everything else is as if the query were not there."""
    q, k, v, bias = leaves((1, 4, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8), (1, 2, 4, 5), dtype=torch.float64)
    mask = torch.rand(1, 1, 4, 5) < 0.8
    mask[..., 2, :] = False
    others = [0, 1, 3]
    grad_out, grad_lse = torch.randn(1, 4, 2, 8, dtype=torch.float64), torch.randn(1, 4, 2, dtype=torch.float64)

    out, lse = attention(q, k, v, biases=[bias], mask=mask, backend=backend, return_lse=True)
    assert not out[:, 2].any() and (lse[:, 2] == -torch.inf).all()
    dq, dk, dv, dbias = torch.autograd.grad([out, lse], (q, k, v, bias), [grad_out, grad_lse])

    out_without, lse_without = attention(
        q[:, others], k, v, biases=[bias[:, :, others]], mask=mask[:, :, others], backend=backend, return_lse=True
    )
    without = torch.autograd.grad([out_without, lse_without], (q, k, v, bias), [grad_out[:, others], grad_lse[:, others]])
    for got, expected in zip((out[:, others], lse[:, others], dq, dk, dv, dbias), (out_without, lse_without, *without), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-13)
    assert not dq[:, 2].any() and not dbias[:, :, 2].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_key_at_all(backend: str, dtype: torch.dtype) -> None:
    inputs = leaves((1, 4, 2, 8), (1, 5, 2, 8), (1, 5, 2, 8), (1, 2, 4, 5), dtype=dtype)
    q, k, v, bias = inputs
    out = attention(q, k, v, biases=[bias], mask=torch.zeros(1, 1, 1, 5, dtype=torch.bool), backend=backend)
    assert torch.equal(out, torch.zeros_like(out))
    for x, grad in zip(inputs, torch.autograd.grad(out.sum(), inputs), strict=True):
        assert torch.equal(grad, torch.zeros_like(x))


def poisoned_call(poison: float, backend: str, place: str) -> dict[str, Tensor]:
    """Outputs and gradients with `poison` at a masked key, query or bias entry; 0 there is the clean call."""
    torch.manual_seed(1)
    q, k, v, bias, shared = leaves((2, 4, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8), (2, 2, 4, 5), (1, 2, 4, 5))
    grad_out = torch.randn(2, 4, 2, 8)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0, :, :, 3] = False  # a key that nobody in this batch entry may attend
    mask[1, :, 2, :] = False  # a query that may attend nothing
    mask[:, :, 0, 1] = False  # a bias entry masked in the whole batch
    mask[1, :, 1, 4] = False  # one masked in this batch entry
    with torch.no_grad():
        if place == "key":
            k[0, 3], v[0, 3] = poison, poison
        elif place == "query":
            q[1, 2], grad_out[1, 2] = poison, poison
        else:
            bias[:, :, 0, 1], shared[:, :, 0, 1], bias[1, :, 1, 4] = poison, poison, poison
            bias[1, :, 2, :], bias[0, :, :, 3] = poison, poison
    inputs = (q, k, v, bias, shared)
    out, lse = attention(q, k, v, biases=[bias, shared], mask=mask, backend=backend, return_lse=True)
    grads = torch.autograd.grad([out, lse], inputs, [grad_out, torch.ones_like(lse)])
    return {"out": out, "lse": lse} | dict(zip(("q", "k", "v", "bias", "shared bias"), grads, strict=True))


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("place", ["key", "query", "bias"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_stands_behind_a_mask_goes_nowhere(backend: str, place: str, poison: float) -> None:
    clean = poisoned_call(0.0, backend, place)
    for name, got in poisoned_call(poison, backend, place).items():
        assert torch.equal(got, clean[name]), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_bias_that_is_masked_in_one_batch_entry_only(backend: str) -> None:
    """NaN where the other entry looks is that entry's own affair."""
    def call(poison: float) -> list[Tensor]:
        torch.manual_seed(1)
        q, k, v, bias = leaves((2, 4, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8), (1, 2, 4, 5))
        mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
        mask[0, ..., 3] = False
        with torch.no_grad():
            bias[:, :, 1, 3] = poison
        out = attention(q, k, v, biases=[bias], mask=mask, backend=backend)
        return [out[0], *(grad[0] for grad in torch.autograd.grad(out.sum(), (q, k, v)))]

    assert all(torch.equal(got, clean) for got, clean in zip(call(torch.nan), call(0.0), strict=True))


@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("backend", ["streaming", "reference"])
def test_pair_features_behind_a_mask_go_nowhere(backend: str, poison: float) -> None:
    def call(poison: float) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        inputs = leaves((2, 4, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8), (1, 4, 5, 3), (2, 4, 2, 3))
        q, k, v, pair, pair_queries = inputs
        grad_out, grad_pair_out = torch.randn(2, 4, 2, 8), torch.randn(2, 4, 2, 3)
        mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
        mask[0, :, :, 3], mask[1, :, 2, :], mask[:, :, 0, 1], mask[:, :, 1, 0] = False, False, False, False
        with torch.no_grad():
            k[0, 3], v[0, 3], q[1, 2], pair_queries[1, 2], pair[:, 0, 1], pair[:, 1, 0] = [poison] * 6
            grad_out[1, 2], grad_pair_out[1, 2] = poison, poison
        outputs = pair_attention(q, k, v, pair, pair_queries=pair_queries, mask=mask, backend=backend)
        return *outputs, *torch.autograd.grad(outputs, inputs, [grad_out, grad_pair_out])

    assert all(torch.equal(got, clean) for got, clean in zip(call(poison), call(0.0), strict=True))


@pytest.mark.parametrize("poison", POISON)
def test_weights_of_what_stands_behind_a_mask(poison: float) -> None:
    q, k = torch.randn(1, 3, 1, 4), torch.randn(1, 5, 1, 4)
    mask = torch.ones(1, 1, 3, 5, dtype=torch.bool)
    mask[..., 2], mask[:, :, 1] = False, False
    clean = attention_weights(q, k, mask=mask)
    k[:, 2], q[:, 1] = poison, poison
    assert torch.equal(attention_weights(q, k, mask=mask), clean)
    assert not clean[..., 2].any() and not clean[:, :, 1].any()


def test_a_backend_sees_nothing_behind_the_mask_and_owes_nothing_there() -> None:
    """Whatever it does with masks: its inputs are 0 at masked places, and what it says of an empty row is not listened to."""
    q, k, v = torch.randn(2, 4, 2, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    bias, shared = torch.randn(2, 2, 4, 5), torch.randn(1, 2, 4, 5)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0, :, :, 3], mask[1, :, 2], mask[:, :, 0, 1] = False, False, False
    q[1, 2], k[0, 3], v[0, 3], shared[:, :, 0, 1] = [torch.nan] * 4
    bias.masked_fill_(~mask, torch.nan)

    def run(q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor], mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        assert all(x.isfinite().all() for x in (q, k, v, *biases))
        return torch.full_like(q, 7.0), torch.full_like(q[..., 0], 7.0)

    careless = Backend("careless", run, why_not=lambda spec: [])
    out, lse = attention(q, k, v, biases=[bias, shared], mask=mask, backend=careless, return_lse=True)
    empty = torch.zeros(2, 4, 2, dtype=torch.bool)
    empty[1, 2] = True
    assert torch.equal(out == 0.0, empty[..., None].expand_as(out)) and torch.equal(lse == -torch.inf, empty)
    assert (out[~empty] == 7.0).all() and (lse[~empty] == 7.0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_minus_infinity_in_a_bias_is_a_mask(backend: str) -> None:
    """Also a whole row of it, in the gradients too."""
    inputs = leaves((2, 4, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8))
    mask = torch.rand(1, 1, 4, 5) < 0.6
    mask[..., 1, :], mask[..., 0, 0] = False, True
    grad = torch.randn(2, 4, 2, 8)
    bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    through_bias, lse_of_bias = attention(*inputs, biases=[bias], backend=backend, return_lse=True)
    through_mask, lse_of_mask = attention(*inputs, mask=mask, backend=backend, return_lse=True)
    torch.testing.assert_close(through_bias, through_mask)
    torch.testing.assert_close(lse_of_bias, lse_of_mask)
    for got, expected in zip(*(torch.autograd.grad(out, inputs, grad) for out in (through_bias, through_mask)), strict=True):
        torch.testing.assert_close(got, expected)


def test_mask_that_hides_nothing_is_dropped() -> None:
    masks, seen = [], []

    def why_not(spec: AttentionSpec) -> list[str]:
        seen.append(spec.mask_shape)
        return []

    def run(q: Tensor, k: Tensor, v: Tensor, biases: object, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        masks.append(mask)
        return q, q[..., 0]

    q = torch.randn(1, 3, 1, 4)
    for mask in (torch.ones(1, 1, 1, 3, dtype=torch.bool), torch.tensor([True, True, False])[None, None, None]):
        attention(q, q, q, mask=mask, backend=Backend("probe", run, why_not))
    assert masks[0] is None and masks[1] is not None and seen == [None, (1, 1, 1, 3)]
    assert "no mask" in str(explain(q, q, q, mask=torch.ones(1, 1, 1, 3, dtype=torch.bool)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [-torch.inf, -1e9, -6e4, -1e4])
def test_additive_masks(hidden: float, dtype: torch.dtype) -> None:
    wanted = torch.tensor([[True, False], [False, True]])
    additive = torch.zeros(2, 2).masked_fill(~wanted, hidden).to(dtype)  # -1e9 is -inf in float16, -1e4 is -9984 in bfloat16
    assert torch.equal(mask_from_additive(additive), wanted)


@pytest.mark.parametrize(
    ("tensor", "first"),
    [([0.0, 1.0], "1"), ([-0.5, 0.0], "-0.5"), ([0.0, -100.0, -1e9], "-100"), ([torch.nan], "nan"), ([torch.inf], "inf")],
)
def test_what_is_no_additive_mask(tensor: list[float], first: str) -> None:
    with pytest.raises(ShapeError, match=rf"1 of {len(tensor)} entries are neither .* the first is {first}\. .*biases=.*mask\.bool\(\)"):
        mask_from_additive(torch.tensor(tensor))


@pytest.mark.parametrize(("q_len", "k_len"), [(4, 4), (1, 4), (2, 5), (4, 2)])
def test_causal_mask(q_len: int, k_len: int) -> None:
    q, k = torch.randn(2, q_len, 1, 4), torch.randn(2, k_len, 1, 4)
    mask = causal_mask(q, k)
    assert mask.shape == (1, 1, q_len, k_len)
    for i in range(q_len):
        for j in range(k_len):
            assert mask[0, 0, i, j] == (k_len - 1 - j >= q_len - 1 - i), (i, j)  # counted from the common end
    assert causal_mask(q[0], k[0]).shape == (1, q_len, k_len) and causal_mask(q[None], k[None]).shape == (1, 1, 1, q_len, k_len)


@pytest.mark.parametrize("backend", BACKENDS)
def test_causal_attention_ignores_the_future(backend: str) -> None:
    q, k, v = torch.randn(3, 2, 6, 2, 4).unbind()
    out = attention(q, k, v, mask=causal_mask(q, k), backend=backend)
    for i in range(6):
        alone = attention(q[:, i : i + 1], k[:, : i + 1], v[:, : i + 1], backend=backend)
        torch.testing.assert_close(out[:, i : i + 1], alone)


def test_hide_nonfinite() -> None:
    x = torch.tensor([[1.0, torch.nan], [torch.inf, 2.0], [3.0, torch.nan]], requires_grad=True)
    mask = torch.tensor([False, False, True])
    hidden = hide_nonfinite(x, mask)
    torch.testing.assert_close(hidden, torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, torch.nan]]), equal_nan=True)
    (grad,) = torch.autograd.grad(hidden, x, torch.full((3, 2), 7.0))
    assert torch.equal(grad, torch.tensor([[7.0, 0.0], [0.0, 7.0], [7.0, 7.0]]))
    assert hide_nonfinite(x, None) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64])
def test_masks_are_boolean(dtype: torch.dtype, no_type_checks: None) -> None:
    x, expected = torch.zeros(1, 2, 1, 3), rf"mask has dtype {dtype}; masks are torch\.bool.*mask\.bool\(\).*mask_from_additive"
    with pytest.raises(ShapeError, match=f"attention: {expected}"):
        attention(x, x, x, mask=torch.ones(1, 1, 2, 2, dtype=dtype))
    with pytest.raises(ShapeError, match=f"hide_nonfinite: {expected}"):
        hide_nonfinite(x, torch.ones(1, 2, 1, dtype=dtype))
