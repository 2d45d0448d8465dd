"""Configs of the stacks, and the published ones by name."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from evoattn.config.checks import PairAs, PairMode, check_bins, check_heads, check_pair_as, check_sizes
from evoattn.config.profiles import PROFILES, Profile, WithProfile
from evoattn.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PairConfig(WithProfile):
    """The updates of the pair representation that every stack has: triangle multiplication, triangle attention, transition.

    Attributes:
        n_blocks: blocks, each with its own parameters.
        c_z: channels of the pair representation.
        n_head_tri_start, n_head_tri_end: heads of triangle attention around the starting and the ending node.
        c_head_tri: width of such a head; None divides c_z among the heads.
        c_hidden_mul: hidden channels of triangle multiplication.
        pair_transition_n: how many times wider the hidden layer of the transition is.
        dropout_pair: dropout rate in training.
        triangle_pair_as: how pair features enter triangle attention: any mix of "bias", "keys", "values". Published systems use ("bias",).
        pair_mode: pair features as keys and values are added to those of the key ("relative"), or are further keys ("appended").
        profile: what published systems do differently, e.g. the order of the updates.
    """

    n_blocks: int = 48
    c_z: int = 128
    n_head_tri_start: int = 4
    n_head_tri_end: int = 4
    c_head_tri: int | None = None
    c_hidden_mul: int = 128
    pair_transition_n: int = 4
    dropout_pair: float = 0.25
    triangle_pair_as: tuple[PairAs, ...] = ("bias",)
    pair_mode: PairMode = "relative"
    profile: Profile = PROFILES["alphafold2"]

    SWITCHES: ClassVar[tuple[str, ...]] = (
        "ending_bias", "starting_mask", "transition", "mask_transition", "triangle_attn_bias", "triangle_mul_bias", "triangle_mul_scale",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_sizes(self, "n_blocks", least=0)
        check_sizes(self, "c_z", "c_hidden_mul", "pair_transition_n")
        self.check_attention("c_z", "c_head_tri", "n_head_tri_start", "n_head_tri_end")
        self.check_rate("dropout_pair")
        check_pair_as(type(self).__name__, self.triangle_pair_as, self.pair_mode, "triangle_pair_as")
        if not isinstance(self.profile, Profile):
            raise ConfigError(f"{type(self).__name__}: profile is {self.profile!r}; give a Profile, e.g. profile('alphafold2').")

    def numerics(self, profile: Profile) -> dict[str, Any]:
        found = super().numerics(profile)
        return found if profile.mask_transition == "all" else found | {"mask_transition": "none"}

    def check_attention(self, width: str, head_width: str, *heads: str) -> None:
        """Raise ConfigError unless these fields, numbers of heads, share out the field `width`, or the width of a head is given."""
        check_sizes(self, *heads)
        if getattr(self, head_width) is not None:
            check_sizes(self, head_width)
            return
        for name in heads:
            check_heads(type(self).__name__, width, getattr(self, width), name, getattr(self, name))

    def check_rate(self, name: str) -> None:
        """Raise ConfigError unless the field is a dropout rate."""
        if not 0.0 <= getattr(self, name) < 1.0:
            raise ConfigError(f"{type(self).__name__}: {name} is {getattr(self, name)!r}; it must be at least 0 and below 1.")


@dataclass(frozen=True, kw_only=True)
class EvoformerConfig(PairConfig):
    """An Evoformer stack or an extra-MSA stack (AlphaFold 2 supplement, algorithms 6 and 18; defaults are its Evoformer).

    Attributes (besides those of :class:`PairConfig`):
        c_m, c_s: channels of the MSA and single representation; c_s None leaves the single representation out.
        n_head_msa_row, n_head_msa_column: heads of row attention and of column attention.
        c_head_msa: width of such a head; None divides c_m among the heads.
        c_hidden_opm: hidden channels of the outer product mean.
        msa_transition_n: how many times wider the hidden layer of the MSA transition is.
        dropout_msa: dropout rate in training.
        msa_column: plain column attention, or the global one of the extra-MSA stack (algorithm 19).
        msa_pair_as: how pair features enter row attention, as triangle_pair_as.
    """

    c_m: int = 256
    c_s: int | None = 384
    n_head_msa_row: int = 8
    n_head_msa_column: int = 8
    c_head_msa: int | None = None
    c_hidden_opm: int = 32
    msa_transition_n: int = 4
    dropout_msa: float = 0.15
    msa_column: Literal["attention", "global"] = "attention"
    msa_pair_as: tuple[PairAs, ...] = ("bias",)

    SWITCHES: ClassVar[tuple[str, ...]] = (*PairConfig.SWITCHES, "msa_op", "opm_first", "opm_norm", "opm_proj_bias", "msa_attn_bias")

    def __post_init__(self) -> None:
        super().__post_init__()
        owner = type(self).__name__
        check_sizes(self, "c_m", "c_hidden_opm", "msa_transition_n")
        if self.c_s is not None:
            check_sizes(self, "c_s")
        self.check_attention("c_m", "c_head_msa", "n_head_msa_row", "n_head_msa_column")
        self.check_rate("dropout_msa")
        if self.msa_column not in ("attention", "global"):
            raise ConfigError(f"{owner}: msa_column is {self.msa_column!r}; allowed are 'attention' and 'global'.")
        check_pair_as(owner, self.msa_pair_as, self.pair_mode, "msa_pair_as")

    def numerics(self, profile: Profile) -> dict[str, Any]:
        found = super().numerics(profile)
        return found | {"mask_transition": profile.mask_transition} if self.msa_column == "global" else found  # an extra-MSA stack

    @classmethod
    def extra_msa(cls) -> "EvoformerConfig":
        """AlphaFold 2's extra-MSA stack (algorithm 18): 4 blocks of 64 channels, global column attention, no single representation."""
        return cls(n_blocks=4, c_m=64, c_s=None, msa_column="global")


@dataclass(frozen=True, kw_only=True)
class PairformerConfig(PairConfig):
    """A Pairformer (AlphaFold 3 supplement, algorithm 17; defaults are its trunk).

    Attributes (besides those of :class:`PairConfig`):
        c_s: channels of the single representation.
        n_head_single: heads of the attention along it. c_head_single: width of such a head; None divides c_s among the heads.
        single_transition_n: how many times wider the hidden layer of the single transition is.
        single_post_norm: a norm of the single representation at the end of each block (an option of Boltz-2).
        single_pair_as: how pair features enter the attention, as triangle_pair_as.
    """

    c_s: int = 384
    n_head_single: int = 16
    c_head_single: int | None = None
    single_transition_n: int = 4
    single_post_norm: bool = False
    single_pair_as: tuple[PairAs, ...] = ("bias",)
    profile: Profile = PROFILES["alphafold3"]

    SWITCHES: ClassVar[tuple[str, ...]] = (*PairConfig.SWITCHES, "single_q_bias", "single_bias")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "c_s", "single_transition_n")
        self.check_attention("c_s", "c_head_single", "n_head_single")
        check_pair_as(type(self).__name__, self.single_pair_as, self.pair_mode, "single_pair_as")


@dataclass(frozen=True, kw_only=True)
class MSAModuleConfig(PairConfig):
    """An MSA module (AlphaFold 3 supplement, algorithm 8; defaults are AlphaFold 3's code, whose heads are 8 wide; the paper says 32).

    Attributes (besides those of :class:`PairConfig`):
        c_m: channels of the MSA representation.
        n_head_msa: heads of pair-weighted averaging. c_head_msa: width of such a head; None divides c_m among the heads.
        c_hidden_opm: hidden channels of the outer product mean.
        msa_transition_n: how many times wider the hidden layer of the MSA transition is.
        dropout_msa: dropout rate in training.
        c_msa_feat, c_single_inputs: widths of the features that are embedded; None for both leaves the embedding out.
    """

    n_blocks: int = 4
    c_m: int = 64
    n_head_msa: int = 8
    c_head_msa: int | None = None
    c_hidden_opm: int = 32
    msa_transition_n: int = 4
    dropout_msa: float = 0.15
    c_msa_feat: int | None = None
    c_single_inputs: int | None = None
    profile: Profile = PROFILES["alphafold3"]

    SWITCHES: ClassVar[tuple[str, ...]] = (
        *PairConfig.SWITCHES, "msa_op", "opm_first", "opm_norm", "opm_proj_bias", "pwa_mask", "last_msa_update", "share_msa_weights",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "c_m", "c_hidden_opm", "msa_transition_n")
        self.check_attention("c_m", "c_head_msa", "n_head_msa")
        self.check_rate("dropout_msa")
        if (self.c_msa_feat is None) != (self.c_single_inputs is None):
            raise ConfigError(
                f"MSAModuleConfig: c_msa_feat is {self.c_msa_feat!r} and c_single_inputs {self.c_single_inputs!r}; "
                "the embedding takes both: give both widths, or None for both."
            )
        if self.c_msa_feat is not None:
            check_sizes(self, "c_msa_feat", "c_single_inputs")


PAIRFORMERS: dict[str, PairformerConfig] = {
    name: PairformerConfig(n_blocks=n_blocks, profile=PROFILES[family])
    for name, family, n_blocks in (
        ("alphafold3", "alphafold3", 48), ("boltz1", "boltz", 48), ("boltz2", "boltz", 64), ("protenix", "protenix", 48),
        ("openfold3", "openfold3", 48), ("openfold3_transposed", "openfold3_transposed", 48), ("rosettafold3", "rosettafold3", 48),
    )
}  # fmt: skip
"""The Pairformers of published systems."""

MSA_MODULES: dict[str, MSAModuleConfig] = {
    name: MSAModuleConfig(profile=PROFILES[family], c_head_msa=c_head, c_msa_feat=c_feat, c_single_inputs=c_inputs)
    for name, family, c_head, c_feat, c_inputs in (
        ("alphafold3", "alphafold3", 8, 34, 447), ("boltz1", "boltz", 32, 36, 455), ("boltz2", "boltz", 32, 36, 384),
        ("protenix", "protenix", 8, 34, 449), ("openfold3", "openfold3", 8, 34, 449),
        ("openfold3_transposed", "openfold3_transposed", 8, 34, 449), ("rosettafold3", "rosettafold3", 32, 34, 449),
    )
}  # fmt: skip
"""The MSA modules of published systems, with the embedding of their features."""


@dataclass(frozen=True, kw_only=True)
class ESMFoldConfig(PairConfig):
    """The trunk of ESMFold (Lin et al. 2023; defaults are those of its published models).

    Attributes (besides those of :class:`PairConfig`):
        c_s: channels of the sequence representation.
        n_head_single: heads of the attention along it. c_head_single: width of such a head; None divides c_s among the heads.
        single_transition_n: how many times wider the hidden layer of the single transition is.
        max_relative: residue offsets beyond it share one encoding.
        recycle_bins, recycle_min, recycle_max: bins of the recycled C-beta distances, and the first and last boundary, in Angstrom.
    """

    c_s: int = 1024
    n_head_single: int = 32
    c_head_single: int | None = None
    single_transition_n: int = 4
    dropout_pair: float = 0.0
    max_relative: int = 32
    recycle_bins: int = 15
    recycle_min: float = 3.375
    recycle_max: float = 21.375
    profile: Profile = PROFILES["esmfold"]

    SWITCHES: ClassVar[tuple[str, ...]] = (  # its pair mask, made of that of the residues, is symmetric
        *(each for each in PairConfig.SWITCHES if each != "starting_mask"), "single_q_bias", "single_bias",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "c_s", "single_transition_n")
        check_sizes(self, "max_relative", least=0)
        check_sizes(self, "recycle_bins", least=2)
        self.check_attention("c_s", "c_head_single", "n_head_single")
        if self.c_z % 2:
            raise ConfigError(f"ESMFoldConfig: c_z is {self.c_z}; it must be even: one half is of products, one of differences.")
        check_bins(self, "recycle_min", "recycle_max")


@dataclass(frozen=True, kw_only=True)
class MSATransformerConfig(WithProfile):
    """The MSA Transformer (Rao et al. 2021; defaults are those of esm_msa1b_t12_100M_UR50S).

    Attributes:
        n_blocks: blocks, each with its own parameters. c_m: channels. n_head: heads of both attentions, of width c_m / n_head.
        c_hidden_transition: hidden channels of the transition.
        dropout: rate in training, of the updates.
        max_seqs, max_positions: rows, and columns with the first token, that have an encoding.
        c_row_position: width of the encoding of a row; 1 in the first release, esm_msa1_t12_100M_UR50S.
        profile: what published systems do differently; rows are tied in every MSA Transformer.
    """

    n_blocks: int = 12
    c_m: int = 768
    n_head: int = 12
    c_hidden_transition: int = 3072
    dropout: float = 0.1
    max_seqs: int = 1024
    max_positions: int = 1024
    c_row_position: int = 768
    profile: Profile = PROFILES["msa_transformer"]

    SWITCHES: ClassVar[tuple[str, ...]] = ("msa_op", "transition")

    def __post_init__(self) -> None:
        check_sizes(self, "n_blocks", least=0)
        check_sizes(self, "c_m", "n_head", "c_hidden_transition", "max_seqs", "max_positions")
        check_heads("MSATransformerConfig", "c_m", self.c_m, "n_head", self.n_head)
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"MSATransformerConfig: dropout is {self.dropout!r}; it must be at least 0 and below 1.")
        if self.c_row_position not in (1, self.c_m):
            raise ConfigError(f"MSATransformerConfig: c_row_position is {self.c_row_position!r}; allowed are c_m = {self.c_m} and 1.")
        if not isinstance(self.profile, Profile) or self.profile.msa_op != "tied_row_column":
            raise ConfigError(
                f"MSATransformerConfig: profile is {self.profile!r}; its msa_op must be 'tied_row_column': give profile('msa_transformer')."
            )
