"""Loading published parameters into a model: strictly, and with an account of every array."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from evoattn.errors import WeightsError
from evoattn.weights import alphafold2

SHOWN = 8  # names per list in a message


@dataclass(frozen=True)
class Account:
    """What became of every array and every parameter.

    Attributes:
        used: arrays of the source that went into the model.
        unexpected: arrays below the model's scope that it has no place for, or only part of whose layers.
        outside: arrays outside that scope (AlphaFold's structure module and heads, for instance).
        missing: parameters of the model that the source has no array for.
        wrong_shape: parameters whose array has another shape, with both shapes in words.
    """

    used: tuple[str, ...]
    unexpected: tuple[str, ...]
    outside: tuple[str, ...]
    missing: tuple[str, ...]
    wrong_shape: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.used)} arrays used, {len(self.outside)} outside this model"]
        for title, names in (("missing", self.missing), ("wrong shape", self.wrong_shape), ("unexpected", self.unexpected)):
            shown = "".join(f"\n    {name}" for name in names[:SHOWN]) + (f"\n    ... {len(names) - SHOWN} more" if len(names) > SHOWN else "")
            lines.append(f"  {title}: {len(names)}{shown}")
        return "\n".join(lines)


def load_weights(
    model: nn.Module, source: str | Path | Mapping[str, np.ndarray | Tensor], *, scope: str | None = None, strict: bool = True
) -> Account:
    """Load AlphaFold 2 parameters into a trunk, a stack, a block or a sub-block, in place; nothing is changed if they do not fit.

    Args:
        model: any module that AlphaFold 2 has (see :mod:`evoattn.weights.alphafold2`).
        source: a ``params_model_*.npz``, or a mapping of its names to arrays.
        scope: where the model's arrays are, e.g. ``".../evoformer_iteration"`` for one block without a layer axis; by default that of
            AlphaFold's trunk, which trunks and stacks are found under.
        strict: refuse arrays that are missing, of the wrong shape, or below the scope without a place in the model. With False, parameters
            without an array keep their value and left-over arrays are only accounted for; a wrong shape is refused all the same.

    Returns:
        The account of every array and parameter.

    Raises:
        WeightsError: the file cannot be read, or the arrays do not fit; the message holds the account.
    """
    arrays = read_arrays(source)
    scope = alphafold2.TRUNK if scope is None else scope
    made, account = _match(model, scope, arrays)
    if account.wrong_shape or (strict and (account.missing or account.unexpected)) or not account.used:
        raise WeightsError(
            f"the parameters do not fit this {type(model).__name__}, nothing was loaded: {account}\n"
            "Build the model with the config the file was made for; strict=False loads what there is, where the shapes agree."
        )
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in made.items():
            parameters[name].copy_(value)
    return account


def read_arrays(source: str | Path | Mapping[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
    """The arrays of an npz file, or of a mapping, as tensors. Nothing in the file is executed.

    Raises:
        WeightsError: the file is not there, or is no npz of plain arrays.
    """
    if isinstance(source, Mapping):
        return {name: torch.as_tensor(array) for name, array in source.items()}
    try:
        with np.load(source, allow_pickle=False) as file:
            return {name: torch.from_numpy(np.ascontiguousarray(file[name])) for name in file.files}
    except FileNotFoundError:
        raise WeightsError(f"there is no file {source}; give the path of a params_model_*.npz.") from None
    except (OSError, ValueError, TypeError, AttributeError, BadZipFile) as error:
        raise WeightsError(f"{source} cannot be read as an npz of plain arrays ({error}); expected AlphaFold 2's params_model_*.npz.") from error


def _match(model: nn.Module, scope: str, arrays: dict[str, Tensor]) -> tuple[dict[str, Tensor], Account]:
    """Every parameter that can be made from the arrays, and the account."""
    rules = alphafold2.table(model, scope, arrays)
    parameters = dict(model.named_parameters())
    made: dict[str, Tensor] = {}
    missing = [f"{name} (AlphaFold 2 has nothing of the kind)" for name in parameters if name not in {rule.name for rule in rules}]
    wrong_shape: list[str] = []
    layers: dict[str, set[int]] = {}
    for rule in rules:
        absent = [source for source in rule.sources if not _has(arrays, source, rule.layer)]
        if absent:
            missing.append(f"{rule.name} (from {', '.join(absent)}{'' if rule.layer is None else f', layer {rule.layer}'})")
            continue
        for source in rule.sources:
            layers.setdefault(source, set()).add(-1 if rule.layer is None else rule.layer)
        expected = tuple(parameters[rule.name].shape)
        try:
            made[rule.name] = rule.make(arrays)
            got = tuple(made[rule.name].shape)
        except (RuntimeError, IndexError):  # an array of another rank does not even take the layout
            got = None
        if got != expected:
            shapes = ", ".join(f"{source} {tuple(arrays[source].shape)}" for source in rule.sources)
            wrong_shape.append(f"{rule.name} is {expected}; {shapes} gives {got or 'nothing of that rank'}")
    claimed = {name for name in arrays if name.startswith(alphafold2.claims(model, scope))}
    partly = [f"{name} (only {len(seen)} of its {arrays[name].shape[0]} layers)" for name, seen in layers.items() if len(seen) < _depth(arrays[name], seen)]
    return made, Account(
        used=tuple(sorted(layers)),
        unexpected=(*sorted(claimed - layers.keys()), *sorted(partly)),
        outside=tuple(sorted(arrays.keys() - layers.keys() - claimed)),
        missing=tuple(missing),
        wrong_shape=tuple(wrong_shape),
    )


def _has(arrays: dict[str, Tensor], name: str, layer: int | None) -> bool:
    return name in arrays and (layer is None or (arrays[name].dim() > 0 and arrays[name].shape[0] > layer))


def _depth(array: Tensor, seen: set[int]) -> int:
    """Layers in the array, if it was used by layer."""
    return 1 if seen == {-1} else array.shape[0]
