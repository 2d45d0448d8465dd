"""What becomes of every array of a source and every parameter of a model, found from shapes alone; and what is wrong, in words."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from evoattn.weights.family import Family, Shapes
from evoattn.weights.tables import Layout, Rule

SHOWN = 8  # names per list in a message
NUMBERED = re.compile(r"^(.*?\.)(\d+)\.")


@dataclass(frozen=True)
class Account:
    """What became of every array and every parameter.

    Attributes:
        used: arrays of the source that went into the model.
        unexpected: arrays below the model's scope that it has no place for, or only part of whose layers.
        outside: arrays outside that scope (AlphaFold's structure module and heads, for instance). parts: how many of each part, in words.
        missing: parameters of the model that the source has no array for.
        wrong_shape: parameters whose array has another shape, with both shapes in words.
        left: parameters that keep the value they had before, by name alone.
        zero: parameters that were loaded and are zero throughout.
        taken: which of several sets of parameters in the file was read; "" where there is one.
    """

    used: tuple[str, ...]
    unexpected: tuple[str, ...]
    outside: tuple[str, ...]
    missing: tuple[str, ...]
    wrong_shape: tuple[str, ...]
    left: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    taken: str = ""

    def __str__(self) -> str:
        parts = f" ({', '.join(self.parts)})" if self.parts else ""
        lines = [f"{len(self.used)} arrays used, {len(self.outside)} outside this model{parts}"]
        lines += [f"  read: {self.taken}"] if self.taken else []
        for title, names in (("missing", self.missing), ("wrong shape", self.wrong_shape), ("unexpected", self.unexpected)):
            lines += [f"  {title}: {len(names)}", *(f"    {name}" for name in shown(names))]
        if self.left:
            lines.append(f"  left at the value they had: {len(self.left)} parameters")
        if self.zero:
            lines.append(f"  zero throughout: {', '.join(shown(self.zero))}")
        return "\n".join(lines)


def shown(names: Iterable[str]) -> list[str]:
    """The first few, and how many more."""
    listed = list(names)
    return [*listed[:SHOWN], *([f"... {len(listed) - SHOWN} more"] if len(listed) > SHOWN else [])]


@dataclass(frozen=True)
class Match:
    """The rules that can be carried out, the account before anything is read, and what is wrong, a sentence each."""

    rules: tuple[Rule, ...]
    account: Account
    findings: tuple[str, ...]


def match(
    model: nn.Module, rules: Iterable[Rule], shapes: Shapes, claimed: Callable[[str], bool], family: Family, taken: str = ""
) -> Match:
    """Compare the model's parameters with arrays of these shapes; those whose name is `claimed` are meant for the model."""
    by_name = {rule.name: rule for rule in rules}
    made = cache(_made)  # blocks are alike, so few shapes are made in all
    good: list[Rule] = []
    missing: dict[str, str] = {}  # parameter -> with what would make it
    wrong_shape, transposed = [], []
    layers: dict[str, set[int | None]] = defaultdict(set)  # of every array that has a place in the model: which of its layers do
    for name, parameter in model.named_parameters():
        rule = by_name.get(name)
        if rule is None:
            missing[name] = f"{name} ({family.title} has nothing of the kind)"
            continue
        if absent := rule.absent(shapes):
            missing[name] = f"{name} (from {', '.join(absent)})"
            continue
        for source in rule.sources:
            layers[source].add(rule.layer)
        theirs = tuple(shapes[source][rule.layer is not None :] for source in rule.sources)
        layout = rule.layout.pattern, tuple(rule.layout.sizes.items())
        if made(theirs, layout, rule.swap, rule.part) == parameter.shape:
            good.append(rule)
            continue
        wrong_shape.append(_wrong_shape(rule, parameter, shapes))
        turned = tuple((*shape[:-2], *shape[:-3:-1]) for shape in theirs)
        if len(theirs[0]) > 1 and made(turned, layout, rule.swap, rule.part) == parameter.shape:
            transposed.append(rule.sources[0])
    claimed_names = set(filter(claimed, shapes))
    partly = {name: len(read) for name, read in layers.items() if None not in read and len(read) < shapes[name][0]}
    loose = sorted(claimed_names - layers.keys())
    outside = tuple(sorted(shapes.keys() - layers.keys() - claimed_names))
    account = Account(
        used=tuple(sorted({source for rule in good for source in rule.sources})),
        unexpected=(*loose, *(f"{name} (only {partly[name]} of its {shapes[name][0]} layers)" for name in sorted(partly))),
        outside=outside,
        missing=tuple(missing.values()),
        wrong_shape=tuple(wrong_shape),
        left=tuple(name for name, _ in model.named_parameters() if name not in {rule.name for rule in good}),
        parts=tuple(f"{word}: {n}" for word, n in sorted(Counter(filter(None, map(family.part, outside))).items())),
        taken=taken,
    )
    findings = [*_missing_blocks(model, missing), *_extra_blocks(loose, by_name.values()), *_extra_layers(partly, shapes)]
    if transposed:
        names = ", ".join(shown(dict.fromkeys(transposed)))
        findings.append(f"Transposed: {names} would fit with the last two axes exchanged; {family.title} has them the other way round.")
    return Match(tuple(good), account, tuple(findings))


def _wrong_shape(rule: Rule, parameter: Tensor, shapes: Shapes) -> str:
    found = " and ".join(f"{source} {tuple(shapes[source])}" for source in rule.sources)
    by = f"{rule.layout}{'' if rule.layer is None else f' of layer {rule.layer}'}"
    return f"{rule.name} is {tuple(parameter.shape)}; {found} does not become that by {by}"


def _made(
    theirs: tuple[tuple[int, ...], ...], layout: tuple[str, tuple[tuple[str, int], ...]], swap: bool, part: tuple[int, int]
) -> tuple[int, ...] | None:
    """The shape of what a rule makes of arrays of these shapes; None if they do not have its layout."""
    sources = tuple(map(str, range(len(theirs))))
    rule = Rule("", sources, Layout(layout[0], **dict(layout[1])), swap=swap, part=part)
    value = rule.make({source: torch.empty(shape, device="meta") for source, shape in zip(sources, theirs, strict=True)})
    return None if value is None else tuple(value.shape)


def _blocks(names: Iterable[str]) -> Counter[str]:
    """How many of the names are below each numbered block."""
    return Counter(found[0] for name in names if (found := NUMBERED.match(name)))


def _missing_blocks(model: nn.Module, missing: Mapping[str, str]) -> list[str]:
    """Blocks of which no parameter is there."""
    needed, absent = (_blocks(names) for names in (dict(model.named_parameters()), missing))
    whole = [block for block, n in absent.items() if n == needed[block]]
    if not whole or len(whole) == len(needed):  # nothing at all is there: another file, not a missing block
        return []
    first = next(line for name, line in missing.items() if name.startswith(whole[0]))
    return [f"Missing blocks: the source has nothing for {', '.join(shown(block.rstrip('.') for block in whole))}, e.g. {first}."]


def _extra_blocks(loose: Iterable[str], rules: Iterable[Rule]) -> list[str]:
    """Numbered blocks of a state dict beyond those that the model has."""
    known = {found[0] for rule in rules for source in rule.sources if (found := NUMBERED.match(source))}
    stacks = {NUMBERED.sub(r"\1", block) for block in known}
    extra: dict[str, str] = {}
    for name in loose:
        found = NUMBERED.match(name)
        if found and found[0] not in known and found[1] in stacks:
            extra.setdefault(found[0].rstrip("."), name)
    if not extra:
        return []
    return [f"Extra blocks: the model has no {', '.join(shown(extra))} of the source, e.g. {next(iter(extra.values()))}."]


def _extra_layers(partly: Mapping[str, int], shapes: Shapes) -> list[str]:
    if not partly:
        return []
    name, read = next(iter(sorted(partly.items())))
    return [f"Extra blocks: the model has {read}, and {len(partly)} arrays have more layers, e.g. {name} {shapes[name][0]}."]
