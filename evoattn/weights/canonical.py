"""Files under our own names, as :func:`evoattn.weights.convert` writes them, and how a model finds its part in one."""

import json
from collections.abc import Iterable

from torch import nn

from evoattn.errors import WeightsError
from evoattn.weights.sources import Source
from evoattn.weights.tables import Layout, Rule, dotted

AS_IT_IS = Layout("... -> ...")
KEPT = "outside:"
"""What stands before the name of an array that no parameter of ours was made of."""


def table(model: nn.Module, scope: str) -> list[Rule]:
    """The parameters of the model under their own names."""
    return [Rule(name, (dotted(scope, name),), AS_IT_IS) for name, _ in model.named_parameters()]


def claims(scope: str) -> str:
    return f"{scope}." if scope else ""


def place(model: nn.Module, source: Source) -> str:
    """The scope below which the file has all the parameters of the model: the outermost, or the only one; "" if there is none.

    Raises:
        WeightsError: the file has the model in several places.
    """
    names = [name for name, _ in model.named_parameters()]
    last = names[0] if names else ""
    ends = [found for found in source.shapes if (found == last or found.endswith(f".{last}")) and not found.startswith(KEPT)]
    scopes = [found.removesuffix(last).removesuffix(".") for found in ends]
    whole = sorted(scope for scope in scopes if all(dotted(scope, name) in source.shapes for name in names))
    if len(whole) > 1 and "" not in whole:
        places = ", ".join(map(repr, whole))
        raise WeightsError(f"{source.name} has a {type(model).__name__} in several places; choose one as scope=: {places}.")
    return whole[0] if whole else ""


def rules_to_json(rules: Iterable[Rule]) -> str:
    """What made the parameters, so that the way back needs the file alone."""
    return json.dumps(
        [[r.name, r.sources, r.layout.pattern, r.layout.sizes, r.layer, r.swap, r.part] for r in rules], separators=(",", ":")
    )


def rules_from_json(text: str) -> list[Rule]:
    return [
        Rule(name, tuple(sources), Layout(pattern, **sizes), layer, swap, tuple(part))
        for name, sources, pattern, sizes, layer, swap, part in json.loads(text)
    ]
