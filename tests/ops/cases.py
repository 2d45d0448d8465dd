"""Attention calls that between them meet every kind of mask, bias, layout and size, and the comparison they are put through."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from evoattn.ops import ATTENTION, Backend, attention
from tests.helpers import assert_within_twice, worst
from tests.ops import oracle

BACKENDS = [backend.name for backend in ATTENTION.backends if not backend.needs_check]
"""Those that are plain torch and run anywhere."""

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    """One call. Biases and masks are written as the axes they have: "x1hqk" is shared along the second batch axis, "xy11k" a key mask.

    Every mask has a query without any allowed key: where it has a query axis the first query, else everything of the last batch entry.
    """

    name: str
    batch: tuple[int, ...] = (2,)
    q: int = 7
    k: int = 7
    heads: int = 2
    kv_heads: int = 2
    d: int = 8
    dv: int = 8
    biases: tuple[str, ...] = ()
    mask: str | None = None
    layout: str = "plain"
    scale: float | None = None

    def shape(self, axes: str) -> tuple[int, ...]:
        sizes = dict(zip("xyz", self.batch, strict=False)) | {"h": self.heads, "q": self.q, "k": self.k, "1": 1}
        return tuple(sizes[axis] for axis in axes)


CASES = [
    Case("no_batch", (), 7, 7, 2, 2, 5, 5, biases=("hqk",)),
    Case("no_batch_masked", (), 3, 15, 3, 3, 4, 4, mask="1qk"),
    Case("one_position", (3,), 1, 1, 2, 2, 5, 5, biases=("xhqk",), mask="x11k"),
    Case("one_channel", (2,), 16, 2, 1, 1, 1, 1, biases=("1hqk",)),
    Case("msa_row", (2, 3), 17, 17, 3, 3, 12, 12, biases=("x1hqk",), mask="xy11k"),
    Case("msa_row_one_example", (1, 5), 16, 16, 2, 2, 8, 8, biases=("11hqk",), mask="1y11k"),
    Case("rows_times_columns", (2, 4), 9, 9, 2, 2, 8, 8, biases=("x1hqk",), mask="rows x columns"),
    Case("msa_column", (2, 3), 15, 15, 2, 2, 20, 20, mask="xy11k"),
    Case("two_biases", (2, 3), 7, 7, 2, 2, 8, 8, biases=("x1hqk", "xy11k"), mask="xy11k"),
    Case("small_two_biases", (3,), 5, 7, 2, 2, 8, 8, biases=("1hqk", "x11k"), mask="x11k"),
    Case("five_biases", (2, 2), 3, 5, 2, 2, 4, 4, biases=("x1hqk", "111qk", "xy11k", "1yh1k", "x1hq1")),
    Case("second_axis_varies", (3, 2), 7, 7, 2, 2, 8, 8, biases=("1yhqk",), mask="1y1qk"),
    Case("rank_three", (2, 1, 2), 3, 5, 2, 2, 5, 5, biases=("x11hqk",), mask="x1z11k"),
    Case("bias_per_query_and_head", (2,), 5, 7, 3, 3, 8, 8, biases=("11q1", "1h11")),
    Case("mask_per_head", (2,), 16, 17, 3, 3, 8, 8, biases=("xhqk",), mask="xhqk"),
    Case("full_mask", (2, 2), 7, 15, 2, 2, 8, 8, mask="xy1qk"),
    Case("shared_key_head", (3,), 15, 33, 4, 1, 8, 8, biases=("1hqk",), mask="x11k"),
    Case("shared_key_head_mask_per_head", (2,), 7, 9, 3, 1, 5, 5, mask="xhqk"),
    Case("long", (1,), 101, 100, 2, 2, 12, 12, biases=("1hqk",), mask="x1qk"),
    Case("long_cross", (1,), 43, 63, 1, 1, 32, 32, biases=("1hqk",), scale=0.5),
    Case("permuted", (2, 3), 7, 16, 2, 2, 8, 8, biases=("x1hqk",), mask="xy11k", layout="permuted"),
    Case("channels_strided", (2,), 7, 7, 2, 2, 5, 5, biases=("xhqk",), layout="channels_strided"),
    Case("slices_of_one_tensor", (2, 3), 17, 17, 2, 2, 12, 12, biases=("x1hqk",), mask="xy11k", layout="fused"),
    Case("expanded", (3, 2), 7, 7, 2, 2, 8, 8, biases=("xyhqk",), mask="xyhqk", layout="expanded"),
    Case("wider_values", (2,), 7, 16, 2, 2, 5, 12, biases=("1hqk",), mask="x11k"),
    Case("narrower_values_one_head", (2, 2), 7, 9, 3, 1, 20, 1, biases=("x1hqk",)),
]
BY_NAME = {case.name: case for case in CASES}


@dataclass
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    biases: list[Tensor]
    mask: Tensor | None
    grad_out: Tensor
    grad_lse: Tensor

    @property
    def named(self) -> dict[str, Tensor]:
        """The differentiable ones."""
        return {"q": self.q, "k": self.k, "v": self.v} | {f"biases[{n}]": bias for n, bias in enumerate(self.biases)}


def make(case: Case, dtype: torch.dtype) -> Inputs:
    """The inputs of `case`: the same numbers in every dtype, since they are multiples of 1/32 below 4 (8 significant bits)."""
    generator = torch.Generator().manual_seed(sum(map(ord, case.name)))

    def draw(*shape: int) -> Tensor:
        return grid(torch.randn(shape, generator=generator)).to(dtype)

    sizes = [(case.q, case.heads, case.d), (case.k, case.kv_heads, case.d), (case.k, case.kv_heads, case.dv)]
    q, k, v = (lay_out(draw(*case.batch, *size), case.layout) for size in sizes)
    if case.layout == "fused":
        q, k, v = torch.cat([q, k, v], dim=-1).chunk(3, dim=-1)
    biases = [grid(draw(*case.shape(axes)) / 2) for axes in case.biases]  # logits of a few units, as usual
    if case.layout == "expanded":
        biases = [bias[:1].expand_as(bias) for bias in biases]
    mask = None if case.mask is None else make_mask(case, generator)
    grad_out, grad_lse = draw(*case.batch, case.q, case.heads, case.dv), draw(*case.batch, case.q, case.heads)
    q, k, v, *biases = (x.detach().requires_grad_() for x in (q, k, v, *biases))
    return Inputs(q, k, v, biases, mask, grad_out, grad_lse)


def grid(x: Tensor) -> Tensor:
    return (x.clamp(-3.9, 3.9) * 32).round() / 32


def lay_out(x: Tensor, layout: str) -> Tensor:
    """The same numbers in another order in memory, or shared along the first axis."""
    if layout == "permuted":
        return x.transpose(-2, -3).contiguous().transpose(-2, -3)
    if layout == "channels_strided":
        return x.mT.contiguous().mT
    if layout == "expanded":
        return x[:1].expand_as(x)
    return x


def make_mask(case: Case, generator: torch.Generator) -> Tensor:
    if case.mask == "rows x columns":
        rows, columns = (torch.rand(size, generator=generator) < 0.7 for size in (case.batch, (case.batch[0], 1, case.k)))
        columns[..., 0], rows[0, 0], rows[-1, -1] = True, True, False
        return (rows[..., None] & columns)[..., None, None, :]
    assert case.mask is not None
    mask = torch.rand(case.shape(case.mask), generator=generator) < 0.7
    mask[..., -1] = True
    if "q" in case.mask:
        mask[..., 0, :] = False
    elif case.batch:
        mask[(-1,) * len(case.batch)] = False
    return mask


@cache
def truth(name: str) -> oracle.Result:
    """The oracle's answer to a case, whose inputs are the same numbers in every dtype."""
    case, inputs = BY_NAME[name], make(BY_NAME[name], torch.float64)

    def array(x: Tensor) -> np.ndarray:
        return x.detach().numpy()

    return oracle.attention(
        array(inputs.q), array(inputs.k), array(inputs.v), biases=[array(bias) for bias in inputs.biases],
        mask=None if inputs.mask is None else array(inputs.mask), scale=case.scale,
        grad_out=array(inputs.grad_out), grad_lse=array(inputs.grad_lse),
    )  # fmt: skip


def plain(inputs: Inputs, scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention as it is usually written, everything in the dtype of the inputs: the yardstick for errors."""
    logits = torch.einsum("...qhd,...khd->...hqk", inputs.q * (inputs.q.shape[-1] ** -0.5 if scale is None else scale), inputs.k)
    for bias in inputs.biases:
        logits = logits + bias
    empty = torch.zeros_like(logits[..., :1], dtype=torch.bool)
    if inputs.mask is not None:
        empty = ~inputs.mask.expand_as(logits).any(-1, keepdim=True)
        logits = logits.masked_fill(~(inputs.mask | empty), -torch.inf)
    weights = torch.softmax(logits, dim=-1).masked_fill(empty, 0.0)
    lse = torch.logsumexp(logits, dim=-1).masked_fill(empty.squeeze(-1), -torch.inf)
    return torch.einsum("...hqk,...khd->...qhd", weights, inputs.v), lse.transpose(-1, -2)


def results(inputs: Inputs, out: Tensor, lse: Tensor) -> dict[str, Tensor]:
    """Outputs and all gradients, by name."""
    grads = torch.autograd.grad([out, lse], list(inputs.named.values()), [inputs.grad_out, inputs.grad_lse.to(lse.dtype)])
    return {"out": out, "lse": lse} | {f"gradient of {name}": grad for name, grad in zip(inputs.named, grads, strict=True)}


@cache
def yardstick(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    inputs = make(BY_NAME[name], dtype)
    return results(inputs, *plain(inputs, BY_NAME[name].scale))


def check(case: Case, dtype: torch.dtype, backend: str | Backend) -> None:
    """Outputs and all gradients of `backend` are as close to the oracle as plain torch is, by the rule of a factor of two."""
    inputs = make(case, dtype)
    out, lse = attention(
        inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, scale=case.scale, backend=backend, return_lse=True
    )
    assert (out.dtype, lse.dtype) == (dtype, torch.promote_types(dtype, torch.float32))
    expected = truth(case.name).outputs | {f"gradient of {name}": grad for name, grad in truth(case.name).gradients.items()}
    for name, got in results(inputs, out, lse).items():
        exact, usual = torch.from_numpy(expected[name]), yardstick(case.name, dtype)[name]
        assert worst(usual, exact) < torch.inf, f"{name}: plain torch is no yardstick here"
        assert_within_twice(f"{case.name}, {name}", got, usual, exact)
