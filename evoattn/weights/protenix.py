"""Protenix' parameter names: which tensor of a checkpoint belongs to which parameter of ours."""

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

TRIANGLE_MULTIPLICATION: dict[str, Theirs] = {  # OpenFold's names, which OpenFold3 and ESMFold have too
    "norm_in": "layer_norm_in", "norm_out": "layer_norm_out", "proj": ("linear_a_p", "linear_b_p"), "gate": ("linear_a_g", "linear_b_g"),
    "out": "linear_z", "out_gate": "linear_g",
}  # fmt: skip
ATTENTION = {"attn.q": "linear_q", "attn.k": "linear_k", "attn.v": "linear_v", "attn.gate": "linear_g", "attn.out": "linear_o"}
PAIR = {
    "tri_mul_out": "tri_mul_out", "tri_mul_in": "tri_mul_in", "tri_attn_start": "tri_att_start", "tri_attn_end": "tri_att_end",
    "pair_transition": "pair_transition",
}  # fmt: skip

NAMES = StateDictNames(
    "Protenix",
    {
        TriangleMultiplication: TRIANGLE_MULTIPLICATION,
        TriangleAttention: {
            "norm": "layer_norm", "pair_bias": "linear", **{ours: f"mha.{theirs}" for ours, theirs in ATTENTION.items()},
        },
        Transition: {"norm": "layernorm1", "gate": "linear_no_bias_a", "up": "linear_no_bias_b", "down": "linear_no_bias"},
        AttentionPairBias: {
            "norm": "layernorm_a", "pair_norm": "layernorm_z", "pair_bias": "linear_nobias_z",
            **{ours: f"attention.{theirs}" for ours, theirs in ATTENTION.items()},
        },
        OuterProductMean: {"norm": "layer_norm", "left": "linear_1", "right": "linear_2", "out": "linear_out"},
        PairWeightedAveraging: {
            "norm": "layernorm_m", "pair_norm": "layernorm_z", "pair_bias": "linear_no_bias_z", "attn.v": "linear_no_bias_mv",
            "attn.gate": "linear_no_bias_mg", "attn.out": "linear_no_bias_out",
        },
        PairformerBlock: {**PAIR, "single_attn": "attention_pair_bias", "single_transition": "single_transition"},
        MSAModuleBlock: {
            "outer_product": "outer_product_mean_msa", "msa_average": "msa_stack.msa_pair_weighted_averaging",
            "msa_transition": "msa_stack.transition_m", **{ours: f"pair_stack.{theirs}" for ours, theirs in PAIR.items()},
        },
        PairformerStack: {"blocks": "blocks.{}"},
        MSAModule: {"blocks": "blocks.{}", "msa_feat": "linear_no_bias_m", "single_inputs": "linear_no_bias_s"},
    },
)  # fmt: skip


def recognise(shapes: Shapes) -> list[str]:
    ours = ("attention_pair_bias.linear_nobias_z.", "msa_pair_weighted_averaging.linear_no_bias_mv.")
    return ["protenix"] if any(part in name for name in shapes for part in ours) else []


FAMILY = Family(
    name="protenix",
    title="Protenix",
    versions={"protenix": "protenix"},
    table=NAMES.table,
    recognise=recognise,
    scopes={PairformerStack: "pairformer_stack", MSAModule: "msa_module"},
    out_of_scope={
        "input_embedder.": "atom encoder",
        "template_embedder.": "template embedding",
        "diffusion_module.": "diffusion module",
        "confidence_head.": "confidence head",
        "distogram_head.": "distogram head",
        "pairformer_stack.": "Pairformer",
        "msa_module.": "MSA module",
    },
    source="https://github.com/bytedance/Protenix (its command line downloads the checkpoints): protenix_*.pt",
    licence="Apache License 2.0: any use, with the notice of the licence",
    line='load_weights(PairformerStack(PAIRFORMERS["protenix"]), "protenix_base_default_v1.0.0.pt")',
)
