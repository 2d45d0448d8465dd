"""Which tensor of a model is the first that is not finite."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from evoattn.errors import TrainingError


@dataclass
class Watch:
    """What :func:`watch_finite` has seen; `first` is the first bad tensor in words, "" so far."""

    first: str = ""


@contextmanager
def watch_finite(model: nn.Module, *, stop: bool = True) -> Iterator[Watch]:
    """While the body runs, look at the parameters and the outputs of every module of `model`, in the order of the computation.

    Args:
        stop: raise at the first output that is not finite; with False it is only noted.

    Raises:
        TrainingError: naming the module, the tensor's shape, and how many of its numbers are NaN and infinite.
    """
    watch = Watch()

    def look(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if watch.first:
                return
            outputs = _tensors(output)
            named: dict[str, Tensor] = {f"the parameter {name}.{own}": x for own, x in module.named_parameters(recurse=False)}
            named |= {f"the output of {name}" + (f", number {i}" if len(outputs) > 1 else ""): x for i, x in enumerate(outputs, 1)}
            watch.first = first_bad(named)
            if watch.first and stop:
                raise TrainingError(f"{watch.first}. Nothing before it was.")

        return hook

    handles = [module.register_forward_hook(look(name or type(model).__name__)) for name, module in model.named_modules()]
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


def first_bad(named: Mapping[str, Tensor]) -> str:
    """The first tensor that is not finite, in words; "" if all are."""
    for name, x in named.items():
        if x.is_floating_point() and not x.isfinite().all():
            nan, infinite = int(x.isnan().sum()), int(x.isinf().sum())
            return f"{name}, {str(x.dtype).removeprefix('torch.')} {list(x.shape)}, is not finite: {nan} NaN, {infinite} infinite"
    return ""


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, list | tuple):
        return [x for one in output for x in _tensors(one)]
    return [x for x in vars(output).values() if isinstance(x, Tensor)] if hasattr(output, "__dict__") else []
