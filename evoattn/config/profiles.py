"""Numerics of the published systems: where they disagree under the same names and shapes."""

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from evoattn.errors import ConfigError

DropoutAxes = Literal["rows", "columns", "rows and channels", "columns and channels"]


@dataclass(frozen=True)
class Profile:
    """What published systems do differently with the same names and shapes: a switch set wrong would load and give other numbers.

    Defaults are AlphaFold 2's. Blocks take the switches as plain arguments; a config of a stack holds a profile. When the parameters of a
    family are loaded, its own profile is compared with that: in the switches by which the modules compute. Those of dropout, which only
    training has, and of features are no matter of parameters. :data:`PROFILES` has the published ones.

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
        msa_attn_bias: biases of gate and output in MSA row and column attention.
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
        residues: letters of an alignment to classes: a table of :mod:`evoattn.io.residue_tables`, with its order, gap and mask.
        deletions: feature of d residues that are inserted left of a column: "2/pi atan(d/3)", "pi/2 atan(d/3)" (Boltz) or "none".
        deletion_mean: over the rows, "of counts", "squashed" as the feature is (AlphaFold 2, RosettaFold 3), or "of values" (Boltz).
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
    msa_attn_bias: bool = True
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
    residues: Literal["alphafold2", "alphafold3", "protenix", "openfold3", "rosettafold3", "boltz", "esm"] = "alphafold2"
    deletions: Literal["2/pi atan(d/3)", "pi/2 atan(d/3)", "none"] = "2/pi atan(d/3)"
    deletion_mean: Literal["squashed", "of counts", "of values"] = "squashed"

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
    opm_proj_bias=False, transition="swiglu", triangle_attn_bias=False, triangle_mul_bias=False, residues="alphafold3",
    deletion_mean="of counts",
)  # fmt: skip
_OPENFOLD3 = replace(
    _AF3, name="openfold3", last_msa_update=False, ending_bias="ki", starting_mask="ik", mask_transition="all", pwa_mask="pair",
    residues="openfold3",
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
        Profile(
            "openfold3_evoformer", ending_bias="ik", opm_proj_bias=False, msa_attn_bias=False, mask_transition="all",
            triangle_attn_bias=False, triangle_mul_bias=False,
        ),
        replace(
            _AF3, name="boltz", opm_first=False, ending_bias="ki", starting_mask="ik", opm_norm="sum", pwa_mask="pair",
            dropout_row="columns and channels", dropout_column="rows and channels", residues="boltz", deletions="pi/2 atan(d/3)",
            deletion_mean="of values",
        ),
        replace(_AF3, name="protenix", last_msa_update=False, ending_bias="ki", starting_mask="ik", residues="protenix"),
        replace(
            _AF3, name="rosettafold3", share_msa_weights=True, starting_mask="ik", opm_norm="sum", opm_proj_bias=True,
            triangle_attn_bias=True, triangle_mul_scale="mean", single_q_bias=False, dropout_row="columns", dropout_column="rows",
            residues="rosettafold3", deletion_mean="squashed",
        ),
        Profile(
            "esmfold", msa_op="none", single_q_bias=False, single_bias=True, dropout_row="columns", dropout_column="rows",
            dropout_mul_in="column", residues="esm", deletions="none",
        ),
        Profile("msa_transformer", msa_op="tied_row_column", transition="gelu", residues="esm", deletions="none"),
    )
}  # fmt: skip
"""The profiles of published systems. OpenFold3 transposed the bias of the ending node between its versions: "openfold3" is the form before
(ki), "openfold3_transposed" that of 0.5.0 (ik), and "openfold3_evoformer" that of the Evoformer of AlphaFold 2's kind in its package."""


class WithProfile:
    """A config that holds a profile, of which its modules heed some switches."""

    SWITCHES: ClassVar[tuple[str, ...]]
    """Those that decide what the modules compute from given inputs, training aside."""

    def numerics(self, profile: Profile) -> dict[str, Any]:
        """What modules of this config make of `profile`."""
        return {name: getattr(profile, name) for name in self.SWITCHES}

    def differences(self, a: Profile, b: Profile) -> list[str]:
        """The switches by which modules of this config would compute otherwise with profile `a` than with `b`."""
        of_b = self.numerics(b)
        return [name for name, value in self.numerics(a).items() if value != of_b[name]]


def profile(name: str) -> Profile:
    """The published profile called `name`.

    Raises:
        ConfigError: there is none; the message lists those there are.
    """
    if name not in PROFILES:
        raise ConfigError(f"there is no profile {name!r}; there are {', '.join(PROFILES)}.")
    return PROFILES[name]
