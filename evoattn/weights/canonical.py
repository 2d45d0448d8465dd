"""Files under our own names, as :func:`evoattn.weights.convert` writes them, and how a model finds its part in one."""

from torch import nn

from evoattn.errors import WeightsError
from evoattn.weights.sources import Source
from evoattn.weights.tables import Layout, Rule

AS_IT_IS = Layout("... -> ...")
KEPT = "outside:"
"""What stands before the name of an array that no parameter of ours was made of."""


def canonical_table(model: nn.Module, source: Source, scope: str | None) -> tuple[str, list[Rule]]:
    """The scope of the model in a converted file, and the rules for its parameters.

    Raises:
        WeightsError: the file has the model in several places, and none was named.
    """
    names = [name for name, _ in model.named_parameters()]
    if scope is None:
        scopes = _places(names, source)
        if len(scopes) > 1:
            places = ", ".join(map(repr, scopes))
            raise WeightsError(f"{source.name} has a {type(model).__name__} in several places; choose one as scope=: {places}.")
        scope = scopes[0] if scopes else ""
    before = f"{scope}." if scope else ""
    return scope, [Rule(name, (f"{before}{name}",), AS_IT_IS) for name in names]


def _places(names: list[str], source: Source) -> list[str]:
    """Every scope below which all `names` are; the outermost first."""
    if not names:
        return []
    ends = [found for found in source.shapes if (found == names[0] or found.endswith(f".{names[0]}")) and not found.startswith(KEPT)]
    scopes = [found.removesuffix(names[0]).rstrip(".") for found in ends]
    whole = [scope for scope in scopes if all((f"{scope}.{name}" if scope else name) in source.shapes for name in names)]
    return [""] if "" in whole else sorted(whole)
