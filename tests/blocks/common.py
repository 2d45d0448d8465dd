"""Inputs, and what a block or its oracle makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from evoattn import set_execution
from evoattn.primitives import redraw_
from tests.helpers import worst

SIZE = {"s": 5, "n": 6}
AXES = {"m": "sn", "z": "nn", "s": "n", "msa_mask": "sn", "pair_mask": "nn", "mask": "n"}
WIDTH = {"m": 8, "z": 6, "s": 10}

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A block under test: how it is built, its oracle, and what goes in and out, named as in AXES and in the order of `forward`."""

    name: str
    make: Callable[[], nn.Module]
    oracle: Callable[..., Tensor]
    inputs: tuple[str, ...]
    masks: tuple[str, ...]
    output: str
    without_gradient: tuple[str, ...] = ()  # inputs and parameters that the output does not depend on

    def block(self, dtype: torch.dtype = torch.float64, backend: str = "auto") -> nn.Module:
        """The block with parameters that are all non-zero, the same on every call."""
        return set_execution(redraw_(self.make(), seed=1), backend=backend).to(dtype)

    def draw(self, *batch: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        generator = torch.Generator().manual_seed(2)
        return [torch.randn(*batch, *shape(name), WIDTH[name], generator=generator).to(dtype) for name in self.inputs]

    def draw_masks(self, *batch: int) -> list[Tensor]:
        """A quarter hidden at random (pair masks are not symmetric), residue 1 and the last sequence altogether."""
        generator = torch.Generator().manual_seed(3)
        masks = []
        for name in self.masks:
            mask = torch.rand(*batch, *shape(name), generator=generator) > 0.25
            for axis, letter in enumerate(AXES[name]):
                mask.select(axis - len(AXES[name]), 1 if letter == "n" else -1).fill_(False)
            masks.append(mask)
        return masks

    def no_masks(self, value: bool, *batch: int) -> list[Tensor]:
        return [torch.full((*batch, *shape(name)), value) for name in self.masks]

    def cotangent(self, *batch: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """A fixed random weight of each entry of the output, for gradients."""
        generator = torch.Generator().manual_seed(4)
        width = WIDTH[self.output]
        return torch.randn(*batch, *shape(self.output), width, generator=generator).to(dtype)

    def evaluate(self, block: nn.Module, inputs: Sequence[Tensor], masks: Sequence[Tensor | None], cotangent: Tensor) -> Results:
        """What the block gives, and the gradients of its inputs and parameters."""
        return evaluate(block, dict(zip(self.inputs, inputs, strict=True)), masks, dict(block.named_parameters()), cotangent)

    def evaluate_oracle(self, inputs: Sequence[Tensor], masks: Sequence[Tensor], cotangent: Tensor) -> Results:
        """The same of the loops, in the dtype of the inputs."""
        parameters = {name: x.detach().to(inputs[0].dtype).requires_grad_() for name, x in self.block().named_parameters()}
        named = dict(zip(self.inputs, inputs, strict=True))
        return evaluate(lambda *x: self.oracle(parameters, *x), named, masks, parameters, cotangent)


def loop_over_batch(
    one: Callable[..., Results], inputs: Sequence[Tensor], masks: Sequence[Tensor], cotangent: Tensor, rank: int
) -> Results:
    """`one` called on each entry of `rank` batch axes: results stacked, but gradients of parameters (names with a dot) added up."""
    batch = cotangent.shape[:rank]
    results: dict[str, list[Tensor]] = {}
    for entry in np.ndindex(*batch):
        for name, value in one([x[entry] for x in inputs], [mask[entry] for mask in masks], cotangent[entry]).items():
            results.setdefault(name, []).append(value)
    return {name: sum(values) if "." in name else torch.stack(values).unflatten(0, batch) for name, values in results.items()}


def evaluate(
    run: Callable[..., Tensor], inputs: dict[str, Tensor], masks: Sequence[Tensor | None], parameters: dict[str, Tensor], cotangent: Tensor
) -> Results:
    """The output, and the gradients of sum(output * cotangent)."""
    inputs = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    out = run(*inputs.values(), *masks)
    leaves = {**inputs, **parameters}
    gradients = torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True, materialize_grads=True)
    return {"output": out.detach()} | {f"gradient of {name}": grad for name, grad in zip(leaves, gradients, strict=True)}


def shape(name: str) -> tuple[int, ...]:
    return tuple(SIZE[letter] for letter in AXES[name])


def assert_same(got: Results, truth: Results) -> None:
    """Equal up to rounding: 200 eps of the dtype, relative to `size_of`."""
    assert got.keys() == truth.keys()
    for name in truth:
        mine, theirs = got[name], truth[name]
        assert mine.shape == theirs.shape, f"{name}: shape {tuple(mine.shape)}, expected {tuple(theirs.shape)}"
        error, allowed = worst(mine, theirs), 200 * torch.finfo(theirs.dtype).eps * size_of(name, truth)
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def assert_rule(got: Results, plain: Results, truth: Results) -> None:
    """The project's rule for errors: error <= 2 error(plain) + 4 eps size, `plain` being loops in the dtype of `got`, `truth` float64.

    Error of plain and size are those of the output, or of all gradients together, since each gradient is made from others.
    """
    for name in truth:
        error = max(worst(plain[other], truth[other]) for other in kin(name, truth))
        allowed = 2 * error + 4 * torch.finfo(got[name].dtype).eps * size_of(name, truth)
        assert worst(got[name], truth[name]) <= allowed, f"{name}: error {worst(got[name], truth[name]):.2e}, allowed {allowed:.2e}"


def size_of(name: str, truth: Results) -> float:
    """Largest entry of the output, or of any gradient: some gradients are sums whose terms cancel.

    That of the offset of a pair bias is exactly zero, since adding one number to all logits changes no softmax.
    """
    return max(worst(truth[other], torch.zeros(())) for other in kin(name, truth))


def kin(name: str, results: Results) -> list[str]:
    """The output alone, or all gradients."""
    return [other for other in results if (other == "output") == (name == "output")]


def places(name: str) -> tuple[Tensor, ...]:
    """Where the entries of a tensor go when residue and sequence 2, and one more of each at the end, are inserted as padding."""
    axes = AXES[name]
    kept = {letter: torch.tensor([i for i in range(size + 2) if i not in (2, size + 1)]) for letter, size in SIZE.items()}
    return tuple(kept[letter].reshape(-1, *[1] * (len(axes) - 1 - axis)) for axis, letter in enumerate(axes))


def padded(name: str, x: Tensor, fill: float | bool) -> Tensor:
    """`x` with such padding, filled with `fill` (numbers with random sign and size)."""
    out = x.new_full([SIZE[letter] + 2 for letter in AXES[name]] + list(x.shape[len(AXES[name]) :]), fill)
    if fill and x.is_floating_point():
        out *= torch.randn(out.shape, dtype=x.dtype)
    out[places(name)] = x
    return out
