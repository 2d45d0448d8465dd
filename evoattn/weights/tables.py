"""How published parameters are laid out, and how one of our parameters is made from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Layout = Callable[..., Tensor]


def as_is(x: Tensor) -> Tensor:
    return x


def matrix(x: Tensor) -> Tensor:
    """[in, out] -> [out, in]."""
    return x.mT


def into_heads(x: Tensor) -> Tensor:
    """[in, h, d] -> [h * d, in]."""
    return x.flatten(1).mT


def out_of_heads(x: Tensor) -> Tensor:
    """[h, d, out], or [left, right, out] of an outer product -> [out, h * d]."""
    return x.flatten(0, 1).mT


def flat(x: Tensor) -> Tensor:
    """[h, d] -> [h * d]."""
    return x.flatten()


def stacked(layout: Layout) -> Layout:
    """Two arrays, each in `layout`, one below the other."""
    return lambda first, second: torch.cat([layout(first), layout(second)])


def swapped(layout: Layout) -> Layout:
    """One array in `layout`, its halves exchanged."""
    return lambda x: torch.cat(list(layout(x).chunk(2))[::-1])


@dataclass(frozen=True)
class Rule:
    """How the parameter `name` of a model is made: `layout` of the arrays called `sources`, at index `layer` of their leading axis."""

    name: str
    sources: tuple[str, ...]
    layout: Layout = as_is
    layer: int | None = None

    def absent(self, arrays: Mapping[str, Tensor]) -> list[str]:
        """The arrays, or their layers, that the rule needs and `arrays` lacks."""
        if self.layer is None:
            return [source for source in self.sources if source not in arrays]
        depth = {source: arrays[source].shape[:1].numel() if source in arrays and arrays[source].dim() else 0 for source in self.sources}
        return [f"layer {self.layer} of {source}" for source in self.sources if depth[source] <= self.layer]

    def make(self, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """The parameter, or None where an array has too few axes for the layout."""
        picked = [arrays[source] if self.layer is None else arrays[source][self.layer] for source in self.sources]
        try:
            return self.layout(*picked)
        except (RuntimeError, IndexError):
            return None


def under(rules: list[Rule], name: str, layer: int | None = None) -> list[Rule]:
    """The rules of a submodule called `name`, as rules of its parent."""
    return [Rule(f"{name}.{rule.name}", rule.sources, rule.layout, rule.layer if layer is None else layer) for rule in rules]
