"""AlphaFold 3's parameter names: which array of its parameter file belongs to which parameter of ours.

Names are ``<scope>//<array>``, as :mod:`evoattn.weights.af3_records` reads them. Blocks of a stack share their names and have a leading
layer axis. Matrices are [in, out], but in triangle attention those of queries, keys and gate are transposed; attention keeps the head axis.
The two projections of a triangle multiplication, and their gates, alternate channel by channel in one array.
"""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from evoattn.blocks import (
    AttentionPairBias,
    OuterProductMean,
    PairWeightedAveraging,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.errors import WeightsError
from evoattn.primitives import Transition
from evoattn.stacks import MSAModule, MSAModuleBlock, PairformerBlock, PairformerStack
from evoattn.weights.alphafold2 import norm
from evoattn.weights.family import Family, Shapes
from evoattn.weights.tables import MATRIX, TORCH_MATRIX, VECTOR, Layout, Rule, under

TRUNK = "diffuser/evoformer"
PAIR_SCOPES = {  # submodule of every block -> scope inside a block
    "tri_mul_out": "triangle_multiplication_outgoing",
    "tri_mul_in": "triangle_multiplication_incoming",
    "tri_attn_start": "pair_attention1",
    "tri_attn_end": "pair_attention2",
    "pair_transition": "pair_transition",
}
MSA_SCOPES = {
    "outer_product": "outer_product_mean",
    "msa_average": "msa_attention1",
    "msa_transition": "msa_transition",
    **PAIR_SCOPES,
}
SINGLE_SCOPES = {**PAIR_SCOPES, "single_attn": "", "single_transition": "single_transition"}

ALTERNATING = Layout("i (c s) -> (s c) i", s=2)
"""Channels 0, 2, 4, ... are the first operand, 1, 3, 5, ... the second."""


def matrix(name: str, scope: str, layout: Layout = MATRIX, **settings: Any) -> Rule:
    return Rule(f"{name}.weight", (f"{scope}//weights",), layout, **settings)


def triangle_multiplication(module: TriangleMultiplication, scope: str, available: Collection[str]) -> list[Rule]:
    """As in AlphaFold 2 the first operand carries j for incoming edges, o_ij = sum_k first_kj second_ki: it is our b."""
    swap = module.direction == "incoming"
    projections = [matrix(name, f"{scope}/{theirs}", ALTERNATING, swap=swap) for name, theirs in (("proj", "projection"), ("gate", "gate"))]
    norms = [*norm("norm_in", f"{scope}/left_norm_input"), *norm("norm_out", f"{scope}/center_norm")]
    return [*projections, *norms, matrix("out", f"{scope}/output_projection"), matrix("out_gate", f"{scope}/gating_linear")]


def triangle_attention(module: TriangleAttention, scope: str, available: Collection[str]) -> list[Rule]:
    turned = Layout("h d i -> (h d) i", h=module.attn.heads)
    return [
        *norm("norm", f"{scope}/act_norm"),
        matrix("pair_bias", f"{scope}/pair_bias_projection"),
        matrix("attn.q", f"{scope}/q_projection", turned),
        matrix("attn.k", f"{scope}/k_projection", turned),
        matrix("attn.v", f"{scope}/v_projection", Layout("i h d -> (h d) i", h=module.attn.heads)),
        matrix("attn.gate", f"{scope}/gating_query", TORCH_MATRIX),
        matrix("attn.out", f"{scope}/output_projection"),
    ]


def single_attention(module: AttentionPairBias, scope: str, available: Collection[str]) -> list[Rule]:
    """`scope` is that of the block, since here the names of the layers alone tell what they belong to."""
    into_heads = Layout("i h d -> (h d) i", h=module.attn.heads)
    single = f"{scope}/single_attention"
    return [
        *norm("norm", f"{single}_layer_norm"),
        *norm("pair_norm", f"{scope}/single_pair_logits_norm"),
        matrix("pair_bias", f"{scope}/single_pair_logits_projection"),
        *(matrix(f"attn.{x}", f"{single}_{x}_projection", into_heads) for x in "qkv"),
        Rule("attn.q.bias", (f"{single}_q_projection//bias",), Layout("h d -> (h d)", h=module.attn.heads)),
        matrix("attn.gate", f"{single}_gating_query"),
        matrix("attn.out", f"{single}_transition2"),
    ]


def transition(module: Transition, scope: str, available: Collection[str]) -> list[Rule]:
    """The first half of `transition1` goes through silu."""
    halves = [matrix(name, f"{scope}/transition1", part=(index, 2)) for index, name in enumerate(("gate", "up"))]
    return [*norm("norm", f"{scope}/input_layer_norm"), *halves, matrix("down", f"{scope}/transition2")]


def outer_product(module: OuterProductMean, scope: str, available: Collection[str]) -> list[Rule]:
    pairs = Layout("l r o -> o (l r)", l=module.left.out_features)
    out = [Rule("out.weight", (f"{scope}//output_w",), pairs), Rule("out.bias", (f"{scope}//output_b",), VECTOR)]
    operands = [matrix(side, f"{scope}/{side}_projection") for side in ("left", "right")]
    return [*norm("norm", f"{scope}/layer_norm_input"), *operands, *out]


def pair_weighted_averaging(module: PairWeightedAveraging, scope: str, available: Collection[str]) -> list[Rule]:
    return [
        *norm("norm", f"{scope}/act_norm"),
        *norm("pair_norm", f"{scope}/pair_norm"),
        matrix("pair_bias", f"{scope}/pair_logits"),
        matrix("attn.v", f"{scope}/v_projection", Layout("i h d -> (h d) i", h=module.attn.heads)),
        matrix("attn.gate", f"{scope}/gating_query"),
        matrix("attn.out", f"{scope}/output_projection"),
    ]


def block(module: PairformerBlock | MSAModuleBlock, scope: str, available: Collection[str]) -> list[Rule]:
    scopes = SINGLE_SCOPES if isinstance(module, PairformerBlock) else MSA_SCOPES
    return [
        rule
        for name, child in scopes.items()
        if hasattr(module, name)
        for rule in under(table(getattr(module, name), f"{scope}/{child}" if child else scope, available), name)
    ]


def stack(module: PairformerStack | MSAModule, scope: str, available: Collection[str]) -> list[Rule]:
    """`scope` is that of the blocks, whose arrays have a leading layer axis. The embedding of the MSA is two scopes further out."""
    rules = []
    for index, each in enumerate(module.blocks):
        rules += under(table(each, scope, available), f"blocks.{index}", layer=index)
    if hasattr(module, "msa_feat"):
        outside = scope.rsplit("/", 2)[0]
        rules += [matrix("msa_feat", f"{outside}/msa_activations"), matrix("single_inputs", f"{outside}/extra_msa_target_feat")]
    return rules


TABLES: dict[type[nn.Module], Callable[[Any, str, Collection[str]], list[Rule]]] = {
    TriangleMultiplication: triangle_multiplication,
    TriangleAttention: triangle_attention,
    AttentionPairBias: single_attention,
    Transition: transition,
    OuterProductMean: outer_product,
    PairWeightedAveraging: pair_weighted_averaging,
    PairformerBlock: block,
    MSAModuleBlock: block,
    PairformerStack: stack,
    MSAModule: stack,
}


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    """The rules for every parameter of `module`, whose arrays are below `scope`.

    Raises:
        WeightsError: AlphaFold 3 has no such module.
    """
    for kind in type(module).__mro__:
        if kind in TABLES:
            return TABLES[kind](module, scope, available)
    known = ", ".join(kind.__name__ for kind in TABLES)
    raise WeightsError(f"AlphaFold 3 has no parameters for a {type(module).__name__}; there are tables for {known}.")


def recognise(shapes: Shapes) -> list[str]:
    """AlphaFold 2 has double slashes in its names too, and calls its triangle attentions otherwise."""
    return ["alphafold3"] if any("pair_attention1/" in name and "//" in name for name in shapes) else []


FAMILY = Family(
    name="alphafold3",
    title="AlphaFold 3",
    versions={"alphafold3": "alphafold3"},
    table=table,
    recognise=recognise,
    scopes={
        PairformerStack: f"{TRUNK}/__layer_stack_no_per_layer_1/trunk_pairformer",
        MSAModule: f"{TRUNK}/__layer_stack_no_per_layer/msa_stack",
    },
    claims=lambda module, scope: f"{scope}/",
    out_of_scope={
        "diffuser/evoformer_conditioning": "atom encoder",
        "diffuser/evoformer/template_embedding": "template embedding",
        "diffuser/evoformer/": "embedding and the other stack of the trunk",
        "diffuser/confidence_head": "confidence head",
        "diffuser/distogram_head": "distogram head",
        "diffuser/": "diffusion module",
    },
    source="https://github.com/google-deepmind/alphafold3 (on request, from Google alone): af3.bin.zst",
    licence="AlphaFold 3 Model Parameters Terms of Use: non-commercial; neither the parameters nor what is made of them may be passed on",
    line='load_weights(PairformerStack(PAIRFORMERS["alphafold3"]), "af3.bin.zst")',
    forbids_conversion=True,
)
