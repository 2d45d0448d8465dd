"""Whose parameters a source holds, and whether a model computes with them as their family does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from evoattn.config import PROFILES, Profile
from evoattn.config.profiles import WithProfile
from evoattn.errors import WeightsError
from evoattn.weights.account import shown
from evoattn.weights.families import FAMILIES, family_named
from evoattn.weights.family import Family
from evoattn.weights.sources import Source, open_source


@dataclass(frozen=True)
class Identity:
    """One answer to what a file is: a family, a version of it, and the numerics that its parameters were trained with."""

    family: str
    version: str
    profile: Profile


def identify(source: Source | str | Path | Mapping[str, Any], *, entry: str | None = None) -> list[Identity]:
    """What a source may be, told by the names and shapes of its arrays; several answers where those cannot tell.

    Args:
        source: as for :func:`load_weights`. entry: likewise.

    Raises:
        WeightsError: the source cannot be read, or is of no family known.
    """
    opened = open_source(source, entry)
    if found := recorded(opened):
        return [found]
    answers = [
        Identity(family.name, version, PROFILES[family.versions[version]])
        for family in FAMILIES.values()
        for version in family.recognise(opened.shapes)
    ]
    if not answers:
        raise WeightsError(
            f"{opened.name} is of no family known ({', '.join(FAMILIES)}): it holds {_sample(opened)}. "
            "If it is a part of one, say which with family=, and what stands before the model's own names with scope=."
        )
    return answers


def recorded(source: Source) -> Identity | None:
    """What a file that :func:`convert` wrote says of itself."""
    data = source.metadata
    if "evoattn_family" not in data:
        return None
    family = family_named(data["evoattn_family"])
    version = data["evoattn_version"]
    if version not in family.versions:
        raise WeightsError(f"{source.name} was converted from {family.title} {version!r}; known are {', '.join(family.versions)}.")
    return Identity(family.name, version, PROFILES[family.versions[version]])


def decide(source: Source, model: nn.Module | None, family: str | None, version: str | None) -> Identity:
    """The one family and version to load, into a model that computes as they do; or into one that is still to be built.

    Raises:
        WeightsError: names cannot tell and nothing was said; what was said is not what the names say; the profiles differ.
    """
    answers = identify(source) if family is None else _of_family(source, family_named(family))
    if version is not None:
        answers = _of_version(source, answers, version)
    switches = {name for answer in answers for name in _differing(model, answers[0].profile, answer.profile)}
    if switches or len({answer.family for answer in answers}) > 1:
        choices = "; ".join(f"family={answer.family!r}, version={answer.version!r}" for answer in answers)
        differ = f" They differ in {', '.join(sorted(switches))}, and the wrong one loads without a sign." if switches else ""
        raise WeightsError(f"the names in {source.name} do not tell which of these it is: {choices}.{differ} Say which.")
    if model is not None:
        check_profile(model, answers[0])
    return answers[0]


def check_profile(model: nn.Module, identity: Identity) -> None:
    """Compare the numerics of every module of the model that has a config with those of the family. Sub-blocks have none to compare.

    Raises:
        WeightsError: they differ; the message names the switches.
    """
    for name, config in _configs(model):
        if wrong := config.differences(config.profile, identity.profile):
            title = FAMILIES[identity.family].title
            own, right = config.profile, identity.profile
            told = "; ".join(f"{each} is {getattr(own, each)!r} and must be {getattr(right, each)!r}" for each in wrong)
            raise WeightsError(
                f"the parameters are of {title} ({identity.version}), which computes otherwise than this {type(model).__name__} does: "
                f"{f'in {name}, ' if name else ''}{told}. Nothing was loaded, though shapes may fit. "
                f"Build it with profile=profile({identity.profile.name!r}), or from a preset of the family."
            )


def _differing(model: nn.Module | None, a: Profile, b: Profile) -> set[str]:
    """The switches in which two profiles differ, as far as the model heeds them; all of them for one that is still to be built."""
    if model is None:
        return set(a.differences(b))
    return {name for _, config in _configs(model) for name in config.differences(a, b)}


def _configs(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every config with a profile of a model and its modules, with the name of the module."""
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if isinstance(config, WithProfile):
            yield name, config


def _of_family(source: Source, family: Family) -> list[Identity]:
    """A source that no family recognises may be a part of this one; a whole file of another is refused."""
    known = recorded(source)
    versions = list(family.recognise(source.shapes)) if known is None else [known.version] * (known.family == family.name)
    others = [other.title for other in FAMILIES.values() if other is not family and other.recognise(source.shapes)]
    if known is not None and not versions:
        others = [FAMILIES[known.family].title]
    if not versions and others:
        raise WeightsError(f"wrong family: {source.name} looks like {' or '.join(others)}, not {family.title}: it holds {_sample(source)}.")
    return [Identity(family.name, version, PROFILES[family.versions[version]]) for version in versions or family.versions]


def _of_version(source: Source, answers: list[Identity], version: str) -> list[Identity]:
    found = [answer for answer in answers if answer.version == version]
    if not found:
        allowed = ", ".join(repr(answer.version) for answer in answers)
        raise WeightsError(f"version is {version!r}; by its names, {source.name} can be {answers[0].family} {allowed}.")
    return found


def _sample(source: Source) -> str:
    return f"{len(source.shapes)} arrays" + (f", {', '.join(shown(sorted(source.shapes))[:3])}" if source.shapes else "")


