"""How a model runs: which backend, what is recomputed. Never what it computes.

Architecture (:mod:`evoattn.config`) decides parameters and belongs to a checkpoint; :class:`Execution` changes nothing but rounding, speed
and memory, and does not. It is set on a model from outside with :func:`set_execution`; no forward method takes it as an argument.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from evoattn.errors import ConfigError
from evoattn.ops import ATTENTION, Backend


@dataclass(frozen=True)
class Execution:
    """How a module runs.

    Attributes:
        backend: of every :func:`evoattn.attention` call: ``"auto"``, a name, or a :class:`evoattn.Backend` of your own. Attention that takes
            pair features as keys or values is an op of its own, which follows ``"reference"`` and otherwise streams.
        checkpoint: recompute each block in the backward pass, keeping only its inputs. Gradients stay the same.
    """

    backend: str | Backend = "auto"
    checkpoint: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.backend, str) and self.backend != "auto":
            ATTENTION.get(self.backend)


class Executable(nn.Module):
    """A module that looks at :class:`Execution`; :func:`set_execution` finds it by this class."""

    execution = Execution()

    def extra_repr(self) -> str:
        return "" if self.execution == Execution() else f"execution={self.execution}"


def set_execution(model: nn.Module, execution: Execution | None = None, **changes: Any) -> nn.Module:
    """Set how `model` and everything in it runs, e.g. ``set_execution(model, backend="streaming", checkpoint=True)``; returns the model.

    Args:
        model: any module; its attention modules and stacks are changed in place.
        execution: a whole :class:`Execution`; by default the present one, with `changes`.

    Raises:
        BackendError: there is no backend of that name. ConfigError: there is no such setting.
    """
    unknown = sorted(set(changes) - set(Execution.__dataclass_fields__))
    if unknown:
        raise ConfigError(f"set_execution: unknown setting {', '.join(unknown)}; there are {', '.join(Execution.__dataclass_fields__)}.")
    for module in model.modules():
        if isinstance(module, Executable):
            module.execution = replace(execution or module.execution, **changes)
    return model


def update(x: Tensor, block: Callable[..., Tensor], *inputs: Any, drop: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """x + drop(block(x, *inputs)): the residual update that every stack is written in."""
    delta = block(x, *inputs)
    return x + (delta if drop is None else drop(delta))
