"""The Triton halves of the triangle multiplicative update, run by Triton's interpreter, against float64: outputs and gradients."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from evoattn.ops import triangle_product
from evoattn.ops.layers import Linear, Norm
from evoattn.ops.triangle_update import IN_STEPS, TRITON, TriangleWeights, divisor, triangle_update
from evoattn.ops.triton import triangle
from evoattn.ops.triton.triangle import gated_output, gated_projection
from tests.helpers import assert_within_twice
from tests.ops.cases import grid
from tests.ops.mutants import break_kernels

pytest.importorskip("triton", reason="triton is not installed")

C_Z, C = 20, 12  # neither is a power of two


@dataclass
class Inputs:
    """Of both halves: z [2, n, n2, c_z], product [2, c, n, n2], and the layers as lists of weight and bias."""

    tensors: dict[str, Tensor]
    mask: Tensor

    def pair(self, name: str) -> tuple[Tensor, Tensor]:
        return self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]


def make(dtype: torch.dtype, n: int = 9, n2: int = 9) -> Inputs:
    generator = torch.Generator().manual_seed(3)
    layers = {"proj": (2 * C, C_Z), "gating": (2 * C, C_Z), "out": (C_Z, C), "out_gating": (C_Z, C_Z), "norm": (C_Z,), "product_norm": (C,)}
    shapes = {"z": (2, n, n2, C_Z), "product": (2, C, n, n2)} | {f"{name}.weight": shape for name, shape in layers.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in layers.items()}

    def draw(name: str, shape: tuple[int, ...]) -> Tensor:
        spread = 4 if name.endswith("weight") and len(shape) == 2 else 1
        return grid(torch.randn(shape, generator=generator) / spread).to(dtype).requires_grad_()

    mask = torch.rand(2, n, n2, generator=generator) < 0.7
    return Inputs({name: draw(name, shape) for name, shape in shapes.items()}, mask)


def projection(i: Inputs) -> Tensor:
    return gated_projection(i.tensors["z"], i.mask, Norm(*i.pair("norm")), Linear(*i.pair("proj")), Linear(*i.pair("gating")))


def output(i: Inputs) -> Tensor:
    product = i.tensors["product"]
    return gated_output(product, Norm(*i.pair("product_norm")), Linear(*i.pair("out")), i.tensors["z"], Norm(*i.pair("norm")),
                        Linear(*i.pair("out_gating")))  # fmt: skip


def norm_by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def sigmoid_by_hand(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def projection_by_hand(i: Inputs) -> Tensor:
    x = norm_by_hand(i.tensors["z"], *i.pair("norm"))
    (proj, proj_bias), (gating, gating_bias) = i.pair("proj"), i.pair("gating")
    value = (torch.einsum("bijz,cz->bcij", x, proj) + proj_bias[:, None, None]) * sigmoid_by_hand(
        torch.einsum("bijz,cz->bcij", x, gating) + gating_bias[:, None, None]
    )
    return value * i.mask[:, None]


def output_by_hand(i: Inputs) -> Tensor:
    y = norm_by_hand(i.tensors["product"].permute(0, 2, 3, 1), *i.pair("product_norm"))
    x = norm_by_hand(i.tensors["z"], *i.pair("norm"))
    (out, out_bias), (gating, gating_bias) = i.pair("out"), i.pair("out_gating")
    return (torch.einsum("bijc,zc->bijz", y, out) + out_bias) * sigmoid_by_hand(torch.einsum("bijx,zx->bijz", x, gating) + gating_bias)


HALVES = {"projection": (projection, projection_by_hand), "output": (output, output_by_hand)}


def results(out: Tensor, inputs: Inputs) -> dict[str, Tensor]:
    grad = grid(torch.randn(out.shape, generator=torch.Generator().manual_seed(4))).to(out.dtype)
    found = torch.autograd.grad(out, list(inputs.tensors.values()), grad, allow_unused=True)
    return {"out": out} | {name: x for name, x in zip(inputs.tensors, found, strict=True) if x is not None}


def compare(half: str, dtype: torch.dtype, **sizes: int) -> None:
    fused, by_hand = HALVES[half]
    inputs, wide = make(dtype, **sizes), make(torch.float64, **sizes)
    got, usual, exact = results(fused(inputs), inputs), results(by_hand(inputs), inputs), results(by_hand(wide), wide)
    assert got.keys() == exact.keys() and got["out"].dtype == dtype
    for name, x in got.items():
        assert_within_twice(f"{half}, {name}", x, usual[name], exact[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("half", HALVES)
def test_output_and_all_gradients(half: str, dtype: torch.dtype) -> None:
    compare(half, dtype)


@pytest.mark.parametrize("half", HALVES)
def test_rows_that_are_not_square_and_a_backward_pass_in_parts(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triangle, "BACKWARD_PAIRS", 3 * 11)
    compare(half, torch.float32, n=7, n2=11)


@pytest.mark.parametrize("incoming", [False, True])
def test_whole_update(incoming: bool) -> None:
    """Both halves with the product between them, without batch axes, biases and mask."""
    inputs = make(torch.float64).tensors
    weights = {name: x.detach().float() for name, x in inputs.items() if not name.startswith("product.")}
    z, norm, product_norm = weights["z"][0], Norm(weights["norm.weight"], None), Norm(None, weights["product_norm.bias"], eps=1e-3)
    proj, gating, out, out_gating = (Linear(weights[f"{name}.weight"], None) for name in ("proj", "gating", "out", "out_gating"))
    a, b = gated_projection(z, None, norm, proj, gating).chunk(2, dim=-3)
    got = gated_output(triangle_product(a, b, incoming=incoming), product_norm, out, z, norm, out_gating)

    x = norm_by_hand(z.double(), norm.weight.double(), torch.zeros(()))
    ab = (x @ proj.weight.double().mT) * sigmoid_by_hand(x @ gating.weight.double().mT)
    product = torch.einsum("kic,kjc->ijc" if incoming else "ikc,jkc->ijc", ab[..., :C], ab[..., C:])
    centred = product - product.mean(-1, keepdim=True)
    y = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() + product_norm.bias.double()
    exact = (y @ out.weight.double().mT) * sigmoid_by_hand(x @ out_gating.weight.double().mT)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("incoming", [False, True])
def test_in_steps(incoming: bool) -> None:
    """Some rows or columns at a time, each from its own operand and the other one whole: as the reference makes them all."""
    inputs = make(torch.float64)
    tensors = {name: x.detach().float() for name, x in inputs.tensors.items()}
    names = ("norm", "proj", "gating", "product_norm", "out", "out_gating")
    weights = TriangleWeights(*((Norm if "norm" in x else Linear)(tensors[f"{x}.weight"], tensors[f"{x}.bias"]) for x in names))
    z, mask, axis = tensors["z"], inputs.mask, 2 if incoming else 1
    steps, divide_by = IN_STEPS[TRITON], divisor(z, mask)
    whole = steps.operand(z, weights, mask, 0 if incoming else 1)
    parts = zip(z.split(4, axis), mask.split(4, axis), strict=True)
    got = torch.cat([steps.delta(part, whole, weights, its_mask, incoming, divide_by) for part, its_mask in parts], axis)

    exact = TriangleWeights(*(layer._replace(weight=layer.weight.double(), bias=layer.bias.double()) for layer in weights))
    expected = triangle_update(z.double(), exact, incoming=incoming, mask=mask, mean=True, backend="reference")
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)


def test_product_wider_than_the_pairs() -> None:
    """A product that overflows float16 stays in float32 until it is normalised."""
    inputs = make(torch.float16)
    wide = inputs.tensors["product"].detach().float() * 1e5
    inputs.tensors["product"] = wide.requires_grad_()
    got = results(output(inputs), inputs)
    exact = make(torch.float64)
    exact.tensors["product"] = wide.detach().double().requires_grad_()
    expected = results(output_by_hand(exact), exact)
    assert got["out"].dtype == torch.float16 and got["product"].dtype == torch.float32
    torch.testing.assert_close(got["out"].double(), expected["out"], rtol=2e-2, atol=2e-2)


# Lines of the kernels, and what a mistake in them would look like.
MUTANTS = {
    "mask ignored": ("projection", "kept = tl.load(mask + entry * n_pairs + pairs, mask=inside, other=0) != 0", "pass"),
    "no gate": ("projection", "value * tl.sigmoid(gate), 0.0", "value * 0.5, 0.0"),
    "no bias": ("projection", "load_vector(bias, outputs, n_outputs, 0.0)[None, :]", "0.0"),
    "variance of the padded width": ("projection", "tl.sum(centred * centred, 1) / C", "tl.sum(centred * centred, 1) / BLOCK_C"),
    "bias of the other norm": ("output", "product_norm_bias, product_eps, C_H", "norm_bias, product_eps, C_H"),
    "no output gate": ("output", "(value * tl.sigmoid(gate))", "value"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_kernel_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half, right, wrong = MUTANTS[mutant]
    break_kernels(monkeypatch, "triangle_kernels", right, wrong)
    with pytest.raises(AssertionError, match=r"error .*, allowed"):
        compare(half, torch.float32)


@pytest.mark.parametrize(
    ("change", "channels", "reasons"),
    [
        ({}, (128, 128), []),
        ({"arch": "sm_75"}, (128, 128), ["needs an NVIDIA card of compute capability 8.0 or above, got sm_75"]),
        ({"device": "cpu", "arch": None}, (128,), ["serves NVIDIA cards, not cpu"]),
        ({"dtype": torch.float64}, (128,), ["computes in float32, bfloat16 and float16, not in float64"]),
        ({}, (128, 384), ["holds up to 256 channels of a pair in bfloat16, got 384"]),
        ({"dtype": torch.float32}, (192, 128), ["holds up to 128 channels of a pair in float32, got 192"]),
    ],
)
def test_what_it_serves(change: dict[str, object], channels: tuple[int, ...], reasons: list[str]) -> None:
    spec = SimpleNamespace(**{"device": "cuda", "arch": "sm_90", "dtype": torch.bfloat16} | change)
    assert triangle.why_not(spec, channels) == reasons
