"""Every family of published parameters, by name."""

from evoattn.errors import WeightsError
from evoattn.weights import alphafold2
from evoattn.weights.family import Family

FAMILIES: dict[str, Family] = {family.name: family for family in (alphafold2.FAMILY,)}


def family_named(name: str) -> Family:
    """Raises WeightsError if there is no such family."""
    if name not in FAMILIES:
        raise WeightsError(f"there is no family {name!r}; there are {', '.join(FAMILIES)}.")
    return FAMILIES[name]
