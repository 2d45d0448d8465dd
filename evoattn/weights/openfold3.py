"""OpenFold3's parameter names: which tensor of a checkpoint belongs to which parameter of ours.

The bias of the ending node was transposed between its versions, without a sign in the names: a checkpoint has to be loaded as the version
that it was trained with. Its package also has AlphaFold 2's Evoformer, whose blocks are close to OpenFold's, but not the same: "evoformer".
"""

from collections.abc import Collection

from torch import nn

from evoattn.blocks import (
    AttentionPairBias,
    MSAColumnAttention,
    MSARowAttention,
    OuterProductMean,
    PairWeightedAveraging,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.primitives import Transition
from evoattn.stacks import EvoformerBlock, EvoformerStack, MSAModule, MSAModuleBlock, PairformerBlock, PairformerStack
from evoattn.weights import openfold
from evoattn.weights.family import Family, Shapes
from evoattn.weights.protenix import ATTENTION, PAIR, TRIANGLE_MULTIPLICATION
from evoattn.weights.state_dict import StateDictNames, layer_rules
from evoattn.weights.tables import Rule

MHA = {ours: f"mha.{theirs}" for ours, theirs in ATTENTION.items()}
PAIR_STACK = {ours: f"pair_stack.{theirs}" for ours, theirs in PAIR.items()}

NAMES = StateDictNames(
    "OpenFold3",
    {
        TriangleMultiplication: TRIANGLE_MULTIPLICATION,
        TriangleAttention: {"norm": "layer_norm", "pair_bias": "linear_z", **MHA},
        Transition: {"norm": "layer_norm", "gate": "swiglu.linear_a", "up": "swiglu.linear_b", "down": "linear_out"},
        AttentionPairBias: {"norm": "layer_norm_a", "pair_norm": "layer_norm_z", "pair_bias": "linear_z", **MHA},
        OuterProductMean: {"norm": "layer_norm", "left": "linear_1", "right": "linear_2", "out": "linear_out"},
        PairWeightedAveraging: {
            "norm": "layer_norm_m", "pair_norm": "layer_norm_z", "pair_bias": "linear_z", "attn.v": "linear_v", "attn.gate": "linear_g",
            "attn.out": "linear_o",
        },
        PairformerBlock: {**PAIR_STACK, "single_attn": "attn_pair_bias", "single_transition": "single_transition"},
        MSAModuleBlock: {
            "outer_product": "outer_product_mean", "msa_average": "msa_att_row", "msa_transition": "msa_transition", **PAIR_STACK,
        },
        PairformerStack: {"blocks": "blocks.{}"},
        MSAModule: {"blocks": "blocks.{}"},
        MSARowAttention: {"norm": "layer_norm_m", "pair_norm": "layer_norm_z", "pair_bias": "linear_z", **MHA},
        MSAColumnAttention: {"norm": "_msa_att.layer_norm_m", **{ours: f"_msa_att.{theirs}" for ours, theirs in MHA.items()}},
        EvoformerBlock: openfold.BLOCK,
        EvoformerStack: {"blocks": "blocks.{}", "single": "linear"},
    },
)  # fmt: skip

EVOFORMER = StateDictNames(
    NAMES.title,
    {**NAMES.names, Transition: {"norm": "layer_norm", "up": "transition_mlp.layers.0.0", "down": "transition_mlp.linear_out"}},
)


def is_evoformer(available: Collection[str]) -> bool:
    """Told by its transitions, which no other block of the field calls so."""
    return any("transition_mlp." in name for name in available)


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    """The embedding of the MSA stands beside the module, as ``msa_module_embedder``."""
    rules = (EVOFORMER if is_evoformer(available) else NAMES).table(module, scope)
    if isinstance(module, MSAModule) and hasattr(module, "msa_feat"):
        rules += layer_rules(module.msa_feat, "msa_feat", [f"{scope}_embedder.linear_m"])
        rules += layer_rules(module.single_inputs, "single_inputs", [f"{scope}_embedder.linear_s_input"])
    return rules


def recognise(shapes: Shapes) -> list[str]:
    """Both versions: names cannot tell them apart. AlphaFold 2's row attention in OpenFold is ``msa_att_row`` too, with ``mha`` in it."""
    if is_evoformer(shapes):
        return ["evoformer"]
    ours = ("attn_pair_bias.linear_z.", "msa_att_row.linear_v.")
    return ["bias_ki", "bias_ik"] if any(part in name for name in shapes for part in ours) else []


FAMILY = Family(
    name="openfold3",
    title="OpenFold3",
    versions={"bias_ki": "openfold3", "bias_ik": "openfold3_transposed", "evoformer": "openfold3_evoformer"},
    table=table,
    recognise=recognise,
    scopes={PairformerStack: "pairformer_stack", MSAModule: "msa_module"},
    out_of_scope={
        "input_embedder.": "atom encoder",
        "template_embedder.": "template embedding",
        "diffusion_module.": "diffusion module",
        "aux_heads.": "output heads",
        "pairformer_stack.": "Pairformer",
        "msa_module": "MSA module",
    },
    source="https://github.com/aqlaboratory/openfold-3 (its command line downloads the checkpoint)",
    licence="Apache License 2.0: any use, with the notice of the licence",
    line='load_weights(PairformerStack(PAIRFORMERS["openfold3_transposed"]), "of3.pt", version="bias_ik")',
)
