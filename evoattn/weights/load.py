"""Loading published parameters into a model: strictly, and with an account of every array."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from evoattn.errors import WeightsError
from evoattn.weights import canonical
from evoattn.weights.account import Account, Match, match, shown
from evoattn.weights.families import FAMILIES
from evoattn.weights.identify import decide, recorded
from evoattn.weights.sources import Source, open_source
from evoattn.weights.tables import Rule, by_sources


def load_weights(
    model: nn.Module,
    source: Source | str | Path | Mapping[str, Any],
    family: str | None = None,
    *,
    version: str | None = None,
    scope: str | None = None,
    entry: str | None = None,
    strict: bool = True,
) -> Account:
    """Load published parameters into a trunk, a stack, a block or a sub-block, in place; nothing is changed if they do not fit.

    Args:
        model: any module that the family has.
        source: an npz, a torch checkpoint, a safetensors file (a converted one too) or AlphaFold 3's ``.bin.zst``; or a mapping of names to
            arrays. Nothing in a file is executed, and one tensor at a time is read.
        family: a name in :data:`evoattn.weights.FAMILIES`; by default, the one whose names the source has.
        version: of the family; needed where names cannot tell two versions apart whose numerics differ.
        scope: what stands before the model's own names in the source, e.g. ``".../evoformer_iteration"`` or ``"trunk.blocks.0"``; by
            default where the published model has a module of this class.
        entry: which of several sets of parameters in a checkpoint to read, e.g. "state_dict" instead of the moving average.
        strict: refuse arrays that are missing, of the wrong shape, or below the scope without a place in the model. With False, parameters
            without an array keep their value and left-over arrays are only accounted for; a wrong shape is refused all the same.

    Returns:
        The account of every array and parameter.

    Raises:
        WeightsError: the file cannot be read; it is of another family, or of one that computes otherwise than the model's config says; or
            the arrays do not fit. The message names the arrays and holds the account.
    """
    opened = open_source(source, entry)
    identity = decide(opened, model, family, version)
    its_family = FAMILIES[identity.family]
    claimed: str | tuple[str, ...]
    if recorded(opened):
        scope = canonical.place(model, opened) if scope is None else scope
        rules, claimed = canonical.table(model, scope), canonical.claims(scope)
    else:
        scope = its_family.scope(model) if scope is None else scope
        rules, claimed = its_family.table(model, scope, opened.shapes), its_family.claims(model, scope)

    def meant(name: str) -> bool:
        return name.startswith(claimed) and not name.startswith(canonical.KEPT)

    found = match(model, rules, opened.shapes, meant, its_family, opened.taken)
    _refuse(model, found, opened, scope, strict)
    opened.check(found.account.used)
    return replace(found.account, zero=tuple(_copy(model, found.rules, opened)))


def _refuse(model: nn.Module, found: Match, source: Source, scope: str, strict: bool) -> None:
    account = found.account
    if found.rules and not account.wrong_shape and not (strict and (account.missing or account.unexpected)):
        return
    if found.rules or account.wrong_shape:
        advice = "Build the model with the config the file was made for; strict=False loads what there is, where the shapes agree."
    else:
        there = ", ".join([f"{len(source.shapes)} arrays", *shown(sorted(source.shapes))[:2]])
        advice = f"Nothing for it is below {scope!r} in the source ({there}). Give what stands before the model's own names as scope=."
    raise WeightsError(
        "\n".join([f"the parameters do not fit this {type(model).__name__}, nothing was loaded: {account}", *found.findings, advice])
    )


def _copy(model: nn.Module, rules: tuple[Rule, ...], source: Source) -> list[str]:
    """Carry out the rules, with no more arrays in memory than belong together. The names of parameters that are zero throughout."""
    parameters = dict(model.named_parameters())
    groups = by_sources(rules)
    group_of = {name: sources for sources in groups for name in sources}
    waiting: dict[str, Tensor] = {}
    zero = []
    with torch.no_grad():
        for name, array in source.read(group_of):
            waiting[name] = array
            del array  # it is let go of before the next is read
            sources = group_of[name]
            if not waiting.keys() >= set(sources):
                continue
            for rule in groups[sources]:
                value = rule.make(waiting)
                assert value is not None  # `match` has made it already, from shapes
                parameters[rule.name].copy_(value)
                if not value.any():
                    zero.append(rule.name)
            for each in sources:
                del waiting[each]
    return zero
