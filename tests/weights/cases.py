"""The trunk of the golden files that hold AlphaFold 2's full model."""

from dataclasses import replace

import numpy as np

from evoattn import EvoformerConfig, EvoformerTrunk, TrunkConfig
from evoattn.config import TemplateConfig
from tests.helpers import golden

SCOPE = "alphafold/alphafold_iteration/evoformer"
EVOFORMER = EvoformerConfig(
    n_blocks=2, c_m=32, c_z=24, c_s=28, n_head_msa_row=4, n_head_msa_column=2, n_head_tri_start=3, n_head_tri_end=2,
    c_hidden_mul=20, c_hidden_opm=10,
)  # fmt: skip
TRUNK = TrunkConfig(evoformer=EVOFORMER, extra=replace(EVOFORMER, c_m=16, c_s=None, msa_column="global"), max_relative=4)
TEMPLATES = TemplateConfig(
    c_z=16, c_hidden_mul=12, n_head_tri_start=2, n_head_tri_end=2, n_head_pointwise=4, c_head_pointwise=4,
)  # fmt: skip
WITH_TEMPLATES = replace(TRUNK, templates=TEMPLATES)


def published() -> dict[str, np.ndarray]:
    """Every array of a params_model_1.npz, small: 336 of them, structure module, heads and templates included."""
    return golden("params_model_1_mini")


def of_trunk() -> dict[str, np.ndarray]:
    """Those that the trunk has a place for."""
    return {name: array for name, array in published().items() if name.startswith(f"{SCOPE}/") and "/template_" not in name}


def empty_trunk() -> EvoformerTrunk:
    """A trunk whose parameters are all NaN, so that whatever is not loaded shows."""
    trunk = EvoformerTrunk(TRUNK).eval()
    for parameter in trunk.parameters():
        parameter.data.fill_(float("nan"))
    return trunk
