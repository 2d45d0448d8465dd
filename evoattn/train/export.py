"""Trained parameters as a file that :func:`evoattn.load_weights` reads."""

import json
from dataclasses import asdict
from pathlib import Path

import torch

from evoattn.errors import ConfigError
from evoattn.train.checkpoint import Checkpoint, write_tensors
from evoattn.train.config import ModelConfig
from evoattn.train.losses import BINS
from evoattn.train.model import TrunkWithHeads
from evoattn.weights.canonical import rules_to_json
from evoattn.weights.families import FAMILIES
from evoattn.weights.tables import under

PARTS = ("trunk", "masked_msa", "distogram")


def export_weights(checkpoint: Checkpoint, model: ModelConfig, path: str | Path, *, average: bool = True) -> Path:
    """Write the parameters of a checkpoint as safetensors: the trunk below "trunk.", heads below "masked_msa." and "distogram.".

    The file says which published family computes as the trunk does, so that ``load_weights(EvoformerTrunk(config), path)`` checks it, and
    ``evoattn weights convert`` writes it under the names of that family.

    Args:
        average: the moving average rather than the last parameters; those that are not trained are as they began.

    Raises:
        ConfigError: no published family has the numerics of the trunk. TrainingError: the file cannot be written.
    """
    path = Path(path)
    config = model.trunk()
    numerics = config.evoformer.profile.name
    known = [(family, version) for family in FAMILIES.values() for version, name in family.versions.items() if name == numerics]
    if not known:
        raise ConfigError(f"export_weights: no family of published parameters has the numerics {numerics!r} of this trunk.")
    family, version = known[0]
    with torch.device("meta"):
        whole = TrunkWithHeads(config, BINS[model.bins])
    parts = {name: getattr(whole, name) for name in PARTS}
    rules = [rule for name, part in parts.items() for rule in under(family.table(part, family.scope(part), ()), name)]
    metadata = {
        "format": "pt",
        "evoattn_family": family.name,
        "evoattn_version": version,
        "evoattn_profile": json.dumps(asdict(config.evoformer.profile)),
        "evoattn_model": json.dumps({name: type(part).__name__ for name, part in parts.items()}),
        "evoattn_config": json.dumps({"trunk": asdict(config)}),
        "evoattn_licence": "that of whoever trained them",
        "evoattn_rules": rules_to_json(rules),
        "evoattn_steps": str(checkpoint.step),
    }
    weights = checkpoint.of("weights") | (checkpoint.of("average") if average else {})
    write_tensors(path, weights, metadata)
    return path
