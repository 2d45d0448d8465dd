"""How published parameters are laid out: rules that make our parameters from a family's arrays, and those arrays from our parameters."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from einops import EinopsError, rearrange
from torch import Tensor


class Layout:
    """An einops pattern that turns an array of theirs into a parameter of ours, e.g. ``Layout("i h d -> (h d) i", h=8)``, and back.

    The pattern holds the rank, and `sizes` those axes that a group of them leaves open: needed on the way back, and on the way here they
    refuse what would fit by its product alone (an array for 8 heads of 32 in a model with 32 heads of 8).
    """

    def __init__(self, pattern: str, **sizes: int) -> None:
        self.pattern, self.sizes = pattern, sizes
        theirs, _, ours = pattern.partition(" -> ")
        self.inverse = f"{ours} -> {theirs}"

    def make(self, theirs: Tensor) -> Tensor:
        """Ours. Raises EinopsError if `theirs` does not have this layout."""
        return rearrange(theirs, self.pattern, **self.sizes)

    def unmake(self, ours: Tensor) -> Tensor:
        """Theirs, of which :meth:`make` makes `ours`."""
        return rearrange(ours, self.inverse, **self.sizes)

    def __str__(self) -> str:
        sizes = ", ".join(f"{axis} = {size}" for axis, size in self.sizes.items())
        return f"'{self.pattern}'" + (f" with {sizes}" if sizes else "")

    __repr__ = __str__


VECTOR = Layout("c -> c")
MATRIX = Layout("i o -> o i")
TORCH_MATRIX = Layout("o i -> o i")
"""A matrix as torch stores it, and as we do."""


@dataclass(frozen=True)
class Rule:
    """How the parameter `name` of a model is made: the arrays called `sources`, each in `layout`, one below the other along axis 0.

    Attributes:
        layer: the index into their leading axis, if they have one for the blocks of a stack.
        swap: exchange the halves of the result.
        part: (k, n) takes the k-th (from 0) of n equal parts of the result, along axis 0; the other parts are other parameters.
    """

    name: str
    sources: tuple[str, ...]
    layout: Layout
    layer: int | None = None
    swap: bool = False
    part: tuple[int, int] = (0, 1)

    def absent(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """The arrays, or their layers, that the rule needs and a source with these shapes lacks."""
        if self.layer is None:
            return [source for source in self.sources if source not in shapes]
        depth = {source: shapes[source][0] if shapes.get(source) else 0 for source in self.sources}
        return [f"layer {self.layer} of {source}" for source in self.sources if depth[source] <= self.layer]

    def make(self, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """The parameter, or None where an array does not have the layout."""
        try:
            pieces = [self.layout.make(arrays[source] if self.layer is None else arrays[source][self.layer]) for source in self.sources]
        except EinopsError:
            return None
        if len({piece.shape for piece in pieces}) > 1:
            return None
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        if self.swap:
            whole = torch.cat(whole.chunk(2)[::-1])
        k, n = self.part
        return None if whole.shape[0] % n else whole[k * whole.shape[0] // n : (k + 1) * whole.shape[0] // n]

    def unmake(self, parts: list[Tensor]) -> list[Tensor]:
        """One array, or one layer of it, per source, from every part of the result in order."""
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.swap:
            whole = torch.cat(whole.chunk(2)[::-1])
        return [self.layout.unmake(piece) for piece in whole.chunk(len(self.sources))]


def under(rules: list[Rule], name: str, layer: int | None = None) -> list[Rule]:
    """The rules of a submodule called `name`, as rules of its parent."""
    return [replace(rule, name=f"{name}.{rule.name}", layer=rule.layer if layer is None else layer) for rule in rules]


def dotted(scope: str, name: str) -> str:
    """`name` below `scope` in the names of a torch state dict; the scope may be empty."""
    return f"{scope}.{name}" if scope else name


def by_sources(rules: Iterable[Rule]) -> dict[tuple[str, ...], list[Rule]]:
    """The rules that read the same arrays, together: so that each array is read once."""
    groups = defaultdict(list)
    for rule in rules:
        groups[rule.sources].append(rule)
    return dict(groups)


def unmade(rules: Iterable[Rule], parameter: Callable[[str], Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each array of theirs by name, made from our parameters, which `parameter` reads by name: the inverse of all the rules together."""
    for sources, group in by_sources(rules).items():
        layers = defaultdict(list)
        for rule in sorted(group, key=lambda rule: rule.part):
            layers[rule.layer].append(rule)
        made = {layer: parts[0].unmake([parameter(rule.name) for rule in parts]) for layer, parts in layers.items()}
        for index, source in enumerate(sources):
            if None in made:
                yield source, made[None][index]
            else:
                yield source, torch.stack([made[layer][index] for layer in sorted(layer for layer in made if layer is not None)])
