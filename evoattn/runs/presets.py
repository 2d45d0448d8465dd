"""Presets that are no trunk of AlphaFold 2's kind: one that runs by itself, and published systems that cannot run from an alignment."""

from typing import Final

from evoattn.config import PRESETS, MSATransformerConfig
from evoattn.errors import ConfigError
from evoattn.weights.families import FAMILIES

MSA_TRANSFORMERS: Final = {"msa_transformer": MSATransformerConfig()}

_FAMILY_OF: Final = {
    "af3": "alphafold3", "alphafold3": "alphafold3", "boltz": "boltz", "boltz1": "boltz", "boltz2": "boltz", "protenix": "protenix",
    "openfold3": "openfold3", "of3": "openfold3", "rf3": "rosettafold3", "rosettafold3": "rosettafold3", "esmfold": "esmfold",
}  # fmt: skip


def refuse_preset(name: str) -> None:
    """Raise ConfigError if there is no such preset, or a run of this published system needs more than an alignment."""
    key = name.lower().replace("_", "").replace("-", "")
    if name in PRESETS or name in MSA_TRANSFORMERS:
        return
    if key not in _FAMILY_OF:
        raise ConfigError(f"there is no preset {name!r} to run; there are {', '.join([*PRESETS, *MSA_TRANSFORMERS])}.")
    family = FAMILIES[_FAMILY_OF[key]]
    needs = "a language model of single sequences (ESM-2)" if family.name == "esmfold" else "encoders of atoms"
    raise ConfigError(
        f"the preset {name!r} cannot be run from an alignment: the trunk of {family.title} needs {needs}, which evoattn has not. "
        f"Its parameters load into blocks and stacks instead, in Python: {family.line}. Presets of AlphaFold 2, OpenFold and the MSA "
        "Transformer can be run."
    )
