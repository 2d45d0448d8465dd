"""Which features are made of an alignment: the settings, and the published ones by name."""

from dataclasses import dataclass
from typing import Final, Literal

from evoattn.errors import ConfigError


@dataclass(frozen=True)
class MSAMasking:
    """Cells of the cluster centres that are hidden, as in BERT (AlphaFold 2 supplement 1.2.7); the query's cells too.

    Attributes:
        fraction: probability that a cell is chosen.
        uniform, profile, same: probabilities that a chosen cell gets an amino acid drawn uniformly from the 20; a residue,
            ``X`` or gap drawn from its column of the whole alignment; or stays as it is. Otherwise it gets the mask token.
    """

    fraction: float = 0.15
    uniform: float = 0.1
    profile: float = 0.1
    same: float = 0.1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise ConfigError(f"MSAMasking: {name} is {value}; it is a probability between 0 and 1.")
        if self.uniform + self.profile + self.same > 1:
            raise ConfigError(
                f"MSAMasking: uniform, profile and same add up to {self.uniform + self.profile + self.same:g}; they are at most 1, "
                "and what is missing from 1 is the probability of the mask token."
            )


@dataclass(frozen=True)
class FeatureConfig:
    """What :func:`evoattn.io.make_features` does. The defaults, "plain", are deterministic and hide nothing.

    Attributes:
        max_seqs: cluster centres at most, N_clust, the query included.
        max_extra: extra rows at most, N_extra.
        sampling: centres and extra rows are the "first" ones in file order, or drawn at "random"; the query is always centre 0.
        masking: cells of the centres that are hidden, or None.
        clusters: a row belongs to the centre with which it shares most residues: the first of equals ("nearest", AlphaFold 2),
            or in equal parts to all of them ("shared", AlphaFold-Multimer, where it is a softmax of 1000 x the number).
        cluster_epsilon: added to the number of rows of a cluster when its averages are taken.
        chains: "offset": residue_index goes on from chain to chain after a jump of `chain_jump`. "ids": it starts anew in each
            chain, and asym_id, entity_id and sym_id tell the chains apart.
        chain_jump: beyond the 32 residues that relative positions tell apart.
        copies: the columns of a chain that occurs several times in a complex are given "once", or for "all" copies.
        break_channel: target_feat has a first channel for a break between segments (always 0).
        drop_repeats: rows that repeat an earlier one, insertions aside, are left out (:func:`evoattn.io.drop_repeats`).
        deletion_scale: d inserted residues give the deletion value 2/pi atan(d / deletion_scale).
    """

    max_seqs: int = 128
    max_extra: int = 1024
    sampling: Literal["first", "random"] = "first"
    masking: MSAMasking | None = None
    clusters: Literal["nearest", "shared"] = "nearest"
    cluster_epsilon: float = 0.0
    chains: Literal["offset", "ids"] = "offset"
    chain_jump: int = 200
    copies: Literal["once", "all"] = "once"
    break_channel: bool = True
    drop_repeats: bool = False
    deletion_scale: float = 3.0

    def __post_init__(self) -> None:
        for name, least in {"max_seqs": 1, "max_extra": 0, "chain_jump": 0, "cluster_epsilon": 0}.items():
            if getattr(self, name) < least:
                raise ConfigError(f"FeatureConfig: {name} is {getattr(self, name)}; it is {least} or more.")
        if self.deletion_scale <= 0:
            raise ConfigError(f"FeatureConfig: deletion_scale is {self.deletion_scale}; it is positive, 3 in AlphaFold 2.")
        words = {"sampling": ("first", "random"), "clusters": ("nearest", "shared"), "chains": ("offset", "ids"), "copies": ("once", "all")}
        for name, allowed in words.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(f"FeatureConfig: {name} is {getattr(self, name)!r}; allowed are {allowed[0]!r} and {allowed[1]!r}.")

    @classmethod
    def alphafold2(cls, model: int = 1) -> "FeatureConfig":
        """AlphaFold 2 monomer at inference, model 1 to 5, with or without pTM (supplement, table 5; ``model/config.py``).

        Models 1 and 2 take templates, whose rows stand in for 4 of the 512 centres; models 1, 3 and 4 see 5,120 extra rows.
        """
        if model not in range(1, 6):
            raise ConfigError(f"FeatureConfig.alphafold2: model is {model}; AlphaFold 2 has models 1 to 5.")
        return cls(
            max_seqs=508 if model in (1, 2) else 512,
            max_extra=5120 if model in (1, 3, 4) else 1024,
            sampling="random",
            masking=MSAMasking(),
            cluster_epsilon=1e-6,
            copies="all",
            drop_repeats=True,
        )

    @classmethod
    def alphafold2_multimer(cls, version: int = 3, model: int = 1) -> "FeatureConfig":
        """AlphaFold-Multimer at inference (Evans et al. 2021; ``model/config.py``): version 1, 2 or 3, model 1 to 5.

        Version 3 takes 508 centres and, in models 1 to 3, 2,048 extra rows, 1,152 in models 4 and 5; versions 1 and 2
        take 252 and 1,152.
        """
        if version not in (1, 2, 3) or model not in range(1, 6):
            raise ConfigError(f"FeatureConfig.alphafold2_multimer: version {version}, model {model}; there are versions 1..3, models 1..5.")
        return cls(
            max_seqs=508 if version == 3 else 252,
            max_extra=2048 if version == 3 and model <= 3 else 1152,
            sampling="random",
            masking=MSAMasking(),
            clusters="shared",
            chains="ids",
            copies="all",
            break_channel=False,
            drop_repeats=True,
        )


FEATURE_PRESETS: Final = {
    "plain": FeatureConfig(),
    **{f"af2_model_{model}": FeatureConfig.alphafold2(model) for model in range(1, 6)},
    **{f"af2_multimer_{model}": FeatureConfig.alphafold2_multimer(model=model) for model in range(1, 6)},
}
"""Settings by name; ``af2_multimer_*`` are those of version 3."""


def feature_preset(name: str) -> FeatureConfig:
    """The settings called `name`. Raises ConfigError if there are none; the message lists those there are."""
    if name not in FEATURE_PRESETS:
        raise ConfigError(f"there are no features {name!r}; there are {', '.join(FEATURE_PRESETS)}.")
    return FEATURE_PRESETS[name]
