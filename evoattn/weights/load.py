"""Loading published parameters into a model: strictly, and with an account of every array."""

import zlib
from collections import defaultdict
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
            more = [f"... {len(names) - SHOWN} more"] if len(names) > SHOWN else []
            lines += [f"  {title}: {len(names)}", *(f"    {name}" for name in (*names[:SHOWN], *more))]
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
    if account.wrong_shape or not made or (strict and (account.missing or account.unexpected)):
        if made or account.wrong_shape:
            advice = "Build the model with the config the file was made for; strict=False loads what there is, where the shapes agree."
        else:
            there = ", ".join([f"{len(arrays)} arrays", *sorted(arrays)[:2]])
            advice = f"Nothing for it is below {scope!r} in the source ({there}). Give what stands before the model's own names as scope=."
        raise WeightsError(f"the parameters do not fit this {type(model).__name__}, nothing was loaded: {account}\n{advice}")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in made.items():
            parameters[name].copy_(value)
    return account


def read_arrays(source: str | Path | Mapping[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
    """The arrays of an npz file, or of a mapping, as tensors. Nothing in the file is executed.

    Raises:
        WeightsError: the file is not there, or is no npz of plain arrays; or an array does not hold numbers.
    """
    arrays = source if isinstance(source, Mapping) else _read_npz(source)
    return {name: _tensor(name, array) for name, array in arrays.items()}


def _read_npz(path: str | Path) -> dict[str, np.ndarray]:
    try:
        with open(path, "rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray):
                raise ValueError("it is a single array")
            return {name: _array(name, arrays[name]) for name in arrays.files}
    except FileNotFoundError:
        raise WeightsError(f"there is no file {path}; give the path of a params_model_*.npz.") from None
    except (OSError, EOFError, ValueError, BadZipFile, zlib.error) as error:
        raise WeightsError(f"{path} cannot be read as an npz of plain arrays ({error}); give a params_model_*.npz.") from error


def _array(name: str, entry: np.ndarray | bytes) -> np.ndarray:
    if isinstance(entry, bytes):
        raise ValueError(f"its entry {name} is no array")
    return entry


def _tensor(name: str, array: np.ndarray | Tensor) -> Tensor:
    if isinstance(array, Tensor):
        return array
    try:
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # a copy only where torch needs one
    except (TypeError, ValueError) as error:
        raise WeightsError(f"{name} is no array of numbers ({error}); expected those of AlphaFold 2's params_model_*.npz.") from error


def _match(model: nn.Module, scope: str, arrays: dict[str, Tensor]) -> tuple[dict[str, Tensor], Account]:
    """Every parameter that can be made from the arrays, and the account."""
    rules = {rule.name: rule for rule in alphafold2.table(model, scope, arrays)}
    made: dict[str, Tensor] = {}
    missing, wrong_shape = [], []
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    layers: dict[str, set[int | None]] = defaultdict(set)  # of every array that has a place in the model: which of its layers do
    for name, parameter in model.named_parameters():
        rule = rules.get(name)
        if rule is None:
            missing.append(f"{name} (AlphaFold 2 has nothing of the kind)")
            continue
        if absent := rule.absent(shapes):
            missing.append(f"{name} (from {', '.join(absent)})")
            continue
        value = rule.make(arrays)
        if value is not None and value.shape == parameter.shape:
            made[name] = value
        else:
            found = " and ".join(f"{source} {tuple(arrays[source].shape)}" for source in rule.sources)
            by = f"{rule.layout}{'' if rule.layer is None else f' of layer {rule.layer}'}"
            wrong_shape.append(f"{name} is {tuple(parameter.shape)}; {found} does not become that by {by}")
        for source in rule.sources:
            layers[source].add(rule.layer)
    claimed = {name for name in arrays if name.startswith(alphafold2.claims(model, scope))}
    partly = [
        f"{name} (only {len(read)} of its {arrays[name].shape[0]} layers)"
        for name, read in layers.items()
        if None not in read and len(read) < arrays[name].shape[0]
    ]
    return made, Account(
        used=tuple(sorted({source for name in made for source in rules[name].sources})),
        unexpected=(*sorted(claimed - layers.keys()), *sorted(partly)),
        outside=tuple(sorted(arrays.keys() - layers.keys() - claimed)),
        missing=tuple(missing),
        wrong_shape=tuple(wrong_shape),
    )
