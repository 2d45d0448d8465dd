"""Tensors of a torch checkpoint, and which of those it holds are the parameters. Nothing in the file is executed.

Public checkpoints name classes of other packages (omegaconf configs, argparse namespaces), which makes ``torch.load(weights_only=True)``
refuse them. Here every foreign name is replaced by a class that takes whatever it is given and does nothing.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, serialization

from evoattn.errors import WeightsError

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""What torch.compile, activation checkpointing and FSDP insert into names."""
OUTER = ("module.", "model.")
"""What data parallelism and Lightning put in front of every name."""
AVERAGES = ("ema", "ema_state_dict", "model_ema", "ema_model")
PLAIN = ("state_dict", "model_state_dict", "model", "module")
DEPTH = 3
UNPICKLER = re.compile(r"^\W*(?:WeightsUnpickler error: )?((?:Trying to|Unsupported|Can only|Only) .*)", re.MULTILINE)
UNKNOWN_GLOBAL = re.compile(r"Unsupported global: GLOBAL (\S+) was not")


class Inert:
    """Stands in for every class and function that a file names: made from anything, set to anything, without effect."""

    def __new__(cls, *args: object, **kwargs: object) -> "Inert":
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


def _empty_dict(*args: object) -> dict[Any, Any]:
    """For dictionaries that the unpickler fills afterwards, which it does to plain ones alone."""
    return {}


def read(path: Path) -> Mapping[str, Any]:
    """The content of a file of ``torch.save``, memory-mapped where its format allows, with :class:`Inert` for whatever is no tensor.

    Raises:
        WeightsError: it is damaged, not a mapping, or a TorchScript archive.
    """
    try:
        with _trusting_nothing():
            content = _load_zip(path) if is_zipfile(path) else _load_legacy(path)
    except (OSError, EOFError, ValueError, RuntimeError, UnpicklingError, KeyError, IndexError, TypeError, AttributeError) as error:
        found = UNPICKLER.search(str(error))
        reason = found[1] if found else str(error).split("\n")[0] or type(error).__name__
        raise WeightsError(
            f"{path} cannot be read as a torch checkpoint: {reason}. If it was cut short or changed on its way, get it again; "
            "if it is whole, load it where it was made, and save its state_dict() alone with torch.save."
        ) from error
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path} holds a {type(content).__name__}; expected a state dict, or a mapping that has one in it.")
    return content


def _load_zip(path: Path) -> Any:
    with _inert(serialization.get_unsafe_globals_in_checkpoint(path)):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _load_legacy(path: Path) -> Any:
    """Files from before torch 1.6: their foreign names become known one by one, as the unpickler stops at each."""
    names: list[str] = []
    while True:
        try:
            with _inert(names):
                return torch.load(path, map_location="cpu", weights_only=True)
        except UnpicklingError as error:
            found = UNKNOWN_GLOBAL.search(str(error))
            if found is None or found[1] in names:
                raise
            names += [found[1], f"builtins.{found[1]}"]  # torch leaves out "builtins." in its message


def _inert(names: list[str]) -> AbstractContextManager[None]:
    """Within, torch takes these names for ours."""
    return serialization.safe_globals([(_empty_dict if name == "collections.defaultdict" else Inert, name) for name in names])


@contextmanager
def _trusting_nothing() -> Iterator[None]:
    """Within, not even what the user has declared safe is used."""
    trusted = serialization.get_safe_globals()
    serialization.clear_safe_globals()
    try:
        yield
    finally:
        serialization.clear_safe_globals()
        serialization.add_safe_globals(trusted)


def choose(content: Mapping[str, Any], name: str, entry: str | None = None) -> tuple[dict[str, Tensor], str]:
    """The parameters among what a checkpoint holds, and what was taken, in words.

    A set of parameters is a mapping of names to tensors, up to three levels deep. Taken is, in this order: the exponential moving average
    of the parameters (below "ema", ...), since published models are evaluated with it; "state_dict", "model_state_dict", "model" or
    "module"; the file itself. Where names begin with both "model." and "shadow.", the latter are the average. Then what wrappers add to
    names is taken off: "module." and "model." where every name begins with it, and those of torch.compile, checkpointing and FSDP.

    Raises:
        WeightsError: there is no set of parameters, or none called `entry`.
    """
    found = dict(_sets(content))
    if not found:
        entries = ", ".join(list(map(str, content))[:8]) or "its 0 entries"
        raise WeightsError(f"{name} holds no parameters: none of {entries} has tensors by name.")
    if entry is None:
        key = min(found, key=_preference)
    elif entry in found:
        key = entry
    else:
        raise WeightsError(f"{name} has no parameters under entry={entry!r}; it has some under {', '.join(map(repr, found))}.")
    tensors = found[key]
    others = [repr(other) for other in found if other != key]
    words = [f"the entry {key!r}" if key else "the file itself"] + ([f"not {', '.join(others)}"] if others else [])
    if {prefix for prefix in ("model.", "shadow.") if any(each.startswith(prefix) for each in tensors)} == {"model.", "shadow."}:
        tensors = {each: x for each, x in tensors.items() if each.startswith("shadow.")}
        tensors = {each.removeprefix("shadow."): x for each, x in tensors.items()}
        words.append("of that the moving average, 'shadow.'")
    tensors, taken_off = _unwrapped(tensors)
    words += [f"names without {', '.join(map(repr, taken_off))}"] if taken_off else []
    return tensors, "; ".join(words) if others or key or len(words) > 1 else ""


def _sets(content: Mapping[Any, Any], path: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Tensor]]]:
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if tensors and all(isinstance(key, str) for key in content):
        yield path, tensors
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Mapping) and depth < DEPTH and not key.startswith("optim"):
            yield from _sets(value, f"{path}.{key}" if path else key, depth + 1)


def _preference(key: str) -> tuple[int, int]:
    words = key.split(".")
    if any(word in AVERAGES for word in words):
        return 0, len(words)
    known = [PLAIN.index(word) for word in words if word in PLAIN]
    return (1 + min(known), len(words)) if known else (1 + len(PLAIN) + (key != ""), len(words))


def _unwrapped(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    taken_off = []
    for wrapper in WRAPPERS:
        if any(wrapper in name.split(".") for name in tensors):
            tensors = {".".join(word for word in name.split(".") if word != wrapper): x for name, x in tensors.items()}
            taken_off.append(f"{wrapper}.")
    while prefix := next((prefix for prefix in OUTER if all(name.startswith(prefix) for name in tensors)), None):
        tensors = {name.removeprefix(prefix): x for name, x in tensors.items()}
        taken_off.append(prefix)
    return tensors, taken_off
