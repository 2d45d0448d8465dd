"""How a model runs: which backend, in which precision, what is recomputed. Never what it computes.

Architecture (:mod:`evoattn.config`) decides parameters and belongs to a checkpoint; :class:`Execution` changes nothing but rounding, speed
and memory, and does not. It is set on a model from outside with :func:`set_execution`; no forward method takes it as an argument.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from evoattn.errors import ConfigError
from evoattn.ops import ATTENTION, Backend
from evoattn.ops.pairwise import OUTER_PRODUCT_MEAN
from evoattn.ops.triangle_update import TRIANGLE_UPDATE
from evoattn.units import parse_bytes
from evoattn.updates import Drop, Update, recomputed, update

BACKENDS = {"backend": ATTENTION, "triangle_update": TRIANGLE_UPDATE, "outer_product_mean": OUTER_PRODUCT_MEAN}
"""Setting -> the op whose backend it chooses."""


@dataclass(frozen=True)
class Execution:
    """How a module runs.

    Attributes:
        backend: of every :func:`evoattn.attention` call: ``"auto"``, a name, or a :class:`evoattn.Backend` of your own. Attention that
            takes pair features as keys or values is an op of its own, which follows ``"reference"`` and otherwise streams.
        triangle_update, outer_product_mean: the same for these two ops, whose backends are not those of attention. In place, where the
            triangle update goes slice by slice, ``"auto"`` chooses among those that can; another one asked for makes it as a whole.
        checkpoint: what the backward pass computes again instead of the forward pass keeping it; gradients stay the same. ``"updates"``:
            the inside of every residual update but attention itself, slice by slice; on a CPU that is about as fast as keeping it.
            ``"blocks"`` or True: every block of a stack; ``"both"``: every block, and its updates once more when it is, the least memory.
            Of a deep stack "blocks" keeps the two representations per block, "updates" about thirteen.
        dtype: ``"bf16"``: the matrix products and attentions of all blocks run in bfloat16, with parameters, the representations, norms,
            softmax and sums as they are (float32): about three times faster on a CPU or GPU that has such products, at 8 bits of mantissa.
            None: everything in the dtype it has.
        memory_budget: bytes, or text such as ``"8GiB"``, that a stack may take without gradients, the representations it updates included,
            parameters and inputs not: it works in slices that fit, or refuses before it computes. None: in slices that are fast.
            For training, :func:`evoattn.memory.plan` says what fits.

    Raises:
        BackendError: there is no backend of that name. ConfigError: a setting is of another kind.
    """

    backend: str | Backend = "auto"
    triangle_update: str | Backend = "auto"
    outer_product_mean: str | Backend = "auto"
    checkpoint: bool | Literal["updates", "blocks", "both"] = False
    dtype: Literal["bf16"] | None = None
    memory_budget: int | str | None = None

    def __post_init__(self) -> None:
        for setting, op in BACKENDS.items():
            chosen = getattr(self, setting)
            if not isinstance(chosen, str | Backend):
                raise ConfigError(f"Execution: {setting} is {chosen!r}; give 'auto', one of {', '.join(op.names)}, or a Backend.")
            if isinstance(chosen, str) and chosen != "auto":
                op.get(chosen)
        if self.checkpoint not in (True, False, "updates", "blocks", "both"):
            raise ConfigError(f"Execution: checkpoint is {self.checkpoint!r}; it is False, 'updates', 'blocks' (or True), or 'both'.")
        if self.dtype not in (None, "bf16"):
            raise ConfigError(
                f"Execution: dtype is {self.dtype!r}; it is 'bf16' for products in bfloat16, or None for the dtype of the parameters. To "
                "compute in another dtype, convert the model: model.double()."
            )
        _ = self.budget  # refuses what is no size

    @property
    def recomputes_blocks(self) -> bool:
        return self.checkpoint in (True, "blocks", "both")

    @property
    def recomputes_updates(self) -> bool:
        return self.checkpoint in ("updates", "both")

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes."""
        return None if self.memory_budget is None else parse_bytes(self.memory_budget)

    def products(self, device: str) -> AbstractContextManager[Any]:
        """Within it, matrix products on a device of that type take the dtype asked for."""
        on = self.dtype is not None and torch.amp.is_autocast_available(device)  # no tensor without data needs it
        return torch.autocast(device, torch.bfloat16) if on else nullcontext()


class Executable(nn.Module):
    """A module that looks at :class:`Execution`; :func:`set_execution` finds it by this class."""

    execution = Execution()

    def extra_repr(self) -> str:
        return "" if self.execution == Execution() else f"execution={self.execution}"


def set_execution(model: nn.Module, execution: Execution | None = None, **changes: Any) -> nn.Module:
    """Set how `model` and everything in it runs, e.g. ``set_execution(model, backend="streaming", checkpoint=True)``; returns the model.

    Args:
        model: any module. What attends in it and the stacks in it are changed in place; parameters are not touched.
        execution: a whole :class:`Execution`; by default each module's present one, with `changes`.

    Raises:
        BackendError: there is no backend of that name. ConfigError: there is no such setting, or it is of another kind.
    """
    settings = Execution.__dataclass_fields__
    if execution is not None and not isinstance(execution, Execution):
        raise ConfigError(f"set_execution: {execution!r} is no Execution; name the setting: set_execution(model, backend='streaming').")
    if unknown := sorted(changes.keys() - settings.keys()):
        raise ConfigError(f"set_execution: unknown setting {', '.join(unknown)}; there are {', '.join(settings)}.")
    for module in model.modules():
        if isinstance(module, Executable):
            module.execution = replace(execution or module.execution, **changes)
    return model


class Block(Executable):
    """One block of a stack: residual updates, made as its execution asks. What it adds to is kept in the dtype that came in."""

    def __call__(self, x: Tensor, *inputs: Any, **named: Any) -> Any:
        with self.execution.products(x.device.type):
            return super().__call__(x, *inputs, **named)

    def _update(self, x: Tensor, block: Callable[..., Tensor], *inputs: Any, drop: Drop | None = None) -> Tensor:
        way = recomputed if self.execution.recomputes_updates and torch.is_grad_enabled() else update
        return way(x, block, *inputs, drop=drop)

    update: Update = _update
    """How an update is made; a stack that runs in place makes it :func:`update_` meanwhile, with :meth:`updating`."""

    update_whole: Update = _update
    """The same for what is small, and never updated in place."""

    @contextmanager
    def updating(self, way: Update, *, whole: bool = False) -> Iterator[None]:
        """Make updates `way` meanwhile, with `whole` those of what is small too."""
        names = ("update", "update_whole") if whole else ("update",)
        for name in names:
            setattr(self, name, way)
        try:
            yield
        finally:
            for name in names:
                delattr(self, name)
