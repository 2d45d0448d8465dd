"""The trunk of a run and where its parameters come from."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evoattn.errors import WeightsError
from evoattn.model import EvoformerTrunk
from evoattn.primitives import redraw_
from evoattn.runs.record import file_sha256
from evoattn.runs.settings import RunSettings
from evoattn.weights import Account, load_weights
from evoattn.weights.alphafold2 import TRUNK

FURTHER_BLOCK = re.compile(r"(evoformer|extra_msa_stack)\.blocks\.\d+\.")
"""An array of a block in a state dict; what is unexpected of these is beyond the model's blocks."""


def build(settings: RunSettings) -> tuple[EvoformerTrunk, dict[str, Any]]:
    """The trunk, ready to run, and the record of its parameters' source."""
    model = EvoformerTrunk(settings.config)
    if settings.weights is None:
        redraw_(model, settings.seed)
        source: dict[str, Any] = {"source": "random", "seed": settings.seed}
    else:
        source = load(model, settings.weights)
    model.eval().to(device=settings.torch_device, dtype=settings.torch_dtype)
    return model, source


def load(model: EvoformerTrunk, path: Path) -> dict[str, Any]:
    """Load a parameter file: every parameter must be in it; of its arrays, those of templates and of further blocks may stay unused.

    A run has no templates. Where the monomer has none, it adds nothing in their place, so that a trunk without them gives the same numbers.

    Raises:
        WeightsError: a parameter is missing, or other arrays of the trunk have no place; the message has the account.
    """
    account = load_weights(model, path, strict=False)
    templates = [name for name in account.unexpected if name.removeprefix(f"{TRUNK}/").startswith("template")]
    layers = [name for name in account.unexpected if name.endswith(" layers)") or FURTHER_BLOCK.match(name)]
    others = sorted(set(account.unexpected) - set(templates) - set(layers))
    if account.missing or others:
        raise WeightsError(f"the parameters of {path} do not fit this trunk: {account}\nNothing was run. Another --preset may fit them.")
    return {
        "source": str(path),
        "sha256": file_sha256(path),
        "account": {name: len(names) for name, names in asdict(account).items() if isinstance(names, tuple)},
        "unused": list(account.unexpected),
        "warnings": _warnings(account, templates, layers),
    }


def _warnings(account: Account, templates: list[str], layers: list[str]) -> list[str]:
    warnings = []
    if templates:
        warnings.append(
            f"{len(templates)} arrays of the parameter file embed templates, which this trunk has not: "
            "it computes AlphaFold 2 without templates."
        )
    if layers:
        warnings.append(
            f"only the first blocks of the parameter file are used ({len(layers)} arrays have more layers than this model has blocks, e.g. "
            f"{layers[0].removeprefix(TRUNK)}): this is not what AlphaFold 2 computes. --preset af2 takes all of them."
        )
    return warnings
