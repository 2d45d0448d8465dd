"""Architecture: what decides the parameters of a model. Frozen, and part of a checkpoint; how a model runs is :mod:`evoattn.execution`."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args, get_type_hints

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


def check_sizes(config: object, *names: str, least: int = 1) -> None:
    """Raise ConfigError unless these fields of `config` are integers of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{type(config).__name__}: {name} is {value!r}; it must be an integer of at least {least}.")


def check_bins(config: object, least: str, most: str) -> None:
    """Raise ConfigError unless these fields of `config` are the borders of bins of distances."""
    low, high = getattr(config, least), getattr(config, most)
    if not 0.0 <= low < high:
        raise ConfigError(
            f"{type(config).__name__}: {least} is {low!r} and {most} {high!r}; they are distances in Angstrom, the first below the second."
        )


DropoutAxes = Literal["rows", "columns", "rows and channels", "columns and channels"]


@dataclass(frozen=True)
class Profile:
    """What published systems do differently with the same names and shapes: a switch set wrong would load and give other numbers.

    Defaults are AlphaFold 2's. Blocks take the switches as plain arguments; a config of a stack holds a profile, and the profile of a
    family is compared with it when its parameters are loaded. :data:`PROFILES` has the published ones.

    Attributes:
        name: of the published system.
        msa_op: how the MSA representation is updated from the pair representation: row and column attention (AlphaFold 2), pair-weighted
            averaging (AlphaFold 3, algorithm 10), rows tied and column attention (MSA Transformer), or not at all ("none").
        opm_first: outer product mean at the start of a block (AlphaFold-Multimer, AlphaFold 3) instead of after the MSA transition.
        template_mul_first: in the template pair stack, triangle multiplication before triangle attention (AlphaFold-Multimer) instead of
            after it.
        last_msa_update: whether the last block of the MSA module has parameters for an update of m, which nobody reads if `opm_first`.
        share_msa_weights: all blocks of the MSA module have the same parameters (RosettaFold 3).
        ending_bias: the third edge in triangle attention around the ending node, for query edge ij and key edge kj: "ki" (AlphaFold 2,
            supplement, algorithm 14), "ik" (AlphaFold 3's code) or "jk" (RoseTTAFold All-Atom).
        starting_mask: the entry of the pair mask that hides key edge ik of query edge ij around the starting node: "ik", or "ki"
            (AlphaFold 3's code). The same for a symmetric mask.
        opm_norm: of the outer product mean, with o the sum over the n sequences that have both residues: "sum and bias" is
            (W o + b) / (n + 1e-3), "sum" is W o / max(n, 1) + b (Boltz, RosettaFold 3).
        opm_proj_bias: biases in the two projections of the outer product mean.
        transition: "relu" or "gelu" (MSA Transformer), with biases, or "swiglu", without.
        mask_transition: the update of a transition is 0 at masked positions: nowhere ("none"), in all of them (OpenFold3), or in the MSA
            transition of the extra-MSA stack (OpenFold).
        triangle_attn_bias: biases of gate and output in triangle attention. triangle_mul_bias: of all layers of triangle multiplication.
        triangle_mul_scale: the triangle product is a sum over the third residue ("sum") or a mean ("mean", RosettaFold 3); it is
            normalised afterwards, so that only the eps of the norm tells them apart.
        single_q_bias: a bias of the queries in attention with pair bias. single_bias: of its gate and output.
        pwa_mask: keys that pair-weighted averaging hides: residues that no sequence has ("residues"), or by the pair mask ("pair").
        dropout_row, dropout_column: over which axes the two kinds of dropout share their mask.
        dropout_mul_in: which of the two triangle multiplication of incoming edges takes.
        residues: letters of an alignment to classes: AlphaFold's table, Boltz's (B, Z, U, J, O and X all unknown) or ESM's tokens.
        deletions: feature of d deleted residues: "2/pi atan(d/3)", "pi/2 atan(d/3)" (Boltz) or "none".
    """

    name: str = "alphafold2"
    msa_op: Literal["row_column", "pair_weighted", "tied_row_column", "none"] = "row_column"
    opm_first: bool = False
    template_mul_first: bool = False
    last_msa_update: bool = True
    share_msa_weights: bool = False
    ending_bias: Literal["ki", "ik", "jk"] = "ki"
    starting_mask: Literal["ik", "ki"] = "ik"
    opm_norm: Literal["sum and bias", "sum"] = "sum and bias"
    opm_proj_bias: bool = True
    transition: Literal["relu", "gelu", "swiglu"] = "relu"
    mask_transition: Literal["none", "all", "extra_msa"] = "none"
    triangle_attn_bias: bool = True
    triangle_mul_bias: bool = True
    triangle_mul_scale: Literal["sum", "mean"] = "sum"
    single_q_bias: bool = True
    single_bias: bool = False
    pwa_mask: Literal["residues", "pair"] = "residues"
    dropout_row: DropoutAxes = "rows"
    dropout_column: DropoutAxes = "columns"
    dropout_mul_in: Literal["row", "column"] = "row"
    residues: Literal["alphafold", "boltz", "esm"] = "alphafold"
    deletions: Literal["2/pi atan(d/3)", "pi/2 atan(d/3)", "none"] = "2/pi atan(d/3)"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value, allowed = getattr(self, name), (True, False) if kind is bool else get_args(kind)
            if allowed and (value not in allowed or isinstance(value, bool) != (kind is bool)):
                raise ConfigError(f"Profile: {name} is {value!r}; allowed are {', '.join(map(repr, allowed))}.")

    def differences(self, other: "Profile") -> list[str]:
        """The switches, by name, in which the two differ; their own names do not count."""
        return [f.name for f in fields(self) if f.name != "name" and getattr(self, f.name) != getattr(other, f.name)]


_AF3 = Profile(
    "alphafold3", msa_op="pair_weighted", opm_first=True, template_mul_first=True, ending_bias="ik", starting_mask="ki",
    opm_proj_bias=False, transition="swiglu", triangle_attn_bias=False, triangle_mul_bias=False,
)  # fmt: skip
_OPENFOLD3 = replace(
    _AF3, name="openfold3", last_msa_update=False, ending_bias="ki", starting_mask="ik", mask_transition="all", pwa_mask="pair",
)  # fmt: skip

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(),
        Profile("alphafold2_multimer", opm_first=True, template_mul_first=True),
        Profile("openfold", mask_transition="extra_msa"),
        Profile("openfold_multimer", opm_first=True, template_mul_first=True, mask_transition="extra_msa"),
        _AF3,
        _OPENFOLD3,
        replace(_OPENFOLD3, name="openfold3_transposed", ending_bias="ik"),
        replace(
            _AF3, name="boltz", opm_first=False, ending_bias="ki", starting_mask="ik", opm_norm="sum", pwa_mask="pair",
            dropout_row="columns and channels", dropout_column="rows and channels", residues="boltz", deletions="pi/2 atan(d/3)",
        ),
        replace(_AF3, name="protenix", last_msa_update=False, ending_bias="ki", starting_mask="ik"),
        replace(
            _AF3, name="rosettafold3", share_msa_weights=True, starting_mask="ik", opm_norm="sum", opm_proj_bias=True,
            triangle_attn_bias=True, triangle_mul_scale="mean", single_q_bias=False, dropout_row="columns", dropout_column="rows",
        ),
        Profile(
            "esmfold", msa_op="none", single_q_bias=False, single_bias=True, dropout_row="columns", dropout_column="rows",
            dropout_mul_in="column", residues="esm", deletions="none",
        ),
        Profile("msa_transformer", msa_op="tied_row_column", transition="gelu", residues="esm", deletions="none"),
    )
}  # fmt: skip
"""The profiles of published systems. OpenFold3 transposed the bias of the ending node between its versions: "openfold3" is the form before
(ki), "openfold3_transposed" that of 0.5.0 (ik)."""


def profile(name: str) -> Profile:
    """The published profile called `name`.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in PROFILES:
        raise ConfigError(f"there is no profile {name!r}; there are {', '.join(PROFILES)}.")
    return PROFILES[name]


@dataclass(frozen=True, kw_only=True)
class PairConfig:
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

    def __post_init__(self) -> None:
        check_sizes(self, "n_blocks", least=0)
        check_sizes(self, "c_z", "c_hidden_mul", "pair_transition_n")
        self.check_attention("c_z", "c_head_tri", "n_head_tri_start", "n_head_tri_end")
        self.check_rate("dropout_pair")
        check_pair_as(type(self).__name__, self.triangle_pair_as, self.pair_mode, "triangle_pair_as")
        if not isinstance(self.profile, Profile):
            raise ConfigError(f"{type(self).__name__}: profile is {self.profile!r}; give a Profile, e.g. profile('alphafold2').")

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "c_s", "single_transition_n")
        check_sizes(self, "max_relative", least=0)
        check_sizes(self, "recycle_bins", least=2)
        self.check_attention("c_s", "c_head_single", "n_head_single")
        if self.c_z % 2:
            raise ConfigError(f"ESMFoldConfig: c_z is {self.c_z}; it must be even: one half is of products, one of differences.")
        if not 0.0 <= self.recycle_min < self.recycle_max:
            raise ConfigError(
                f"ESMFoldConfig: recycle_min is {self.recycle_min!r} and recycle_max {self.recycle_max!r}; "
                "they are distances in Angstrom, the first below the second."
            )


@dataclass(frozen=True, kw_only=True)
class MSATransformerConfig:
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


@dataclass(frozen=True, kw_only=True)
class TemplateConfig(PairConfig):
    """How templates are embedded (AlphaFold 2 supplement, algorithm 2, lines 7 to 13; defaults are its monomer's).

    Attributes (besides those of :class:`PairConfig`, which are the template pair stack's: algorithm 16):
        form: "pointwise", the monomer's: 88 features in one layer, and attention over the templates (algorithm 17). "average",
            AlphaFold-Multimer's: nine layers, one of which sees the pair representation, added up, and the mean over the templates.
        n_head_pointwise, c_head_pointwise: heads of the attention over the templates and width of each.
        torsions: torsion angles of the templates are further rows of the MSA representation.
        bins, bin_min, bin_max: bins of the C-beta distances, in Angstrom.
    """

    n_blocks: int = 2
    c_z: int = 64
    c_hidden_mul: int = 64
    pair_transition_n: int = 2
    form: Literal["pointwise", "average"] = "pointwise"
    n_head_pointwise: int = 4
    c_head_pointwise: int = 16
    torsions: bool = True
    bins: int = 39
    bin_min: float = 3.25
    bin_max: float = 50.75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "n_head_pointwise", "c_head_pointwise", "bins")
        if self.form not in ("pointwise", "average"):
            raise ConfigError(f"TemplateConfig: form is {self.form!r}; allowed are 'pointwise' and 'average'.")
        check_bins(self, "bin_min", "bin_max")

    @classmethod
    def multimer(cls) -> "TemplateConfig":
        """AlphaFold-Multimer's."""
        return cls(form="average", profile=PROFILES["alphafold2_multimer"])

    @property
    def c_torsion_feat(self) -> int:
        """Features of a residue in a template's row: its type (22), and 7 torsion angles with their alternatives, or 4 side chain ones."""
        return 57 if self.form == "pointwise" else 34


@dataclass(frozen=True)
class TrunkConfig:
    """Features to representations: embedding, extra-MSA stack and Evoformer (defaults are AlphaFold 2 monomer without templates).

    Attributes:
        evoformer: the main stack. extra: the extra-MSA stack in front of it, or None for none. templates: their embedding, or None.
        c_target_feat, c_msa_feat, c_extra_feat: channels of the input features (supplement, table 1).
        max_relative: residue offsets beyond it share one encoding (algorithm 4).
        max_chain: None, or as AlphaFold-Multimer: residues of different chains share one, and copies of a chain are told apart by the
            difference of their numbers, up to this.
        recycle_bins, recycle_min, recycle_max: bins of the recycled C-beta distances, in Angstrom (algorithm 32).
    """

    evoformer: EvoformerConfig = EvoformerConfig()
    extra: EvoformerConfig | None = field(default_factory=EvoformerConfig.extra_msa)
    c_target_feat: int = 22
    c_msa_feat: int = 49
    c_extra_feat: int = 25
    max_relative: int = 32
    max_chain: int | None = None
    templates: TemplateConfig | None = None
    recycle_bins: int = 15
    recycle_min: float = 3.25
    recycle_max: float = 20.75

    def __post_init__(self) -> None:
        check_sizes(self, "c_target_feat", "c_msa_feat", "c_extra_feat", "recycle_bins")
        check_sizes(self, *(["max_relative"] if self.max_chain is None else ["max_relative", "max_chain"]), least=0)
        check_bins(self, "recycle_min", "recycle_max")
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

_MULTIMER = PROFILES["alphafold2_multimer"]


def _trunk(numerics: Profile, templates: TemplateConfig | None, **settings: Any) -> TrunkConfig:
    """AlphaFold 2's sizes with these numerics in every stack."""
    evoformer, extra = EvoformerConfig(profile=numerics), replace(EvoformerConfig.extra_msa(), profile=numerics)
    return TrunkConfig(
        evoformer=evoformer, extra=extra, templates=None if templates is None else replace(templates, profile=numerics), **settings
    )


_AF2_TEMPLATES = replace(_AF2, templates=TemplateConfig())
_AF2_MULTIMER = _trunk(_MULTIMER, TemplateConfig.multimer(), c_target_feat=21, max_chain=2)

PRESETS: dict[str, TrunkConfig] = {
    "af2": _AF2,
    **{f"af2_model_{model}": _AF2_TEMPLATES if model <= 2 else _AF2 for model in range(1, 6)},
    **{f"af2_multimer_v{version}": _AF2_MULTIMER for version in (1, 2, 3)},
    "openfold": _trunk(PROFILES["openfold"], TemplateConfig()),
    "openfold_no_templates": _trunk(PROFILES["openfold"], None),
    "openfold_multimer": _trunk(PROFILES["openfold_multimer"], TemplateConfig.multimer(), c_target_feat=21, max_chain=2),
    "af2-opm-first": _trunk(_MULTIMER, None),
    "af2-4": TrunkConfig(evoformer=EvoformerConfig(n_blocks=4), extra=replace(EvoformerConfig.extra_msa(), n_blocks=1)),
    "tiny": TrunkConfig(evoformer=_TINY, extra=replace(_TINY, n_blocks=1, c_m=16, c_s=None, msa_column="global")),
}
"""Named trunks. "af2_model_1" to "af2_model_5" are AlphaFold 2's monomer, with pTM or without; models 1 and 2 take templates, and "af2" is
that of the others. "af2_multimer_v1" to "_v3" have one architecture, but other files. "openfold" takes templates, "openfold_no_templates" is
its models 3 to 5. "af2-opm-first" is the monomer with the order of AlphaFold-Multimer's blocks; "af2-4" is "af2" with 4 + 1 blocks, for a
quick look; "tiny" is for tests."""


def preset(name: str) -> TrunkConfig:
    """The trunk called `name`.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}. For another, build a TrunkConfig.")
    return PRESETS[name]
