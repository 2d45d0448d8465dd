"""Boltz's parameter names, of Boltz-1 and Boltz-2: which tensor of a checkpoint belongs to which parameter of ours."""

from collections.abc import Collection, Mapping

from torch import nn

from evoattn.blocks import (
    AttentionPairBias,
    OuterProductMean,
    PairWeightedAveraging,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.primitives import Transition
from evoattn.stacks import MSAModule, MSAModuleBlock, PairformerBlock, PairformerStack
from evoattn.weights.family import Family, Shapes
from evoattn.weights.state_dict import StateDictNames, Theirs
from evoattn.weights.tables import Rule

PAIR = {"tri_mul_out": "tri_mul_out", "tri_mul_in": "tri_mul_in", "tri_attn_start": "tri_att_start", "tri_attn_end": "tri_att_end"}
MSA = {"outer_product": "outer_product_mean", "msa_average": "pair_weighted_averaging", "msa_transition": "msa_transition"}


def names(single_norm: str, msa_pair: Mapping[str, str]) -> StateDictNames:
    """The two versions differ in where the norm of the single attention is, and in where an MSA layer has its updates of the pair."""
    attention: dict[str, Theirs] = {  # its scope is that of the layer
        "norm": single_norm, "pair_norm": "attention.proj_z.0", "pair_bias": "attention.proj_z.1", "attn.q": "attention.proj_q",
        "attn.k": "attention.proj_k", "attn.v": "attention.proj_v", "attn.gate": "attention.proj_g", "attn.out": "attention.proj_o",
    }  # fmt: skip
    return StateDictNames(
        "Boltz",
        {
            TriangleMultiplication: {
                "norm_in": "norm_in", "norm_out": "norm_out", "proj": "p_in", "gate": "g_in", "out": "p_out", "out_gate": "g_out",
            },
            TriangleAttention: {
                "norm": "layer_norm", "pair_bias": "linear", "attn.q": "mha.linear_q", "attn.k": "mha.linear_k", "attn.v": "mha.linear_v",
                "attn.gate": "mha.linear_g", "attn.out": "mha.linear_o",
            },
            Transition: {"norm": "norm", "gate": "fc1", "up": "fc2", "down": "fc3"},
            AttentionPairBias: attention,
            OuterProductMean: {"norm": "norm", "left": "proj_a", "right": "proj_b", "out": "proj_o"},
            PairWeightedAveraging: {
                "norm": "norm_m", "pair_norm": "norm_z", "pair_bias": "proj_z", "attn.v": "proj_m", "attn.gate": "proj_g",
                "attn.out": "proj_o",
            },
            PairformerBlock: {
                **PAIR, "pair_transition": "transition_z", "single_attn": "", "single_transition": "transition_s",
                "single_post_norm": "s_post_norm",
            },
            MSAModuleBlock: {**MSA, **msa_pair},
            PairformerStack: {"blocks": "layers.{}"},
            MSAModule: {"blocks": "layers.{}", "msa_feat": "msa_proj", "single_inputs": "s_proj"},
        },
    )  # fmt: skip


BOLTZ1 = names("attention.norm_s", {**PAIR, "pair_transition": "z_transition"})
BOLTZ2 = names("pre_norm_s", {name: f"pairformer_layer.{theirs}" for name, theirs in {**PAIR, "pair_transition": "transition_z"}.items()})


def is_boltz2(available: Collection[str]) -> bool:
    return any("pre_norm_s." in name or ".pairformer_layer." in f".{name}" for name in available)


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    return (BOLTZ2 if is_boltz2(available) else BOLTZ1).table(module, scope)


def recognise(shapes: Shapes) -> list[str]:
    if not any("attention.proj_z.1." in name or "pair_weighted_averaging.proj_m." in name for name in shapes):
        return []
    return ["boltz2" if is_boltz2(shapes) else "boltz1"]


FAMILY = Family(
    name="boltz",
    title="Boltz",
    versions={"boltz1": "boltz", "boltz2": "boltz"},
    table=table,
    recognise=recognise,
    scopes={PairformerStack: "pairformer_module", MSAModule: "msa_module"},
    out_of_scope={
        "structure_module.": "diffusion module",
        "diffusion_conditioning.": "diffusion module",
        "confidence_module.": "confidence head",
        "affinity_module": "affinity head",
        "template_module.": "template embedding",
        "input_embedder.": "atom encoder",
        "distogram_module.": "distogram head",
        "pairformer_module.": "Pairformer",
        "msa_module.": "MSA module",
    },
    source="https://huggingface.co/boltz-community: boltz1_conf.ckpt, boltz2_conf.ckpt, boltz2_aff.ckpt",
    licence="MIT: any use, with the notice of the licence",
    line='load_weights(PairformerStack(PAIRFORMERS["boltz2"]), "boltz2_conf.ckpt")',
)
