"""Published files to safetensors under our names, and back to the family's own names and layout, bit for bit."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor, nn

from evoattn.errors import WeightsError
from evoattn.files import new_file
from evoattn.weights import af3_records, canonical
from evoattn.weights.account import match
from evoattn.weights.families import FAMILIES
from evoattn.weights.family import Family
from evoattn.weights.identify import Identity, check_profile, decide, recorded
from evoattn.weights.sizes import stacks
from evoattn.weights.sources import Source, open_source
from evoattn.weights.tables import Rule, by_sources, under, unmade


@dataclass(frozen=True)
class Conversion:
    """What was written: how many arrays under new names, how many `kept` under theirs, and what the licence says, where that matters."""

    identity: Identity
    converted: int
    kept: int
    notice: str = ""


def convert(
    source: Source | str | Path | Mapping[str, Any],
    destination: str | Path,
    *,
    model: nn.Module | None = None,
    scope: str | None = None,
    family: str | None = None,
    version: str | None = None,
    entry: str | None = None,
    force: bool = False,
) -> Conversion:
    """Write a published file as safetensors under our names; or such a file again as the family has it, every bit as it was.

    A file that this function wrote goes back, in the format that the ending of `destination` names: ``.npz``, ``.safetensors``, ``.pt``,
    or AlphaFold 3's ``.bin`` and ``.bin.zst``. Any other goes forth, to ``.safetensors``: with family, version, profile and config in its
    metadata, and with those arrays that no module of ours takes under their own names after "outside:".

    Args:
        source, family, version, entry: as for :func:`load_weights`.
        destination: written under a temporary name in its folder, then moved into place.
        model: the module whose parameters the file holds; by default it is built from the shapes: a trunk, or a ModuleDict of stacks.
        scope: of `model`, as for :func:`load_weights`.
        force: replace a destination that exists.

    Raises:
        WeightsError: the source cannot be read, or does not fill the module; the destination exists, or its ending is of no format.
    """
    opened = open_source(source, entry)
    path = Path(destination)
    if path.exists() and not force:
        raise WeightsError(f"{path} exists; give another destination, or force=True (--force) to replace it.")
    found = recorded(opened)
    if found is not None:
        write = _writer(path, WRITERS)
        _save(path, write, _back(opened), {})
        kept = sum(name.startswith(canonical.KEPT) for name in opened.shapes)
        return Conversion(found, len(opened.shapes) - kept, kept, _notice(FAMILIES[found.family]))
    write = _writer(path, {".safetensors": _write_safetensors})
    identity, model = _identity_and_model(opened, model, family, version)
    rules = _rules(opened, model, FAMILIES[identity.family], scope)
    used = {name for rule in rules for name in rule.sources}
    kept_names = [name for name in opened.shapes if name not in used]
    opened.check(opened.shapes)
    _save(path, write, _forth(opened, rules, kept_names), _metadata(identity, model, rules))
    return Conversion(identity, len(rules), len(kept_names), _notice(FAMILIES[identity.family]))


def _notice(family: Family) -> str:
    if not family.forbids_conversion:
        return ""
    return f"{family.title}: {family.licence}. What was written falls under the same terms: do not pass it on."


def _identity_and_model(source: Source, model: nn.Module | None, family: str | None, version: str | None) -> tuple[Identity, nn.Module]:
    if model is not None:
        return decide(source, model, family, version), model
    identity = decide(source, None, family, version)
    family_ = FAMILIES[identity.family]
    try:
        with torch.device("meta"):
            model = (family_.build or partial(stacks, family_))(source.shapes, identity.version)
    except (KeyError, IndexError, ValueError) as error:
        raise WeightsError(
            f"no model can be built for {source.name} from its shapes ({type(error).__name__}: {error}): arrays are missing, or it is only "
            "a part of a model. Give the module that it fills as model=."
        ) from error
    check_profile(model, identity)
    return identity, model


def _rules(source: Source, model: nn.Module, family: Family, scope: str | None) -> list[Rule]:
    """The rules that make every parameter of the model, having seen that they can all be undone."""
    rules: list[Rule] = []
    for name, part in model.items() if isinstance(model, nn.ModuleDict) else [("", model)]:
        its_rules = family.table(part, family.scope(part) if scope is None else scope, source.shapes)
        rules += under(its_rules, name) if name else its_rules
    found = match(model, rules, source.shapes, lambda name: False, family)
    if found.account.missing or found.account.wrong_shape:
        raise WeightsError(
            "\n".join([f"{source.name} does not fill this {type(model).__name__}, nothing was written: {found.account}", *found.findings])
        )
    empty = {name: parameter.to("meta") for name, parameter in model.named_parameters()}
    for name, array in unmade(found.rules, empty.__getitem__):
        if tuple(array.shape) != tuple(source.shapes[name]):
            raise WeightsError(
                f"{name} in {source.name} is {tuple(source.shapes[name])}, of which this {type(model).__name__} takes {tuple(array.shape)} "
                "only, so that it could not be written back. Give a model= that takes all of it, e.g. with more blocks."
            )
    return list(found.rules)


def _forth(source: Source, rules: list[Rule], kept: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Our parameters by name, then the arrays that stay as they are."""
    groups = by_sources(rules)
    group_of = {name: sources for sources in groups for name in sources}
    waiting: dict[str, Tensor] = {}
    for name, array in source.read([*group_of, *kept]):
        if name not in group_of:
            yield f"{canonical.KEPT}{name}", array
            continue
        waiting[name] = array
        del array  # it is let go of before the next is read
        if waiting.keys() >= set(group_of[name]):
            for rule in groups[group_of[name]]:
                value = rule.make(waiting)
                assert value is not None  # `match` has made it already, from shapes
                yield rule.name, value
            for each in group_of[name]:
                del waiting[each]


def _back(source: Source) -> Iterator[tuple[str, Tensor]]:
    """The family's arrays by name."""
    rules = canonical.rules_from_json(source.metadata["evoattn_rules"])
    yield from unmade(rules, lambda name: next(source.read([name]))[1])
    kept = [name for name in source.shapes if name.startswith(canonical.KEPT)]
    yield from ((name.removeprefix(canonical.KEPT), array) for name, array in source.read(kept))


def _metadata(identity: Identity, model: nn.Module, rules: list[Rule]) -> dict[str, str]:
    parts = dict(model.items()) if isinstance(model, nn.ModuleDict) else {"": model}
    settings: dict[str, Any] = {name: getattr(part, "config", None) for name, part in parts.items()}
    configs = {name: dataclasses.asdict(config) for name, config in settings.items() if config is not None}
    return {
        "format": "pt",  # what other readers of safetensors look for
        "evoattn_family": identity.family,
        "evoattn_version": identity.version,
        "evoattn_profile": json.dumps(dataclasses.asdict(identity.profile)),
        "evoattn_model": json.dumps({name: type(part).__name__ for name, part in parts.items()}),
        "evoattn_config": json.dumps(configs.get("", configs)),
        "evoattn_licence": FAMILIES[identity.family].licence,
        "evoattn_rules": canonical.rules_to_json(rules),
    }


Writer = Callable[[Path, Iterator[tuple[str, Tensor]], dict[str, str]], None]


def _write_safetensors(path: Path, arrays: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
    from safetensors.torch import save_file  # here: importing evoattn loads torch alone

    save_file({name: array.contiguous().clone() for name, array in arrays}, path, metadata=metadata or {"format": "pt"})


def _write_npz(path: Path, arrays: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
    """One array at a time."""
    with ZipFile(path, "w") as archive:
        for name, array in arrays:
            if array.dtype == torch.bfloat16:
                raise WeightsError(f"{name} is bfloat16, which an npz cannot hold; write .safetensors or .pt.")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array.contiguous().numpy(), allow_pickle=False)


def _write_torch(path: Path, arrays: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
    torch.save({name: array.contiguous().clone() for name, array in arrays}, path)


def _write_records(path: Path, arrays: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
    af3_records.write(path, arrays, compressed=False)


def _write_compressed_records(path: Path, arrays: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
    af3_records.write(path, arrays, compressed=True)


WRITERS: dict[str, Writer] = {
    ".safetensors": _write_safetensors,
    ".npz": _write_npz,
    ".pt": _write_torch,
    ".bin": _write_records,
    ".bin.zst": _write_compressed_records,
}


def _writer(path: Path, writers: Mapping[str, Writer]) -> Writer:
    for ending, writer in writers.items():
        if path.name.endswith(ending):
            return writer
    raise WeightsError(f"{path} does not end in a format that can be written here: {', '.join(writers)}.")


def _save(path: Path, write: Writer, arrays: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
    with new_file(path) as temporary:
        write(temporary, arrays, metadata)
        temporary.chmod(path.parent.stat().st_mode & 0o666)  # safetensors makes files private, whatever the umask says
