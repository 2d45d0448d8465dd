"""Configs of whole trunks, and the published ones by name."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from evoattn.config.checks import check_bins, check_sizes
from evoattn.config.profiles import PROFILES, Profile
from evoattn.config.stacks import EvoformerConfig, PairConfig
from evoattn.errors import ConfigError


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

    SWITCHES: ClassVar[tuple[str, ...]] = (*PairConfig.SWITCHES, "template_mul_first")

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

    evoformer: EvoformerConfig = field(default_factory=EvoformerConfig)
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
"""Named trunks. "af2_model_1" to "af2_model_5" are AlphaFold 2's monomer, with pTM or without; models 1 and 2 take templates, and "af2"
is that of the others. "af2_multimer_v1" to "_v3" have one architecture, but other files. "openfold" takes templates,
"openfold_no_templates" is its models 3 to 5. "af2-opm-first" is the monomer with the order of AlphaFold-Multimer's blocks; "af2-4" is
"af2" with 4 + 1 blocks, for a quick look; "tiny" is for tests."""


def preset(name: str) -> TrunkConfig:
    """The trunk called `name`.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(PRESETS)}. For another, build a TrunkConfig.")
    return PRESETS[name]
