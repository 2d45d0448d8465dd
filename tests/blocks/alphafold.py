"""Blocks against the numbers of AlphaFold 2's own modules, and ways to get a block wrong that the comparison has to notice."""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import evoattn.primitives.attention
from evoattn import load_weights
from tests.helpers import assert_golden, assert_golden_gradient, golden
from tests.parity import record

Run = Callable[..., Tensor]


class GoldenTests:
    """Comparison with AlphaFold 2's own numbers in tests/golden/af2_modules.npz, for each of `golden_keys` of the class (see conftest.py).

    `mutants` are ways to get the block wrong; the comparison has to reject each of them.
    """

    golden_keys: ClassVar[tuple[str, ...]]
    golden_block: Callable[[], nn.Module]  # of the sizes in that file
    mutants: ClassVar[dict[str, Callable[[nn.Module], Run]]]

    @pytest.mark.parametrize("masked", ["rand", "pad"])
    def test_output_is_alphafolds(self, golden_key: str, masked: str) -> None:
        data = af2(golden_key)
        out = loaded(self.golden_block(), golden_key)(*golden_inputs(data), as_mask(data[f"{masked}/mask"]))
        error = assert_golden("output", out, data[f"{masked}/out"], self.answered(data[f"{masked}/mask"], data[f"{masked}/out"]))
        record("af2_modules", f"{golden_key}/{masked}", "out", error)

    def test_gradients_are_alphafolds(self, golden_key: str) -> None:
        """Where the file has none for "rand", "pad" has; its cotangents are not zero at padded positions."""
        data, block = af2(golden_key), loaded(self.golden_block(), golden_key)
        errors = {masked: self.compare_gradients(block, data, masked, everywhere=False) for masked in ("rand", "pad")}
        assert any(errors.values())
        for masked, compared in errors.items():
            for name, error in compared.items():
                record("af2_modules", f"{golden_key}/{masked}", f"grad/{name}", error)

    def test_wrong_blocks_are_rejected(self, golden_key: str, mutant: str) -> None:
        data = af2(golden_key)
        run = self.mutants[mutant](loaded(self.golden_block(), golden_key))
        with torch.no_grad():
            out = run(*golden_inputs(data), as_mask(data["rand/mask"]))
        with pytest.raises(AssertionError, match="output: off by"):
            assert_golden("output", out, data["rand/out"])

    def answered(self, mask: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The positions at which we follow the same rule: all of them."""
        return np.ones(values.shape[:-1], dtype=bool)

    def compare_gradients(self, block: nn.Module, data: dict[str, np.ndarray], masked: str, everywhere: bool) -> dict[str, float]:
        """Compare those that the file has, and return their largest errors."""
        inputs = golden_inputs(data)
        out = block(*inputs, as_mask(data[f"{masked}/mask"]))
        gradients = torch.autograd.grad(out, inputs, torch.from_numpy(data["in/r"]))
        compared = {}
        for name, gradient in zip(("act", "pair_act"), gradients, strict=False):
            expected = data.get(f"{masked}/grad/{name}")
            if expected is not None:
                on_mask = name == "act" and not everywhere
                valid = self.answered(data[f"{masked}/mask"], expected) if on_mask else None
                compared[name] = assert_golden_gradient(f"{masked}, gradient of {name}", gradient, expected, valid)
        return compared


class AttentionGoldenTests(GoldenTests):
    """The same for a block whose mask hides keys: a query with no allowed key gives 0 here, the mean of all values in AlphaFold 2.

    So outputs and gradients are compared wherever there is an allowed key, masked queries included; and once more everywhere with
    AlphaFold 2's rule in place of ours, which shows that nothing else differs.
    """

    key_axis: ClassVar[int]  # of the mask

    def answered(self, mask: np.ndarray, values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(mask.any(self.key_axis, keepdims=True), mask.shape)

    def test_only_the_rule_for_queries_without_keys_differs(self, golden_key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        data, block = af2(golden_key), loaded(self.golden_block(), golden_key)
        with pytest.raises(AssertionError, match="output: off by"):
            assert_golden("output", block(*golden_inputs(data), as_mask(data["pad/mask"])), data["pad/out"])
        monkeypatch.setattr(evoattn.primitives.attention, "attention", af2_attention)
        for masked in ("rand", "pad"):
            assert_golden("output", block(*golden_inputs(data), as_mask(data[f"{masked}/mask"])), data[f"{masked}/out"])
        assert self.compare_gradients(block, data, "pad", everywhere=True)


def af2_attention(q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor, backend: str) -> Tensor:
    """AlphaFold 2's: masked logits are replaced by -1e9 after the bias, so that a query with no allowed key attends to all keys alike."""
    logits = torch.einsum("...qhd,...khd->...hqk", q, k.expand(*k.shape[:-2], *q.shape[-2:])) * q.shape[-1] ** -0.5
    weights = torch.softmax(torch.where(mask, logits + sum(biases), -1e9), dim=-1)
    return torch.einsum("...hqk,...khd->...qhd", weights, v.expand(*v.shape[:-2], *q.shape[-2:]))


@functools.cache
def af2(key: str) -> dict[str, np.ndarray]:
    """One module of tests/golden/af2_modules.npz."""
    prefix = f"{key}/"
    return {name.removeprefix(prefix): array for name, array in golden("af2_modules").items() if name.startswith(prefix)}


def loaded(block: nn.Module, key: str) -> nn.Module:
    parameters = {name.removeprefix("param/"): array for name, array in af2(key).items() if name.startswith("param/")}
    load_weights(block, parameters, scope=key.removesuffix("_fused"))
    return block


def golden_inputs(data: dict[str, np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(data[name]).requires_grad_() for name in ("in/act", "in/pair_act") if name in data]


def as_mask(mask: np.ndarray) -> Tensor:
    return torch.from_numpy(mask.astype(bool))


def without_mask(block: nn.Module) -> Run:
    return lambda *arguments: block(*arguments[:-1])


def scaled(name: str, factor: float = 1.02) -> Callable[[nn.Module], Run]:
    """The block with one parameter scaled; by 2 % unless told."""

    def mutate(block: nn.Module) -> Run:
        block.get_parameter(name).data.mul_(factor)
        return block

    return mutate


def transposed_bias(block: nn.Module) -> Run:
    block.pair_bias.register_forward_hook(lambda module, arguments, out: out.transpose(-2, -3))
    return block


def exchanged(first: str, second: str) -> Callable[[nn.Module], Run]:
    """The block with two of its layers exchanged."""

    def mutate(block: nn.Module) -> Run:
        one, other = block.get_submodule(first), block.get_submodule(second)
        block.set_submodule(first, other)
        block.set_submodule(second, one)
        return block

    return mutate
