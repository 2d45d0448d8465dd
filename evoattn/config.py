"""Architecture: what decides the parameters of a model. Frozen, and part of a checkpoint; how a model runs is :mod:`evoattn.execution`."""

from dataclasses import dataclass, field, replace
from typing import Literal

from evoattn.errors import ConfigError

PairAs = Literal["bias", "keys", "values"]
PairMode = Literal["relative", "appended"]


def check_heads(owner: str, width_name: str, width: int, heads_name: str, heads: int) -> None:
    """Raise ConfigError unless `heads` divides `width`."""
    if heads < 1 or width % heads:
        raise ConfigError(
            f"{owner}: {heads_name} = {heads} does not divide {width_name} = {width}; "
            f"the width of a head is {width_name} / {heads_name}. Choose a divisor of {width}."
        )


def check_pair_as(owner: str, pair_as: tuple[str, ...], mode: str, name: str = "pair_as") -> None:
    """Raise ConfigError unless the pair features enter in a way that exists."""
    known = ("bias", "keys", "values")
    if not isinstance(pair_as, tuple) or not set(pair_as) <= set(known) or len(set(pair_as)) != len(pair_as):
        raise ConfigError(
            f"{owner}: {name} is {pair_as!r}; it is a tuple of distinct words out of 'bias', 'keys' and 'values', e.g. ('bias', 'values')."
        )
    if mode not in ("relative", "appended"):
        raise ConfigError(f"{owner}: pair_mode is {mode!r}; allowed are 'relative' and 'appended'.")
    if mode == "appended" and ("keys" in pair_as) != ("values" in pair_as):
        raise ConfigError(
            f"{owner}: {name} is {pair_as!r} with pair_mode 'appended'; an appended key needs its value: name both 'keys' and 'values'."
        )


def _check_sizes(config: object, *names: str, least: int = 1) -> None:
    """Raise ConfigError unless these fields of `config` are integers of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{type(config).__name__}: {name} is {value!r}; it must be an integer of at least {least}.")


@dataclass(frozen=True)
class EvoformerConfig:
    """An Evoformer stack or an extra-MSA stack (AlphaFold 2 supplement, algorithms 6 and 18; defaults are its Evoformer).

    The width of a head is that of its representation divided by the number of heads, as in AlphaFold 2.

    Attributes:
        n_blocks: blocks, each with its own parameters.
        c_m, c_z, c_s: channels of the MSA, pair and single representation; c_s None leaves the single representation out.
        n_head_msa_row, n_head_msa_column: heads of row attention and of column attention.
        n_head_tri_start, n_head_tri_end: heads of triangle attention around the starting and the ending node.
        c_hidden_mul, c_hidden_opm: hidden channels of triangle multiplication and of the outer product mean.
        msa_transition_n, pair_transition_n: how many times wider the hidden layer of a transition is.
        dropout_msa, dropout_pair: dropout rates in training.
        msa_column: plain column attention, or the global one of the extra-MSA stack (algorithm 19).
        opm_first: outer product mean at the start of a block, as in AlphaFold-Multimer, instead of after the MSA transition.
        msa_pair_as, triangle_pair_as: how pair features enter row attention and triangle attention: any mix of "bias", "keys", "values".
            Published systems use ("bias",).
        pair_mode: pair features as keys and values are added to those of the key ("relative"), or are further keys ("appended").
    """

    n_blocks: int = 48
    c_m: int = 256
    c_z: int = 128
    c_s: int | None = 384
    n_head_msa_row: int = 8
    n_head_msa_column: int = 8
    n_head_tri_start: int = 4
    n_head_tri_end: int = 4
    c_hidden_mul: int = 128
    c_hidden_opm: int = 32
    msa_transition_n: int = 4
    pair_transition_n: int = 4
    dropout_msa: float = 0.15
    dropout_pair: float = 0.25
    msa_column: Literal["attention", "global"] = "attention"
    opm_first: bool = False
    msa_pair_as: tuple[PairAs, ...] = ("bias",)
    triangle_pair_as: tuple[PairAs, ...] = ("bias",)
    pair_mode: PairMode = "relative"

    def __post_init__(self) -> None:
        owner = type(self).__name__
        _check_sizes(self, "n_blocks", least=0)
        _check_sizes(self, "c_m", "c_z", "c_hidden_mul", "c_hidden_opm", "msa_transition_n", "pair_transition_n")
        if self.c_s is not None:
            _check_sizes(self, "c_s")
        for heads, width in (
            ("n_head_msa_row", "c_m"), ("n_head_msa_column", "c_m"), ("n_head_tri_start", "c_z"), ("n_head_tri_end", "c_z")
        ):  # fmt: skip
            _check_sizes(self, heads)
            check_heads(owner, width, getattr(self, width), heads, getattr(self, heads))
        for name in ("dropout_msa", "dropout_pair"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ConfigError(f"{owner}: {name} is {getattr(self, name)!r}; it must be at least 0 and below 1.")
        if self.msa_column not in ("attention", "global"):
            raise ConfigError(f"{owner}: msa_column is {self.msa_column!r}; allowed are 'attention' and 'global'.")
        check_pair_as(owner, self.msa_pair_as, self.pair_mode, "msa_pair_as")
        check_pair_as(owner, self.triangle_pair_as, self.pair_mode, "triangle_pair_as")

    @classmethod
    def extra_msa(cls) -> "EvoformerConfig":
        """AlphaFold 2's extra-MSA stack (algorithm 18): 4 blocks of 64 channels, global column attention, no single representation."""
        return cls(n_blocks=4, c_m=64, c_s=None, msa_column="global")


@dataclass(frozen=True)
class TrunkConfig:
    """Features to representations: embedding, extra-MSA stack and Evoformer (defaults are AlphaFold 2 monomer without templates).

    Attributes:
        evoformer: the main stack. extra: the extra-MSA stack in front of it, or None for none.
        c_target_feat, c_msa_feat, c_extra_feat: channels of the input features (supplement, table 1).
        max_relative: residue offsets beyond it share one encoding (algorithm 4).
        recycle_bins, recycle_min, recycle_max: bins of the recycled C-beta distances, in Angstrom (algorithm 32).
    """

    evoformer: EvoformerConfig = EvoformerConfig()
    extra: EvoformerConfig | None = field(default_factory=EvoformerConfig.extra_msa)
    c_target_feat: int = 22
    c_msa_feat: int = 49
    c_extra_feat: int = 25
    max_relative: int = 32
    recycle_bins: int = 15
    recycle_min: float = 3.25
    recycle_max: float = 20.75

    def __post_init__(self) -> None:
        _check_sizes(self, "c_target_feat", "c_msa_feat", "c_extra_feat", "recycle_bins")
        _check_sizes(self, "max_relative", least=0)
        if not 0.0 <= self.recycle_min < self.recycle_max:
            raise ConfigError(
                f"TrunkConfig: recycle_min is {self.recycle_min!r} and recycle_max {self.recycle_max!r}; "
                "they are distances in Angstrom, the first below the second."
            )
        if self.evoformer.c_s is None:
            raise ConfigError("TrunkConfig: evoformer.c_s is None; the trunk returns a single representation, so give its width, e.g. 384.")
        if self.extra is not None and self.extra.c_z != self.evoformer.c_z:
            raise ConfigError(
                f"TrunkConfig: extra.c_z is {self.extra.c_z} and evoformer.c_z {self.evoformer.c_z}; "
                "both stacks update one pair representation, so give them one width."
            )

    def with_blocks(self, n_blocks: int) -> "TrunkConfig":
        """The same trunk with another number of Evoformer blocks."""
        return replace(self, evoformer=replace(self.evoformer, n_blocks=n_blocks))


_AF2 = TrunkConfig()
_TINY = EvoformerConfig(
    n_blocks=2, c_m=32, c_z=16, c_s=24, n_head_msa_row=4, n_head_msa_column=4, n_head_tri_start=2, n_head_tri_end=2,
    c_hidden_mul=16, c_hidden_opm=8,
)  # fmt: skip

PRESETS: dict[str, TrunkConfig] = {
    "af2": _AF2,
    "af2-opm-first": TrunkConfig(
        evoformer=EvoformerConfig(opm_first=True),
        extra=replace(EvoformerConfig.extra_msa(), opm_first=True),
    ),
    "af2-4": TrunkConfig(evoformer=EvoformerConfig(n_blocks=4), extra=replace(EvoformerConfig.extra_msa(), n_blocks=1)),
    "tiny": TrunkConfig(evoformer=_TINY, extra=replace(_TINY, n_blocks=1, c_m=16, c_s=None, msa_column="global")),
}
"""Named trunks. "af2" is AlphaFold 2's; "af2-opm-first" has the order of AlphaFold-Multimer's blocks; "af2-4" is "af2" with 4 + 1 blocks,
for a quick look; "tiny" is for tests."""


def preset(name: str) -> TrunkConfig:
    """The trunk called `name`.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}. For another, build a TrunkConfig.")
    return PRESETS[name]
