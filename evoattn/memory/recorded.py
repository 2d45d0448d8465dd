"""What a forward and backward pass keep and take: counted by running the model itself on tensors without data.

Nothing is computed, so that sizes may be any, but the time taken grows with the number of operations.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from evoattn.config import TrunkConfig
from evoattn.execution import Execution, set_execution
from evoattn.model import EvoformerTrunk, Representations
from evoattn.ops import Backend
from evoattn.ops.kept import once
from evoattn.stacks import EvoformerStack, ExtraMSAStack


@dataclass(frozen=True)
class Recorded:
    """Bytes of a training step beyond parameters and inputs: kept when the forward pass ends, and at the peak."""

    kept: int
    peak: int

    def minus(self, other: "Recorded") -> "Recorded":
        return Recorded(self.kept - other.kept, self.peak - other.peak)

    def plus(self, times: int, other: "Recorded") -> "Recorded":
        return Recorded(self.kept + times * other.kept, self.peak + times * other.peak)


def recorded(
    model: EvoformerTrunk | EvoformerStack | ExtraMSAStack, sizes: Mapping[str, int], dtype: torch.dtype, execution: Execution
) -> Recorded:
    """What one step of `model`, which is changed, takes; `sizes` are those of :class:`evoattn.memory.Sizes`."""
    backend = "reference" if execution.backend == "reference" else SHAPES
    set_execution(model.to(dtype).train(), execution, backend=backend, memory_budget=None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = trunk_inputs(model.config, sizes, dtype) if isinstance(model, EvoformerTrunk) else stack_inputs(model, sizes, dtype)
        with Allocated() as allocated:
            out = model(*inputs)
            outputs = [x for x in tree_leaves(vars(out) if isinstance(out, Representations) else out) if x.requires_grad]
            kept = allocated.bytes
            torch.autograd.backward(outputs, [torch.empty_like(x) for x in outputs])
    return Recorded(kept, allocated.peak)


def stack_inputs(stack: EvoformerStack | ExtraMSAStack, sizes: Mapping[str, int], dtype: torch.dtype) -> list[Tensor]:
    """m and z, which want gradients."""
    n_seq, n_res = sizes["n_seq"], sizes["n_res"]
    shapes = (n_seq, n_res, stack.config.c_m), (n_res, n_res, stack.config.c_z)
    return [torch.empty(sizes["batch"], *shape, dtype=dtype, requires_grad=True) for shape in shapes]


def trunk_inputs(config: TrunkConfig, sizes: Mapping[str, int], dtype: torch.dtype) -> list[dict[str, Tensor]]:
    """Features without masks, and without templates."""
    n_res = sizes["n_res"]
    shapes = {"target_feat": (n_res, config.c_target_feat), "msa_feat": (sizes["n_seq"], n_res, config.c_msa_feat)}
    if config.extra is not None:
        shapes["extra_msa_feat"] = (sizes["n_extra"], n_res, config.c_extra_feat)
    features = {name: torch.empty(sizes["batch"], *shape, dtype=dtype) for name, shape in shapes.items()}
    return [features | {"residue_index": torch.empty(sizes["batch"], n_res, dtype=torch.long)}]


class Allocated(TorchDispatchMode):
    """Counts the bytes of every storage that an operation makes, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._there: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, Tensor) and (storage := x.untyped_storage())._cdata not in self._there | given:
                self._there.add(storage._cdata)
                self.bytes += storage.nbytes()
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(storage, self._let_go, storage._cdata, storage.nbytes())
        return result

    def _let_go(self, key: int, size: int) -> None:
        self._there.discard(key)
        self.bytes -= size


def _results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))


class _Shapes(torch.autograd.Function):
    """The outputs and gradients of a fused attention, without its loops over tiles, which would take long and hold little."""

    @staticmethod
    def forward(ctx: Any, mask: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
        out, lse = once(_results, q, v)
        assert out is not None and lse is not None
        ctx.save_for_backward(q, k, v, mask, out, lse, *biases)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, _, _, *biases = ctx.saved_tensors
        wide = [torch.empty_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v, *biases)]
        return None, *(grad.to(x.dtype) for grad, x in zip(wide, (q, k, v, *biases), strict=True))


def _shapes(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    run: Callable[..., tuple[Tensor, Tensor]] = _Shapes.apply
    return run(mask, q, k, v, *biases)


SHAPES = Backend("shapes", _shapes, why_not=lambda spec: [])
"""Attention of tensors without data."""
