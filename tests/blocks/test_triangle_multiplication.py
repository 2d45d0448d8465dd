"""TriangleMultiplication: AlphaFold 2 supplement, algorithms 11 (outgoing edges) and 12 (incoming edges)."""

import functools
from typing import ClassVar

import pytest
import torch
from torch import nn

from evoattn import TriangleMultiplication
from tests.blocks import oracles
from tests.blocks.alphafold import GoldenTests, Run, scaled, without_mask
from tests.blocks.common import Case
from tests.blocks.contract import BlockTests, SlicedTests, assert_refused


def case(direction: str, name: str = "as published", scale: str = "sum", **settings: bool) -> Case:
    make = functools.partial(TriangleMultiplication, 6, 4, direction=direction, scale=scale, **settings)
    oracle = functools.partial(oracles.triangle_multiplication, direction=direction, scale=scale)
    return Case(f"{direction}, {name}", make, oracle, ("z",), ("pair_mask",), "z")


def a_and_b_exchanged(block: nn.Module) -> Run:
    for layer in (block.proj, block.gate):
        for parameter in layer.parameters():
            parameter.data = torch.cat(list(parameter.data.chunk(2))[::-1])
    return block


def other_direction(block: nn.Module) -> Run:
    block.direction = "incoming" if block.direction == "outgoing" else "outgoing"
    return block


def ungated(block: nn.Module) -> Run:
    block.out_gate.weight.data.zero_()
    block.out_gate.bias.data.fill_(40.0)
    return block


MUTANTS = {
    "a and b exchanged": a_and_b_exchanged,
    "other direction": other_direction,
    "ungated": ungated,
    "mask dropped": without_mask,
    "output scaled by 1.02": scaled("out.weight"),
    "gate of a and b scaled by 1.02": scaled("gate.weight"),
}


class TestOtherSystems(BlockTests, SlicedTests):
    """No biases, as in AlphaFold 3; and the product a mean, as in RosettaFold 3."""

    cases = (case("outgoing", "mean, no biases", "mean", bias=False), case("incoming", "mean, no biases", "mean", bias=False))


class TestOutgoing(BlockTests, SlicedTests, GoldenTests):
    cases = (case("outgoing"),)
    golden_keys = ("triangle_multiplication_outgoing", "triangle_multiplication_outgoing_fused")
    mutants: ClassVar = MUTANTS

    def golden_block(self) -> TriangleMultiplication:
        return TriangleMultiplication(24, 20, direction="outgoing")


class TestIncoming(BlockTests, SlicedTests, GoldenTests):
    cases = (case("incoming"),)
    golden_keys = ("triangle_multiplication_incoming", "triangle_multiplication_incoming_fused")
    mutants: ClassVar = MUTANTS

    def golden_block(self) -> TriangleMultiplication:
        return TriangleMultiplication(24, 20, direction="incoming")


@pytest.mark.parametrize(("direction", "of_a", "of_b"), [("outgoing", (0, 2), (1, 2)), ("incoming", (2, 0), (2, 1))])
def test_one_triangle(direction: str, of_a: tuple[int, int], of_b: tuple[int, int]) -> None:
    """a and b are zero but for one edge each, so the product is zero but at (0, 1): a_02 b_12 for outgoing, a_20 b_21 for incoming."""
    block = TriangleMultiplication(3, 2, direction=direction)
    block.proj.weight.data.zero_()  # the norm makes (2, -1, -1) / sqrt(2) of (1, 0, 0): channel 0 of z goes to a, channel 1 to b
    block.proj.weight.data[0] = torch.tensor([2.0, 1.0, 0.0]) * 2**0.5 / 3
    block.proj.weight.data[2] = torch.tensor([1.0, 2.0, 0.0]) * 2**0.5 / 3
    for gate in (block.gate, block.out_gate):
        gate.bias.data.fill_(40.0)  # open
    block.out.weight.data = torch.eye(3, 2)
    z = torch.zeros(3, 3, 3)
    z[(*of_a, 0)] = z[(*of_b, 1)] = 1.0
    expected = torch.zeros(3, 3)
    expected[0, 1] = 1.0  # the norm makes (1, -1) of a product of (1, 0), and (0, 0) of none
    assert torch.equal(block(z)[..., 0].round(decimals=3), expected)


@pytest.mark.parametrize("direction", ["outgoing", "incoming"])
def test_products_beyond_float16(direction: str) -> None:
    """The sum over k passes float16's largest number, 65504; the normalised result does not.

    Allowed is one rounding of float16 for each of the eight steps from z to delta.
    """
    block = case(direction).block(torch.float16)
    block.proj.weight.data *= 300.0
    z = case(direction).draw(dtype=torch.float16)[0]
    x = block.double().norm_in(z.double())
    a, b = (torch.sigmoid(block.gate(x)) * block.proj(x)).chunk(2, -1)
    assert torch.einsum("ikc,jkc->ijc" if direction == "outgoing" else "kic,kjc->ijc", a, b).abs().max() > 65504
    truth = block(z.double())
    error = (block.half()(z) - truth).norm() / truth.norm()
    assert error <= 8 * torch.finfo(torch.float16).eps


def test_an_unknown_direction_is_refused(no_type_checks: None) -> None:
    assert_refused(lambda: TriangleMultiplication(6, 4, direction="ingoing"), ["'ingoing'", "'outgoing'", "'incoming'"])
