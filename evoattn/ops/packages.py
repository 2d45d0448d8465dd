"""Packages that a backend calls: whether they are there, and load."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch


@cache
def missing_package(modules: Sequence[str], extra: str) -> str | None:
    """Why `modules`, a tuple, cannot be used, or None; `extra` is what installs them.

    They are looked for everywhere and loaded only where there is a GPU for their kernels: loading takes seconds, and may warn.
    """
    for module in modules:
        try:
            absent = find_spec(module.split(".")[0]) is None
        except ImportError:
            absent = True
        if absent:
            return f"{module.split('.')[0]} is not installed; pip install {extra!r}"
        if torch.cuda.is_available():
            try:
                import_module(module)
            except Exception as error:  # a broken installation fails in its own ways
                return f"{module} cannot be loaded: {type(error).__name__}: {error}"
    return None
