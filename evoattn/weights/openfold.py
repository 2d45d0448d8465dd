"""OpenFold's parameter names: which tensor of a state dict belongs to which parameter of ours.

Checkpoints of release 1 have other names for some modules (``core.``); those with fused projections hold both operands of a triangle
multiplication in one tensor. What a file has decides.
"""

from collections.abc import Collection

from torch import nn

from evoattn.blocks import (
    MSAColumnAttention,
    MSAGlobalColumnAttention,
    MSARowAttention,
    OuterProductMean,
    TemplatePointwiseAttention,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.model import EvoformerTrunk, TemplateRows
from evoattn.primitives import Transition
from evoattn.stacks import (
    AveragedTemplates,
    EvoformerBlock,
    EvoformerStack,
    ExtraMSAStack,
    PointwiseTemplates,
    TemplatePairBlock,
    TemplatePairStack,
)
from evoattn.weights.family import Family, Shapes
from evoattn.weights.protenix import ATTENTION, PAIR, TRIANGLE_MULTIPLICATION
from evoattn.weights.sizes import openfold_trunk
from evoattn.weights.state_dict import StateDictNames, Theirs
from evoattn.weights.tables import Rule

BLOCK = {
    "msa_row": "msa_att_row", "msa_column": "msa_att_col", "msa_transition": "msa_transition", "outer_product": "outer_product_mean",
    **{ours: f"pair_stack.{theirs}" for ours, theirs in PAIR.items()},
}  # fmt: skip
RELEASE_1 = {"msa_transition", "outer_product", *PAIR}
"""What of a block is below ``core`` in checkpoints of release 1, all side by side."""


TEMPLATE_PAIR = {  # submodule of AveragedTemplates -> layer
    "distances": "dgram_linear", "second": "aatype_linear_1", "first": "aatype_linear_2", "query_norm": "query_embedding_layer_norm",
    "query": "query_embedding_linear", "beta_known": "pseudo_beta_mask_linear", "x": "x_linear", "y": "y_linear", "z": "z_linear",
    "known": "backbone_mask_linear",
}  # fmt: skip
STACK = {"stack": "template_pair_stack", "norm": "template_pair_stack.layer_norm"}


def attention(scope: str) -> dict[str, Theirs]:
    return {ours: f"{scope}.{theirs}" for ours, theirs in ATTENTION.items()}


def names(*, fused: bool, release_1: bool, multimer: bool) -> StateDictNames:
    multiplication: dict[str, Theirs] = {**TRIANGLE_MULTIPLICATION, **({"proj": "linear_ab_p", "gate": "linear_ab_g"} if fused else {})}
    block = {ours: f"core.{theirs.split('.')[-1]}" if release_1 and ours in RELEASE_1 else theirs for ours, theirs in BLOCK.items()}
    templates = "" if release_1 else "template_embedder"
    rows = "template_angle_embedder" if release_1 else "template_single_embedder"
    row_layers = ("template_single_embedder", "template_projector") if multimer else ("linear_1", "linear_2")
    return StateDictNames(
        "OpenFold",
        {
            MSARowAttention: {"norm": "layer_norm_m", "pair_norm": "layer_norm_z", "pair_bias": "linear_z", **attention("mha")},
            MSAColumnAttention: {"norm": "_msa_att.layer_norm_m", **attention("_msa_att.mha")},
            MSAGlobalColumnAttention: {"norm": "layer_norm_m", **attention("global_attention")},
            Transition: {"norm": "layer_norm", "up": "linear_1", "down": "linear_2"},
            OuterProductMean: {"norm": "layer_norm", "left": "linear_1", "right": "linear_2", "out": "linear_out"},
            TriangleMultiplication: multiplication,
            TriangleAttention: {"norm": "layer_norm", "pair_bias": "linear", **attention("mha")},
            EvoformerBlock: block,
            EvoformerStack: {"blocks": "blocks.{}", "single": "linear"},
            ExtraMSAStack: {"blocks": "blocks.{}"},
            TemplatePointwiseAttention: attention("mha"),
            TemplatePairBlock: PAIR,
            TemplatePairStack: {"blocks": "blocks.{}"},
            PointwiseTemplates: {"features": "template_pair_embedder.linear", **STACK, "attention": "template_pointwise_att"},
            AveragedTemplates: {
                **{ours: f"template_pair_embedder.{theirs}" for ours, theirs in TEMPLATE_PAIR.items()}, **STACK, "out": "linear_t",
            },
            TemplateRows: {"embedding": f"{rows}.{row_layers[0]}", "projection": f"{rows}.{row_layers[1]}"},
            MaskedMSAHead: {"logits": "linear"},
            DistogramHead: {"half_logits": "linear"},
            EvoformerTrunk: {
                "target_msa": "input_embedder.linear_tf_m", "msa": "input_embedder.linear_msa_m",
                "target_left": "input_embedder.linear_tf_z_i", "target_right": "input_embedder.linear_tf_z_j",
                "relative_position.linear": "input_embedder.linear_relpos",
                "recycling.msa_norm": "recycling_embedder.layer_norm_m", "recycling.pair_norm": "recycling_embedder.layer_norm_z",
                "recycling.distance": "recycling_embedder.linear",
                "extra_msa": "extra_msa_embedder.linear", "extra_stack": "extra_msa_stack", "evoformer": "evoformer",
                "templates": templates, "template_rows": templates,
            },
        },
    )  # fmt: skip


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    found = {
        "fused": any("linear_ab_p." in name for name in available),
        "release_1": any(".core." in f".{name}" for name in available),
        "multimer": any("template_projector." in name for name in available),
    }
    return names(**found).table(module, scope)


TRUNK = ("input_embedder.", "recycling_embedder.", "extra_msa_embedder.", "extra_msa_stack.", "evoformer.", "template")
PARTS: dict[type[nn.Module], tuple[str, ...]] = {  # modules whose scope holds more than they have -> what is theirs
    EvoformerTrunk: TRUNK,
    PointwiseTemplates: ("template_pair_", "template_pointwise_"),
    AveragedTemplates: ("template_pair_", "linear_t."),
    TemplateRows: ("template_single_embedder.", "template_angle_embedder."),
}


def claims(module: nn.Module, scope: str) -> tuple[str, ...]:
    parts = next((PARTS[kind] for kind in type(module).__mro__ if kind in PARTS), ("",))
    return tuple(f"{scope}.{part}" if scope else part for part in parts)


def recognise(shapes: Shapes) -> list[str]:
    """Multimer is told by its embedding: of templates, or the 73 channels of its relative positions. A stack says nothing of it."""
    if not any("msa_att_row.mha.linear_q." in name for name in shapes) or any("tri_att_start.linear_z." in name for name in shapes):
        return []  # or OpenFold3's
    width = next((shape[-1] for name, shape in shapes.items() if name.endswith("input_embedder.linear_relpos.weight")), None)
    if width == 73 or any("template_pair_embedder.dgram_linear." in name for name in shapes):
        return ["multimer"]
    return ["monomer", "multimer"] if width is None else ["monomer"]


def build(shapes: Shapes, version: str) -> nn.Module:
    """The trunk that a file fills."""
    return openfold_trunk(FAMILY, shapes, version)


FAMILY = Family(
    name="openfold",
    title="OpenFold",
    versions={"monomer": "openfold", "multimer": "openfold_multimer"},
    table=table,
    recognise=recognise,
    claims=claims,
    build=build,
    scopes={
        EvoformerStack: "evoformer",
        ExtraMSAStack: "extra_msa_stack",
        PointwiseTemplates: "template_embedder",
        AveragedTemplates: "template_embedder",
        TemplateRows: "template_embedder",
        TemplatePairStack: "template_embedder.template_pair_stack",
        MaskedMSAHead: "aux_heads.masked_msa",
        DistogramHead: "aux_heads.distogram",
    },
    out_of_scope={
        "structure_module.": "structure module",
        "aux_heads.": "output heads",
        "template": "template embedding",
        "input_embedder.": "embedding",
        "recycling_embedder.": "embedding",
        "extra_msa_embedder.": "embedding",
        "extra_msa_stack.": "extra-MSA stack",
        "evoformer.": "Evoformer",
    },
    source="https://huggingface.co/nz/OpenFold or s3://openfold/openfold_params: finetuning_*.pt, initial_training.pt",
    licence="CC BY 4.0: share and adapt, commercially too, with credit to the OpenFold team",
    line='load_weights(EvoformerTrunk(preset("openfold")), "finetuning_ptm_2.pt")',
)
