"""What a family of published parameters is made of. Each has a file of its own; :mod:`evoattn.weights.families` lists them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from evoattn.weights.tables import Rule

Shapes = Mapping[str, tuple[int, ...]]
"""The name and shape of every array of a source."""


@dataclass(frozen=True)
class Family:
    """One family of published parameters.

    Attributes:
        name: as in ``load_weights(..., family=name)``. title: as people write it.
        versions: versions whose numerics may differ, and the name of each one's profile in :data:`evoattn.config.PROFILES`.
        table: (module, scope, names there are) -> the rules for every parameter of the module, whose arrays are below `scope`; raises
            WeightsError for a module that the family has not.
        recognise: shapes -> the versions whose files look like this; () if it is another family's file.
        scopes: module class -> where its arrays are in a whole file; a class stands for those that derive from it, the nearest counts.
        claims: (module, scope) -> what the names of arrays that belong to the module begin with, one way or several.
        out_of_scope: beginnings of names of arrays that no module of ours takes, and a word for each.
        build: (shapes, version) -> the largest module of ours that the file fills, called under ``torch.device("meta")``, for `convert`.
            None is for AlphaFold 3 and its kin, of whose files :mod:`evoattn.weights.sizes` builds MSA module and Pairformer.
        source: where users get the file. licence: its terms, in a line. line: the Python line that loads it.
        forbids_conversion: the terms forbid passing on what is made of the file; `convert` says so.
    """

    name: str
    title: str
    versions: Mapping[str, str]
    table: Callable[[nn.Module, str, Collection[str]], list[Rule]]
    recognise: Callable[[Shapes], Collection[str]]
    scopes: Mapping[type[nn.Module], str]
    source: str
    licence: str
    line: str
    claims: Callable[[nn.Module, str], str | tuple[str, ...]] = lambda module, scope: f"{scope}." if scope else ""
    out_of_scope: Mapping[str, str] = field(default_factory=dict)
    build: Callable[[Shapes, str], nn.Module] | None = None
    forbids_conversion: bool = False

    def scope(self, module: nn.Module) -> str:
        """Where the module's arrays are in a whole file; "" where nothing is said of its class."""
        return next((self.scopes[kind] for kind in type(module).__mro__ if kind in self.scopes), "")

    def part(self, name: str) -> str:
        """The word for the part of the published model that an array belongs to, or "" where there is none."""
        return next((word for beginning, word in self.out_of_scope.items() if name.startswith(beginning)), "")


Tables = Mapping[type[nn.Module], Callable[[Any, str, Collection[str]], list[Rule]]]
