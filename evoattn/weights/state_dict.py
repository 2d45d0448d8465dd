"""Name tables of families whose files are torch state dicts: our layers have theirs under other names, in the same layout."""

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from evoattn.errors import WeightsError
from evoattn.weights.tables import TORCH_MATRIX, VECTOR, Rule, dotted, under

Theirs = str | tuple[str, ...]
"""A name of theirs; or of several layers, one below the other in ours. In the name of a list of blocks, ``{}`` is the index."""


class StateDictNames:
    """What each of our modules is called in a state dict.

    Args:
        title: of the family. names: module class -> our submodule -> theirs, relative to the module's own scope ("" for the same scope).
            A class stands for those that derive from it. Submodules that a module does not have are passed over.
    """

    def __init__(self, title: str, names: Mapping[type[nn.Module], Mapping[str, Theirs]]) -> None:
        self.title, self.names = title, names

    def table(self, module: nn.Module, scope: str, available: Collection[str] = ()) -> list[Rule]:
        """The rules for every parameter of `module`, whose arrays are below `scope`.

        Raises:
            WeightsError: the family has no such module.
        """
        kind = next((kind for kind in type(module).__mro__ if kind in self.names), None)
        if kind is None:
            known = ", ".join(kind.__name__ for kind in self.names)
            raise WeightsError(f"{self.title} has no parameters for a {type(module).__name__}; there are tables for {known}.")
        rules: list[Rule] = []
        for name, theirs in self.names[kind].items():
            child = _submodule(module, name)
            if isinstance(child, nn.ModuleList):
                assert isinstance(theirs, str)
                for index, block in enumerate(child):
                    rules += under(self.table(block, _below(scope, theirs.format(index))), f"{name}.{index}")
            elif isinstance(child, nn.Linear | nn.LayerNorm):
                rules += layer_rules(child, name, [_below(scope, each) for each in ([theirs] if isinstance(theirs, str) else theirs)])
            elif child is not None:
                assert isinstance(theirs, str)
                rules += under(self.table(child, _below(scope, theirs)), name)
        return rules


def layer_rules(layer: nn.Module, name: str, theirs: list[str]) -> list[Rule]:
    """The rules for weight and bias of a layer called `name`."""
    return [
        Rule(f"{name}.{leaf}", tuple(f"{each}.{leaf}" for each in theirs), TORCH_MATRIX if parameter.dim() > 1 else VECTOR)
        for leaf, parameter in layer.named_parameters()
    ]


def _below(scope: str, name: str) -> str:
    return dotted(scope, name) if name else scope


def _submodule(module: nn.Module, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part, None)  # type: ignore[assignment]
    return module
