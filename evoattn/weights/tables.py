"""How published parameters are laid out, and how one of our parameters is made from them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from einops import EinopsError, rearrange
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """An einops pattern that turns an array of theirs into a parameter of ours, e.g. ``"i h d -> (h d) i"`` with h = 8.

    The pattern holds the rank, and h the number of heads: without it an array for 8 heads of 32 would fit a model with 32 heads of 8.
    """

    pattern: str
    h: int | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return rearrange(x, self.pattern) if self.h is None else rearrange(x, self.pattern, h=self.h)

    def __str__(self) -> str:
        return f"'{self.pattern}'" if self.h is None else f"'{self.pattern}' with h = {self.h}"


VECTOR = Layout("c -> c")
MATRIX = Layout("i o -> o i")


@dataclass(frozen=True)
class Rule:
    """How the parameter `name` of a model is made: the arrays called `sources`, each in `layout`, one below the other.

    `layer` is the index into their leading axis, if they have one for the blocks of a stack. `swap` exchanges the halves of the result.
    """

    name: str
    sources: tuple[str, ...]
    layout: Layout
    layer: int | None = None
    swap: bool = False

    def absent(self, arrays: Mapping[str, Tensor]) -> list[str]:
        """The arrays, or their layers, that the rule needs and `arrays` lacks."""
        if self.layer is None:
            return [source for source in self.sources if source not in arrays]
        depth = {source: len(arrays[source]) if source in arrays and arrays[source].dim() else 0 for source in self.sources}
        return [f"layer {self.layer} of {source}" for source in self.sources if depth[source] <= self.layer]

    def make(self, arrays: Mapping[str, Tensor]) -> Tensor | None:
        """The parameter, or None where an array does not have the layout."""
        try:
            parts = [self.layout(arrays[source] if self.layer is None else arrays[source][self.layer]) for source in self.sources]
        except EinopsError:
            return None
        if len({part.shape[1:] for part in parts}) > 1:
            return None
        whole = torch.cat(parts)
        return torch.cat(whole.chunk(2)[::-1]) if self.swap else whole


def under(rules: list[Rule], name: str, layer: int | None = None) -> list[Rule]:
    """The rules of a submodule called `name`, as rules of its parent."""
    return [replace(rule, name=f"{name}.{rule.name}", layer=rule.layer if layer is None else layer) for rule in rules]
