"""Results that a recomputation takes over from the forward pass, where computing them again would cost more than keeping them.

Of an attention these are its output [*batch, h, q, dv] and log-sum-exp [*batch, h, q], as its backend has them: small beside its logits,
and with the inputs all that its backward pass needs.
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

    with _from(keep):
        yield


@contextmanager
def taking(results: list[Results]) -> Iterator[None]:
    """Meanwhile, :func:`once` computes nothing: it gives `results`, in the order in which they were kept."""
    left = iter(results)
    with _from(lambda compute, arguments: tuple(None if x is None else x.detach() for x in next(left))):
        yield


@contextmanager
def _from(source: Source) -> Iterator[None]:
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)
