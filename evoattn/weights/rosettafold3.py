"""RosettaFold 3's parameter names: which tensor of a checkpoint belongs to which parameter of ours."""

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
from evoattn.weights.state_dict import StateDictNames

NAMES = StateDictNames(
    "RosettaFold 3",
    {
        TriangleMultiplication: {
            "norm_in": "norm_in", "norm_out": "norm_out", "proj": "p_in", "gate": "g_in", "out": "p_out", "out_gate": "g_out",
        },
        TriangleAttention: {
            "norm": "norm", "pair_bias": "to_b", "attn.q": "to_q", "attn.k": "to_k", "attn.v": "to_v", "attn.gate": "to_g",
            "attn.out": "to_out",
        },
        Transition: {"norm": "layer_norm_1", "gate": "linear_1", "up": "linear_2", "down": "linear_3"},
        AttentionPairBias: {
            "norm": "ln_1", "pair_norm": "ln_0", "pair_bias": "to_b", "attn.q": "to_q", "attn.k": "to_k", "attn.v": "to_v",
            "attn.gate": "to_g.0", "attn.out": "to_a",
        },
        OuterProductMean: {"norm": "norm", "left": "proj_left", "right": "proj_right", "out": "proj_out"},
        PairWeightedAveraging: {
            "norm": "norm_msa", "pair_norm": "norm_pair", "pair_bias": "to_bias", "attn.v": "to_v", "attn.gate": "to_gate",
            "attn.out": "to_out",
        },
        PairformerBlock: {
            "tri_mul_out": "tri_mul_outgoing", "tri_mul_in": "tri_mul_incoming", "tri_attn_start": "tri_attn_start",
            "tri_attn_end": "tri_attn_end", "pair_transition": "z_transition", "single_attn": "attention_pair_bias",
            "single_transition": "s_transition",
        },
        MSAModuleBlock: {
            "outer_product": "outer_product", "msa_average": "msa_pair_weighted_averaging", "msa_transition": "msa_transition",
            "tri_mul_out": "tri_mult_outgoing", "tri_mul_in": "tri_mult_incoming", "tri_attn_start": "tri_attn_start",
            "tri_attn_end": "tri_attn_end", "pair_transition": "pair_transition",
        },
        PairformerStack: {"blocks": "{}"},
        MSAModule: {  # its one block, gone through several times, has the scope of the module
            "blocks": "", "msa_feat": "msa_subsampler.emb_msa", "single_inputs": "msa_subsampler.emb_S_inputs",
        },
    },
)  # fmt: skip


def recognise(shapes: Shapes) -> list[str]:
    return ["rosettafold3"] if any("tri_mul_outgoing." in name or "tri_mult_outgoing." in name for name in shapes) else []


FAMILY = Family(
    name="rosettafold3",
    title="RosettaFold 3",
    versions={"rosettafold3": "rosettafold3"},
    table=NAMES.table,
    recognise=recognise,
    scopes={PairformerStack: "recycler.pairformer_stack", MSAModule: "recycler.msa_module"},
    out_of_scope={
        "feature_initializer.": "atom encoder",
        "recycler.template_embedder.": "template embedding",
        "diffusion_module.": "diffusion module",
        "confidence_head.": "confidence head",
        "distogram_head.": "distogram head",
        "recycler.": "the rest of the trunk",
    },
    source="https://github.com/RosettaCommons/foundry (its command line downloads the checkpoint)",
    licence="BSD 3-Clause: any use, with the notice of the licence",
    line='load_weights(PairformerStack(PAIRFORMERS["rosettafold3"]), "rf3_latest.ckpt")',
)
