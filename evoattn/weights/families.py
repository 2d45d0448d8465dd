"""Every family of published parameters, by name."""

from evoattn.errors import WeightsError
from evoattn.weights import (
    alphafold2,
    alphafold3,
    boltz,
    esmfold,
    msa_transformer,
    openfold,
    openfold3,
    protenix,
    rosettafold3,
)
from evoattn.weights.family import Family

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (alphafold2, openfold, alphafold3, openfold3, boltz, protenix, rosettafold3, esmfold, msa_transformer)
}


def family_named(name: str) -> Family:
    """Raises WeightsError if there is no such family."""
    if name not in FAMILIES:
        raise WeightsError(f"there is no family {name!r}; there are {', '.join(FAMILIES)}.")
    return FAMILIES[name]
