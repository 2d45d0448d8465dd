"""The calls on which ``evoattn check`` compares backends: one list per op."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from evoattn.ops import ATTENTION, Backend, Registry, attention, outer_product_mean
from evoattn.ops.layers import Linear, Norm
from evoattn.ops.pairwise import OUTER_PRODUCT_MEAN, describe_outer
from evoattn.ops.spec import describe
from evoattn.ops.triangle_update import TRIANGLE_UPDATE, TriangleWeights, describe_update, triangle_update

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One call: the shapes of its tensors by name, how they lie in memory, and what else it is called with.

    "mask" is boolean, and hides all of its first entry. `strided`: the last two axes are exchanged in memory.
    """

    name: str
    shapes: dict[str, tuple[int, ...]]
    strided: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def inputs(self, dtype: torch.dtype, device: torch.device) -> Inputs:
        """The same numbers in every dtype: multiples of 1/16 below 4; of a matrix of weights or a bias smaller ones."""
        generator = torch.Generator().manual_seed(0)
        made = {}
        for name, shape in self.shapes.items():
            x = torch.randn(shape, generator=generator)
            if name == "mask":
                made[name] = (x < 0.5).index_fill(0, torch.tensor([0]), False).to(device)
                continue
            x = (x.clamp(-3.9, 3.9) * 16).round() / (64 if name.startswith("bias") or len(shape) == 2 else 16)
            x = x.to(device, dtype)
            made[name] = (x.mT.contiguous().mT if self.strided and x.dim() > 1 else x).requires_grad_()
        return made


@dataclass(frozen=True)
class Subject:
    """An op under test: its backends, its cases, how one is called with a backend, and the spec of that call."""

    registry: Registry
    cases: Sequence[Case]
    call: Callable[[Case, Inputs, Backend], Tensor]
    spec: Callable[[Case, Inputs], Any]


def _qkv(batch: tuple[int, ...], q: int, k: int, heads: int, d: int, kv_heads: int | None = None) -> dict[str, tuple[int, ...]]:
    return {"q": (*batch, q, heads, d), "k": (*batch, k, kv_heads or heads, d), "v": (*batch, k, kv_heads or heads, d)}


ROWS = {"bias": (2, 1, 4, 129, 129), "mask": (2, 3, 1, 1, 129)}
ATTENTIONS = (
    Case("rows with a pair bias and masked keys", _qkv((2, 3), 129, 129, 4, 32) | ROWS),
    Case("the same, strided", _qkv((2, 3), 129, 129, 4, 32) | ROWS, strided=True),
    Case("one row with a pair bias, wide heads", _qkv((2,), 105, 105, 3, 64) | {"bias": (2, 3, 105, 105)}),
    Case("no bias and no mask", _qkv((2, 3), 65, 65, 2, 48)),
    Case(
        "a bias of keys beside the pair bias",
        _qkv((2, 3), 37, 37, 2, 24) | {"bias": (1, 1, 2, 37, 37), "bias of keys": (2, 3, 1, 1, 37)},
    ),
    Case("other keys than queries, another scale", _qkv((3,), 33, 47, 2, 16) | {"bias": (1, 2, 33, 47)}, options={"scale": 0.5}),
    Case("a mask for each query", _qkv((3,), 17, 19, 2, 16) | {"bias": (1, 2, 17, 19), "mask": (3, 2, 17, 19)}),
    Case("one head of keys", _qkv((3,), 8, 43, 4, 8, kv_heads=1) | {"mask": (3, 1, 1, 43)}),
)  # fmt: skip


def _terms(x: Inputs) -> dict[str, Any]:
    return {"biases": [bias for name, bias in x.items() if name.startswith("bias")], "mask": x.get("mask")}


def _update(n: int, c_z: int, c: int, **also: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    layers = {"norm_in": (c_z,), "proj": (2 * c, c_z), "gate": (2 * c, c_z), "norm_out": (c,), "out": (c_z, c), "out_gate": (c_z, c_z)}
    parts = {f"{name}.{part}": shape for name, full in layers.items() for part, shape in (("weight", full), ("bias", full[:1]))}
    return {"z": (2, n, n, c_z)} | parts | also


UPDATES = (
    Case("outgoing edges", _update(105, 32, 32, mask=(2, 105, 105)), options={"incoming": False}),
    Case("incoming edges", _update(105, 32, 32), options={"incoming": True}),
    Case("outgoing edges, strided, odd widths", _update(17, 20, 12, mask=(2, 17, 17)), strided=True, options={"incoming": False}),
)


def _weights(x: Inputs) -> TriangleWeights:
    def norm(name: str) -> Norm:
        return Norm(x[f"{name}.weight"], x[f"{name}.bias"])

    def layer(name: str) -> Linear:
        return Linear(x[f"{name}.weight"], x[f"{name}.bias"])

    return TriangleWeights(norm("norm_in"), layer("proj"), layer("gate"), norm("norm_out"), layer("out"), layer("out_gate"))


OUTERS = (
    Case("outer products", {"a": (2, 9, 37, 8), "b": (2, 9, 37, 8), "weight": (20, 64), "bias": (20,)}),
    Case("the same, strided, without bias", {"a": (1, 5, 18, 12), "b": (1, 5, 18, 12), "weight": (16, 144)}, strided=True),
)


def _outer(case: Case, x: Inputs, backend: Backend) -> Tensor:
    count = torch.full((x["a"].shape[0], x["a"].shape[2], x["b"].shape[2]), 3.0, device=x["a"].device)
    return outer_product_mean(x["a"], x["b"], x["weight"], x.get("bias"), count, backend=backend)


SUBJECTS = {
    "attention": Subject(
        ATTENTION, ATTENTIONS,
        call=lambda case, x, backend: attention(x["q"], x["k"], x["v"], **_terms(x), **case.options, backend=backend),
        spec=lambda case, x: describe(x["q"], x["k"], x["v"], **_terms(x)),
    ),
    "triangle_update": Subject(
        TRIANGLE_UPDATE, UPDATES,
        call=lambda case, x, backend: triangle_update(x["z"], _weights(x), mask=x.get("mask"), **case.options, backend=backend),
        spec=lambda case, x: describe_update(x["z"], _weights(x)),
    ),
    "outer_product_mean": Subject(
        OUTER_PRODUCT_MEAN, OUTERS, call=_outer, spec=lambda case, x: describe_outer(x["a"], x["b"], x["weight"]),
    ),
}  # fmt: skip
