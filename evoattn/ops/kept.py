"""What a recomputation does not compute again.

Kept and taken over from the forward pass is what would cost more to compute than to keep: of an attention its output [*batch, h, q, dv] and
log-sum-exp [*batch, h, q], as its backend has them, small beside its logits and with the inputs all that its backward pass needs.

Unread is the end of what is recomputed: its gradient is asked, and its value is not. What stands there then are NaNs that take no memory,
so that who reads it after all is not misled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

Results = tuple[Tensor | None, ...]
Source = Callable[[Callable[..., Results], tuple[Any, ...]], Results]

_source: ContextVar[Source | None] = ContextVar("_source", default=None)
_unread: ContextVar[bool] = ContextVar("_unread", default=False)


def once(compute: Callable[..., Results], *arguments: Any) -> Results:
    """compute(*arguments); within :func:`keeping` the result is kept, within :func:`taking` what was kept stands in for it."""
    source = _now()
    return compute(*arguments) if source is None else source(compute, arguments)


def recording() -> bool:
    """Whether gradients will be asked of a forward pass that autograd does not record, or of its repetition."""
    return _now() is not None


def _now() -> Source | None:
    return None if torch.compiler.is_compiling() else _source.get()  # where there is none, and a compiler cannot look


@contextmanager
def keeping(results: list[Results]) -> Iterator[None]:
    """Meanwhile, append what :func:`once` computes to `results`."""

    def keep(compute: Callable[..., Results], arguments: tuple[Any, ...]) -> Results:
        results.append(compute(*arguments))
        return results[-1]

    with _set(_source, keep):
        yield


@contextmanager
def taking(results: list[Results]) -> Iterator[None]:
    """Meanwhile, :func:`once` computes nothing: it gives `results`, in the order in which they were kept."""
    left = iter(results)
    with _set(_source, lambda compute, arguments: tuple(None if x is None else x.detach() for x in next(left))):
        yield


@contextmanager
def unread() -> Iterator[None]:
    """Meanwhile, nobody reads what a residual branch ends in."""
    with _set(_unread, True):
        yield


def is_unread() -> bool:
    """Whether the end of a residual branch may be :func:`nothing`."""
    return not torch.compiler.is_compiling() and _unread.get()


def nothing(like: Tensor, *shape: int) -> Tensor:
    """NaNs of that shape, in the memory of a single one."""
    return like.new_full((), torch.nan).expand(shape)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
