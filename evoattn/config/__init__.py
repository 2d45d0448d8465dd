"""Architecture: what decides the parameters of a model. Frozen, and part of a checkpoint; how a model runs is :mod:`evoattn.execution`."""

from evoattn.config.checks import PairAs, PairMode, check_heads, check_pair_as
from evoattn.config.profiles import PROFILES, Profile, profile
from evoattn.config.stacks import (
    MSA_MODULES,
    PAIRFORMERS,
    ESMFoldConfig,
    EvoformerConfig,
    MSAModuleConfig,
    MSATransformerConfig,
    PairConfig,
    PairformerConfig,
)
from evoattn.config.trunk import PRESETS, TemplateConfig, TrunkConfig, preset

__all__ = [
    "MSA_MODULES",
    "PAIRFORMERS",
    "PRESETS",
    "PROFILES",
    "ESMFoldConfig",
    "EvoformerConfig",
    "MSAModuleConfig",
    "MSATransformerConfig",
    "PairAs",
    "PairConfig",
    "PairMode",
    "PairformerConfig",
    "Profile",
    "TemplateConfig",
    "TrunkConfig",
    "check_heads",
    "check_pair_as",
    "preset",
    "profile",
]
