"""The Triton kernels of attention, run as Python by Triton's interpreter, against loops in float64: outputs and every gradient.

In float32 and float16: the interpreter multiplies bfloat16 wrongly. What a card makes of the kernels is for `evoattn check` on that card.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from evoattn.ops import AttentionSpec, Backend, attention
from evoattn.ops.triton import TRITON
from evoattn.ops.triton import attention as host
from evoattn.ops.triton.tiles import Tile
from tests.ops.cases import BY_NAME, check, make, truth
from tests.ops.mutants import break_kernels

pytest.importorskip("triton", reason="triton is not installed")

HERE = replace(TRITON, why_not=lambda spec: [])  # on a CPU, where only the interpreter runs
SINGLE = [
    "no_batch", "one_position", "one_channel", "msa_row", "msa_column", "five_biases", "second_axis_varies", "rank_three",
    "bias_per_query_and_head", "mask_per_head", "shared_key_head", "shared_key_head_mask_per_head", "permuted", "channels_strided",
    "expanded", "wider_values", "narrower_values_one_head",
]  # fmt: skip
HALF = ["no_batch", "mask_per_head", "shared_key_head", "small_two_biases"]
SMALL = BY_NAME["small_two_biases"]


@pytest.fixture(autouse=True)
def tiles_of_32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "tile", lambda *_: Tile(32, 32, 4, 1))


@pytest.mark.parametrize("name", [*SINGLE, "small_two_biases"])
def test_outputs_and_all_gradients(name: str) -> None:
    check(BY_NAME[name], torch.float32, HERE)


@pytest.mark.parametrize("name", HALF)
def test_half_precision(name: str) -> None:
    check(BY_NAME[name], torch.float16, HERE)


@pytest.mark.parametrize("tile", [(16, 32), (32, 16)])
def test_many_tiles(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """43 queries and 63 keys: neither is a whole number of blocks."""
    monkeypatch.setattr(host, "tile", lambda *_: Tile(*tile, 4, 1))
    check(BY_NAME["long_cross"], torch.float32, HERE)


@pytest.mark.parametrize("programs", [1, 3])
def test_gradient_of_a_shared_bias_in_parts(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its three rows summed by one program, or by two and one."""
    monkeypatch.setattr(host, "PROGRAMS", programs)
    check(SMALL, torch.float32, HERE)


def test_the_same_bits_in_every_run() -> None:
    def grads() -> list[Tensor]:
        inputs = make(SMALL, torch.float32)
        out = attention(inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, backend=HERE)
        return list(torch.autograd.grad(out, list(inputs.named.values()), inputs.grad_out))

    assert all(torch.equal(one, other) for one, other in zip(grads(), grads(), strict=True))


def test_one_input_alone_wants_a_gradient() -> None:
    for name in truth(SMALL.name).gradients:
        inputs = make(SMALL, torch.float32)
        for other, x in inputs.named.items():
            x.requires_grad_(other == name)
        out, lse = attention(inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, backend=HERE, return_lse=True)
        (grad,) = torch.autograd.grad([out, lse], inputs.named[name], [inputs.grad_out, inputs.grad_lse])
        torch.testing.assert_close(grad.double(), torch.from_numpy(truth(SMALL.name).gradients[name]), rtol=1e-4, atol=1e-5)


def test_output_alone_and_log_sum_exp_alone() -> None:
    inputs = make(SMALL, torch.float32)
    wanted = list(inputs.named.values())
    out, lse = attention(inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, backend=HERE, return_lse=True)
    both = torch.autograd.grad([out, lse], wanted, [inputs.grad_out, inputs.grad_lse], retain_graph=True)
    one = torch.autograd.grad(out, wanted, inputs.grad_out, retain_graph=True)
    other = torch.autograd.grad(lse, wanted, inputs.grad_lse)
    for total, first, second in zip(both, one, other, strict=True):
        torch.testing.assert_close(total, first + second, rtol=1e-4, atol=1e-5)


NAN_IN_NUMPY = "ignore:invalid value encountered:RuntimeWarning"  # which the interpreter computes with


def with_nan_behind_the_mask(backend: str | Backend) -> list[Tensor]:
    """Output and gradients with NaN at a masked key, and in a whole masked row, its incoming gradient too."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, bias = (torch.randn(shape, generator=generator) for shape in ((3, 5, 2, 8), (3, 5, 2, 8), (3, 5, 2, 8), (1, 2, 5, 5)))
    mask = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    mask[0, ..., 2], mask[1] = False, False
    grad = torch.randn(3, 5, 2, 8, generator=generator)
    k[0, 2], v[0, 2], q[1], k[1], v[1], grad[1] = torch.nan, torch.inf, torch.nan, torch.nan, torch.nan, torch.nan
    inputs = [x.requires_grad_() for x in (q, k, v, bias)]
    out = attention(q, k, v, biases=[bias], mask=mask, backend=backend)
    return [out, *torch.autograd.grad(out, inputs, grad)]


@pytest.mark.filterwarnings(NAN_IN_NUMPY)
def test_what_stands_behind_a_mask() -> None:
    """The kernels hide it themselves: no operand is copied for it. Elsewhere NaN in a bias is seen."""
    assert HERE.hides(replace(SPEC, mask_shape=(3, 1, 1, 5))) and not HERE.hides(replace(SPEC, mask_shape=(3, 1, 5, 5)))
    for got, expected in zip(with_nan_behind_the_mask(HERE), with_nan_behind_the_mask("reference"), strict=True):
        torch.testing.assert_close(got, expected)
    q, bias, mask = torch.randn(3, 5, 2, 8), torch.zeros(1, 2, 5, 5), torch.ones(3, 1, 1, 5, dtype=torch.bool)
    bias[..., 2], mask[0, ..., 2], mask[1] = torch.nan, False, False
    out = attention(q, q, q, biases=[bias], mask=mask, backend=HERE)
    assert out[:2].isfinite().all() and out[2].isnan().all()


@pytest.mark.filterwarnings(NAN_IN_NUMPY)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("v, strides[2], keys, attended, DV", "v, strides[2], keys, keys < n_keys, DV"),
        ("k, strides[1], keys, attended, D", "k, strides[1], keys, keys < n_keys, D"),
        ("tl.where(weights == 0.0, 0.0, weights * (grad_weights - correction))", "weights * (grad_weights - correction)"),
        ("tl.where(attended, result_k * scale, 0.0)", "result_k * scale"),
        ("tl.where(attended, result_v, 0.0)", "result_v"),
    ],
)
def test_a_kernel_that_reads_behind_the_mask_is_found_out(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch, "attention_kernels", right, wrong)
    assert any(x.isnan().any() for x in with_nan_behind_the_mask(HERE))


# Lines of the kernels, and what a mistake in them would look like.
MUTANTS = {
    "no bias per key": ("logits += added", "logits += 0.0"),
    "no pair bias": ("strides[1][5]), other=0.0).to(tl.float32) * LOG2_E", "strides[1][5]), other=0.0) * 0.0"),
    "scale off by 2 %": ("products * (scale * LOG2_E)", "products * (1.02 * scale * LOG2_E)"),
    "mask ignored": ("return tl.where(allowed, logits", "return tl.where(keys < strides[2][5], logits"),
    "log-sum-exp of the last block": ("tl.log2(total) + top)", "tl.log2(total) + 0.99 * top)"),
    "keys detached": ("result_k * scale, 0.0", "result_k * 0.0, 0.0"),
    "values detached": ("grad_v_stride, result_v,", "grad_v_stride, result_v * 0.0,"),
    "log-sum-exp detached": ("correction -= tl.load(grad_lse", "correction -= 0.0 * tl.load(grad_lse"),
    "gradient of the pair bias from one row": ("result += gradient_of_logits(", "result = gradient_of_logits("),
    "gradient of the bias per key from one head": ("result_bias += tl.sum(grad_logits, 1)", "result_bias += tl.sum(grad_logits, 1) * head"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_kernels(monkeypatch, "attention_kernels", *MUTANTS[mutant])
    monkeypatch.setattr(host, "PROGRAMS", 1)
    with pytest.raises(AssertionError, match=r"error .*, allowed"):
        check(SMALL, torch.float32, HERE)


SPEC = AttentionSpec(
    batch=(64,), q_len=96, k_len=96, heads=4, kv_heads=4, d=32, dv=32, dtype=torch.bfloat16, device="cuda", arch="sm_90",
    bias_shapes=((1, 4, 96, 96), (64, 1, 1, 96)), bias_dtypes=(torch.bfloat16, torch.float32), mask_shape=(64, 1, 1, 96),
    needs_grad=True, bias_needs_grad=True, return_lse=True,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {}, {"arch": "sm_80"}, {"arch": "sm_120"}, {"dtype": torch.float32}, {"dtype": torch.float16}, {"d": 8, "dv": 128}, {"q_len": 1},
        {"kv_heads": 1}, {"batch": (2, 3, 64), "bias_shapes": ((2, 1, 1, 4, 96, 96),), "mask_shape": (2, 3, 64, 1, 1, 96)},
        {"batch": (2, 32), "bias_shapes": ((1, 1, 4, 96, 96), (2, 1, 4, 96, 96)), "mask_shape": (1, 32, 1, 1, 96)},
    ],
)  # fmt: skip
def test_what_it_serves(change: dict[str, object]) -> None:
    assert TRITON.why_not(replace(SPEC, **change)) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"device": "cpu", "arch": None}, "serves NVIDIA cards, not cpu"),
        ({"device": "mps", "arch": None}, "serves NVIDIA cards, not mps"),
        ({"arch": "gfx942"}, "serves NVIDIA cards, not gfx942"),
        ({"arch": "sm_75"}, "needs an NVIDIA card of compute capability 8.0 or above, got sm_75"),
        ({"dtype": torch.float64}, "computes in float32, bfloat16 and float16, not in float64"),
        ({"dv": 160}, "serves heads up to 128 wide, got d 32 and dv 160"),
        ({"bias_dtypes": (torch.bfloat16, torch.float64)}, "takes biases of float32, bfloat16 and float16, got float64"),
        (
            {"batch": (2, 3, 4), "bias_shapes": ((2, 1, 4, 4, 96, 96),), "mask_shape": None},
            "biases and mask may split the batch axes into two groups by what they share, not (2, 3, 4) into 3",
        ),
        (
            {"batch": (2, 3), "bias_shapes": ((2, 1, 4, 96, 96), (1, 3, 4, 96, 96)), "mask_shape": None},
            "adds up the biases that vary along the queries, and the sum of [2, 1, 4, 96, 96], [1, 3, 4, 96, 96] is larger than each",
        ),
        ({"batch": (2**30,), "bias_shapes": (), "mask_shape": None}, "starts at most 2147483647 programs, needs up to 25769803776"),
    ],
)
def test_what_it_does_not_serve(change: dict[str, object], reason: str) -> None:
    assert TRITON.why_not(replace(SPEC, **change)) == [reason]
