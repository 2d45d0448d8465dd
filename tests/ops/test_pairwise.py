"""triangle_product() and outer_product_mean() against loops in float64, in all dtypes, in blocks, and where float16 sums overflow."""

import numpy as np
import pytest
import torch
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.ops import outer_product_mean, pairwise, triangle_product
from evoattn.ops.pairwise import channels_first
from tests.helpers import assert_within_twice
from tests.ops import oracle
from tests.ops.cases import grid

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def compare(got: dict[str, Tensor], usual: dict[str, Tensor], exact: dict[str, np.ndarray]) -> None:
    for name, x in got.items():
        assert_within_twice(name, x, usual[name], torch.from_numpy(exact[name]))


def with_gradients(out: Tensor, grad_out: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    return {"out": out} | dict(zip(inputs, torch.autograd.grad(out, list(inputs.values()), grad_out), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("incoming", [False, True])
@pytest.mark.parametrize("batch", [(), (2, 1)])
def test_triangle_product(batch: tuple[int, ...], incoming: bool, dtype: torch.dtype) -> None:
    a, b = (grid(torch.randn(*batch, 3, 5, 5)).to(dtype).requires_grad_() for _ in range(2))
    out = triangle_product(a, b, incoming=incoming)
    assert out.dtype == (torch.float32 if dtype == torch.float16 else dtype)
    grad = grid(torch.randn(out.shape)).to(out.dtype)
    exact = oracle.triangle_product(*(x.detach().double().numpy() for x in (a, b)), incoming=incoming, grad_out=grad.double().numpy())
    wide_a, wide_b = a.to(out.dtype), b.to(out.dtype)
    equation = "...ki,...kj->...ij" if incoming else "...ik,...jk->...ij"
    usual = with_gradients(torch.einsum(equation, wide_a, wide_b), grad, a=a, b=b)
    compare(with_gradients(out, grad, a=a, b=b), usual, exact.outputs | exact.gradients)


def test_triangle_product_by_hand() -> None:
    """a has a single edge 0 -> 2, b a single edge 1 -> 2: outgoing they close the triangle at 2 for edge (0, 1), incoming for none."""
    a, b = torch.zeros(1, 3, 3), torch.zeros(1, 3, 3)
    a[0, 0, 2], b[0, 1, 2] = 2.0, 5.0
    outgoing = torch.zeros(1, 3, 3)
    outgoing[0, 0, 1] = 10.0
    assert torch.equal(triangle_product(a, b), outgoing)
    assert not triangle_product(a, b, incoming=True).any()
    assert torch.equal(triangle_product(a.mT, b.mT, incoming=True), outgoing)


def make_outer(batch: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    shapes = {"a": (*batch, 6, 5, 3), "b": (*batch, 6, 5, 2), "weight": (4, 6), "bias": (4,)}
    return {name: grid(torch.randn(shape)).to(dtype).requires_grad_() for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["lean", "reference"])
@pytest.mark.parametrize("tile", [2**22, 1, 2 * 5 * 6])
@pytest.mark.parametrize("batch", [(), (2, 2)])
def test_outer_product_mean(
    batch: tuple[int, ...], tile: int, backend: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one block, row by row, and in blocks of two rows with one left over."""
    monkeypatch.setattr(pairwise, "OUTER_TILE", tile * max(1, int(np.prod(batch))))
    inputs = make_outer(batch, dtype)
    count = torch.rand(*batch, 5, 5) + 1.0
    out = outer_product_mean(**inputs, count=count, backend=backend)
    assert out.dtype == dtype
    grad = grid(torch.randn(out.shape)).to(dtype)
    arrays = {name: x.detach().double().numpy() for name, x in inputs.items()}
    exact = oracle.outer_product_mean(**arrays, count=count.double().numpy(), grad_out=grad.double().numpy())
    wide = {name: x.to(torch.promote_types(dtype, torch.float32)) for name, x in inputs.items()}
    outer = torch.einsum("...sic,...sjd->...ijcd", wide["a"], wide["b"]).flatten(-2)
    usual = ((outer @ wide["weight"].mT + wide["bias"]) / count.unsqueeze(-1)).to(dtype)
    compare(with_gradients(out, grad, **inputs), with_gradients(usual, grad, **inputs), exact.outputs | exact.gradients)


def test_outer_product_mean_without_bias() -> None:
    inputs = make_outer((), torch.float64)
    inputs["bias"].requires_grad_(False)
    count = torch.ones(5, 5, dtype=torch.float64)
    without = outer_product_mean(inputs["a"], inputs["b"], inputs["weight"], None, count)
    torch.testing.assert_close(without + inputs["bias"], outer_product_mean(**inputs, count=count))
    b, weight = inputs["b"], inputs["weight"]
    assert torch.autograd.gradcheck(lambda a: outer_product_mean(a, b, weight, None, count), inputs["a"], fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_triangle_sums_beyond_float16(dtype: torch.dtype) -> None:
    """64 products of about 60 x 60 pass 65504; the result, normalised in its block afterwards, must still be right."""
    a, b = (grid(torch.rand(2, 64, 64) + 1.0).to(dtype).mul(32).requires_grad_() for _ in range(2))
    out = triangle_product(a, b)
    exact = a.double() @ b.double().mT
    assert exact.min() > 65504
    torch.testing.assert_close(out.double(), exact, rtol=max(torch.finfo(out.dtype).eps, 1e-6), atol=0.0)
    grads = torch.autograd.grad(out, (a, b), torch.full_like(out, 1e-3))
    for got, wanted in zip(grads, torch.autograd.grad(exact, (a, b), torch.full_like(exact, 1e-3)), strict=True):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=2 * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outer_product_sums_beyond_float16(dtype: torch.dtype) -> None:
    """512 sequences: the sum over them passes 65504, their mean does not; neither does the bias after division by a small count."""
    a, b = (grid(torch.rand(512, 6, 4) + 1.0).to(dtype).mul(8).requires_grad_() for _ in range(2))
    weight, bias = grid(torch.randn(3, 16)).to(dtype).requires_grad_(), torch.full((3,), 32.0, dtype=dtype, requires_grad=True)
    count = torch.full((6, 6), 512.001)
    out = outer_product_mean(a, b, weight, bias, count)
    outer = torch.einsum("sic,sjd->ijcd", a.double(), b.double()).flatten(-2)
    exact = (outer @ weight.double().mT + bias.double()) / count.double().unsqueeze(-1)
    assert outer.min() > 65504 and exact.abs().max() < 65504
    eps = torch.finfo(dtype).eps
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), exact, rtol=2 * eps, atol=2 * eps * exact.abs().max().item())
    inputs = (a, b, weight, bias)
    for got, wanted in zip(*(torch.autograd.grad(x.sum(), inputs) for x in (out, exact)), strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted, rtol=4 * eps, atol=4 * eps * wanted.abs().max().item())


def test_autocast_does_not_reach_into_the_ops() -> None:
    a, inputs, count = torch.randn(2, 5, 5), make_outer((), torch.float32), torch.ones(5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = triangle_product(a, a), outer_product_mean(**inputs, count=count)
    assert torch.equal(inside[0], triangle_product(a, a)) and torch.equal(inside[1], outer_product_mean(**inputs, count=count))


@pytest.mark.parametrize("shapes", [((2, 4, 4), (2, 4, 5)), ((4, 4), (4, 4)), ((2, 4, 4), (1, 4, 4))])
def test_bad_triangle_input(shapes: tuple[tuple[int, ...], tuple[int, ...]], no_type_checks: None) -> None:
    with pytest.raises(ShapeError, match=r"a has shape .*expected two alike, \[\*batch, c, N_res, N_res\], channels first"):
        triangle_product(torch.zeros(shapes[0]), torch.zeros(shapes[1]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"b": torch.zeros(7, 5, 2)}, r"a has shape \(6, 5, 3\).*b \(7, 5, 2\).*expected \[\*batch, N_seq, N_res, c\], alike in all but"),
        ({"b": torch.zeros(6, 5, 2).double()}, r"b .*torch\.float64"),
        ({"a": torch.zeros(5, 3)}, r"a has shape \(5, 3\)"),
        ({"weight": torch.zeros(4, 5)}, r"weight has shape \(4, 5\); expected \(4, 6\)"),
        ({"bias": torch.zeros(5)}, r"bias has shape \(5,\); expected \(4,\)"),
        ({"count": torch.zeros(5)}, r"count has shape \(5,\); expected \(5, 5\)"),
    ],
)
def test_bad_outer_product_input(change: dict[str, Tensor], message: str, no_type_checks: None) -> None:
    inputs = make_outer((), torch.float32) | {"count": torch.ones(5, 5)} | change
    with pytest.raises(ShapeError, match=message):
        outer_product_mean(**inputs)


def test_slices() -> None:
    """Slices of edges i give those slices of the result: what the products are cut into."""
    a, b = torch.randn(2, 5, 5), torch.randn(2, 5, 5)
    torch.testing.assert_close(triangle_product(a[:, 1:3], b), triangle_product(a, b)[:, 1:3])
    torch.testing.assert_close(triangle_product(a[:, :, 1:3], b, incoming=True), triangle_product(a, b, incoming=True)[:, 1:3])
    inputs = make_outer((), torch.float32)
    whole = outer_product_mean(**inputs, count=torch.ones(5, 5))
    part = outer_product_mean(inputs["a"][:, 1:3], inputs["b"], inputs["weight"], inputs["bias"], torch.ones(2, 5))
    torch.testing.assert_close(part, whole[1:3])


@pytest.mark.parametrize("with_bias", [False, True])
def test_channels_first(with_bias: bool) -> None:
    layer = torch.nn.Linear(4, 3, bias=with_bias)
    for batch in ((), (2,), (2, 1)):
        x = torch.randn(*batch, 5, 6, 4, requires_grad=True)
        out, usual = channels_first(x, layer.weight, layer.bias), layer(x).movedim(-1, -3)
        torch.testing.assert_close(out, usual)
        wanted, grad = [x, *layer.parameters()], torch.randn(out.shape)
        for got, expected in zip(torch.autograd.grad(out, wanted, grad), torch.autograd.grad(usual, wanted, grad), strict=True):
            torch.testing.assert_close(got, expected)
