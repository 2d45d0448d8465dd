"""AlphaFold 2's parameter names: which array of a ``params_model_*.npz`` belongs to which parameter of ours.

Names are ``<scope>//<array>``. Blocks of a stack share their names and have a leading layer axis. Matrices are [in, out]; those of
attention keep the head axis, [in, h, d] and [h, d, out]. Multimer v3 has both projections of a triangle multiplication in one array, and
its gates in another.
"""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from evoattn.blocks import (
    MSAColumnAttention,
    MSAGlobalColumnAttention,
    MSARowAttention,
    MSATransition,
    OuterProductMean,
    PairTransition,
    TemplatePointwiseAttention,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.config import PROFILES, EvoformerConfig, TemplateConfig, TrunkConfig
from evoattn.errors import WeightsError
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.model import EvoformerTrunk, TemplateRows
from evoattn.primitives import GlobalGatedAttention, MultiHeadAttention
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
from evoattn.weights.tables import MATRIX, VECTOR, Layout, Rule, under

ITERATION = "alphafold/alphafold_iteration"
TRUNK = f"{ITERATION}/evoformer"
HEADS = {  # that a trunk by itself does not have; the first two are modules of ours
    "masked_msa_head": "masked MSA", "distogram_head": "distogram", "predicted_lddt_head": "pLDDT",
    "predicted_aligned_error_head": "aligned error", "experimentally_resolved_head": "resolved atoms",
}  # fmt: skip

SCOPES = {  # submodule of EvoformerBlock -> scope inside a block
    "msa_row": "msa_row_attention_with_pair_bias",
    "msa_transition": "msa_transition",
    "outer_product": "outer_product_mean",
    "tri_mul_out": "triangle_multiplication_outgoing",
    "tri_mul_in": "triangle_multiplication_incoming",
    "tri_attn_start": "triangle_attention_starting_node",
    "tri_attn_end": "triangle_attention_ending_node",
    "pair_transition": "pair_transition",
}
PAIR_UPDATES = ("tri_mul_out", "tri_mul_in", "tri_attn_start", "tri_attn_end", "pair_transition")
EMBEDDING = {  # submodule of EvoformerTrunk -> scope of the linear layer; the misspelt one is AlphaFold's
    "target_msa": "preprocess_1d",
    "msa": "preprocess_msa",
    "target_left": "left_single",
    "target_right": "right_single",
    "relative_position.linear": "pair_activiations",
    "recycling.distance": "prev_pos_linear",
}
MULTIMER_RELATIVE = "~_relative_encoding/position_activations"
SINGLE_TEMPLATE = "template_embedding/single_template_embedding"
AVERAGED = {  # submodule of AveragedTemplates -> number of the layer; those of a single number have no input axis
    "distances": 0, "beta_known": 1, "second": 2, "first": 3, "x": 4, "y": 5, "z": 6, "known": 7, "query": 8,
}  # fmt: skip
OF_A_NUMBER = ("beta_known", "x", "y", "z", "known")


def norm(name: str, scope: str) -> list[Rule]:
    return [Rule(f"{name}.weight", (f"{scope}//scale",), VECTOR), Rule(f"{name}.bias", (f"{scope}//offset",), VECTOR)]


def linear(name: str, scope: str, layout: Layout = MATRIX) -> list[Rule]:
    return [Rule(f"{name}.weight", (f"{scope}//weights",), layout), Rule(f"{name}.bias", (f"{scope}//bias",), VECTOR)]


def attention(attn: MultiHeadAttention | GlobalGatedAttention, scope: str) -> list[Rule]:
    """Of the submodule `attn`; global attention has a single key and value head and no head axis for it."""
    into_heads = Layout("i h d -> (h d) i", h=attn.heads)
    keys = MATRIX if isinstance(attn, GlobalGatedAttention) else into_heads
    gate = [
        Rule("attn.gate.weight", (f"{scope}//gating_w",), into_heads),
        Rule("attn.gate.bias", (f"{scope}//gating_b",), Layout("h d -> (h d)", h=attn.heads)),
    ]
    return [
        Rule("attn.q.weight", (f"{scope}//query_w",), into_heads),
        Rule("attn.k.weight", (f"{scope}//key_w",), keys),
        Rule("attn.v.weight", (f"{scope}//value_w",), keys),
        *(gate if attn.gate is not None else []),
        Rule("attn.out.weight", (f"{scope}//output_w",), Layout("h d o -> o (h d)", h=attn.heads)),
        Rule("attn.out.bias", (f"{scope}//output_b",), VECTOR),
    ]


def row_attention(module: MSARowAttention, scope: str, available: Collection[str]) -> list[Rule]:
    bias = [*norm("pair_norm", f"{scope}/feat_2d_norm"), Rule("pair_bias.weight", (f"{scope}//feat_2d_weights",), MATRIX)]
    return [*norm("norm", f"{scope}/query_norm"), *bias, *attention(module.attn, f"{scope}/attention")]


def column_attention(module: MSAColumnAttention | MSAGlobalColumnAttention, scope: str, available: Collection[str]) -> list[Rule]:
    return [*norm("norm", f"{scope}/query_norm"), *attention(module.attn, f"{scope}/attention")]


def transition(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    return [*norm("norm", f"{scope}/input_layer_norm"), *linear("up", f"{scope}/transition1"), *linear("down", f"{scope}/transition2")]


def outer_product(module: OuterProductMean, scope: str, available: Collection[str]) -> list[Rule]:
    """The channel of the left operand is the major one, on their side and on ours."""
    operands = [*linear("left", f"{scope}/left_projection"), *linear("right", f"{scope}/right_projection")]
    pairs = Layout("l r o -> o (l r)", l=module.left.out_features)
    out = [Rule("out.weight", (f"{scope}//output_w",), pairs), Rule("out.bias", (f"{scope}//output_b",), VECTOR)]
    return [*norm("norm", f"{scope}/layer_norm_input"), *operands, *out]


def triangle_multiplication(module: TriangleMultiplication, scope: str, available: Collection[str]) -> list[Rule]:
    """AlphaFold 2 writes incoming edges as o_ij = sum_k left_kj right_ki, so there its right is our a, and its left our b."""
    incoming = module.direction == "incoming"
    fused = f"{scope}/projection//weights" in available
    sides = ("right", "left") if incoming else ("left", "right")
    rules = []
    for name, theirs in (("proj", "projection"), ("gate", "gate")):
        for parameter, array, layout in (("weight", "weights", MATRIX), ("bias", "bias", VECTOR)):
            if fused:
                rules.append(Rule(f"{name}.{parameter}", (f"{scope}/{theirs}//{array}",), layout, swap=incoming))
            else:
                rules.append(Rule(f"{name}.{parameter}", tuple(f"{scope}/{side}_{theirs}//{array}" for side in sides), layout))
    norms = ("left_norm_input", "center_norm") if fused else ("layer_norm_input", "center_layer_norm")
    rules += [*norm("norm_in", f"{scope}/{norms[0]}"), *norm("norm_out", f"{scope}/{norms[1]}")]
    return [*rules, *linear("out", f"{scope}/output_projection"), *linear("out_gate", f"{scope}/gating_linear")]


def triangle_attention(module: TriangleAttention, scope: str, available: Collection[str]) -> list[Rule]:
    bias = Rule("pair_bias.weight", (f"{scope}//feat_2d_weights",), MATRIX)
    return [*norm("norm", f"{scope}/query_norm"), bias, *attention(module.attn, f"{scope}/attention")]


def evoformer_block(module: EvoformerBlock, scope: str, available: Collection[str]) -> list[Rule]:
    column = "msa_column_global_attention" if isinstance(module.msa_column, MSAGlobalColumnAttention) else "msa_column_attention"
    scopes = {**SCOPES, "msa_column": column}
    return [rule for name, child in scopes.items() for rule in under(table(getattr(module, name), f"{scope}/{child}", available), name)]


def stack(module: EvoformerStack | ExtraMSAStack, scope: str, available: Collection[str]) -> list[Rule]:
    """`scope` is that of the trunk; the blocks' own scope has a leading layer axis."""
    blocks = "extra_msa_stack" if isinstance(module, ExtraMSAStack) else "evoformer_iteration"
    rules = []
    for index, block in enumerate(module.blocks):
        rules += under(table(block, f"{scope}/{blocks}", available), f"blocks.{index}", layer=index)
    return rules + (linear("single", f"{scope}/single_activations") if isinstance(module, EvoformerStack) else [])


def pointwise_attention(module: TemplatePointwiseAttention, scope: str, available: Collection[str]) -> list[Rule]:
    return attention(module.attn, scope)


def template_block(module: TemplatePairBlock, scope: str, available: Collection[str]) -> list[Rule]:
    scopes = {name: f"{scope}/{SCOPES[name]}" for name in PAIR_UPDATES}
    return [rule for name, child in scopes.items() for rule in under(table(getattr(module, name), child, available), name)]


def template_stack(module: TemplatePairStack, scope: str, available: Collection[str]) -> list[Rule]:
    """`scope` is that of the blocks, whose arrays have a leading layer axis."""
    blocks = enumerate(module.blocks)
    return [rule for index, block in blocks for rule in under(table(block, scope, available), f"blocks.{index}", layer=index)]


def pointwise_templates(module: PointwiseTemplates, scope: str, available: Collection[str]) -> list[Rule]:
    """`scope` is that of the trunk, as of the other embeddings."""
    single = f"{scope}/{SINGLE_TEMPLATE}"
    blocks = under(template_stack(module.stack, f"{single}/template_pair_stack/__layer_stack_no_state", available), "stack")
    over = under(attention(module.attention.attn, f"{scope}/template_embedding/attention"), "attention")
    return [*linear("features", f"{single}/embedding2d"), *blocks, *norm("norm", f"{single}/output_layer_norm"), *over]


def averaged_templates(module: AveragedTemplates, scope: str, available: Collection[str]) -> list[Rule]:
    single = f"{scope}/{SINGLE_TEMPLATE}"
    rules = under(template_stack(module.stack, f"{single}/template_embedding_iteration", available), "stack")
    for name, number in AVERAGED.items():
        rules += linear(name, f"{single}/template_pair_embedding_{number}", Layout("o -> o 1") if name in OF_A_NUMBER else MATRIX)
    rules += [*norm("query_norm", f"{single}/query_embedding_norm"), *norm("norm", f"{single}/output_layer_norm")]
    return [*rules, *linear("out", f"{scope}/template_embedding/output_linear")]


def template_rows(module: TemplateRows, scope: str, available: Collection[str]) -> list[Rule]:
    return [*linear("embedding", f"{scope}/template_single_embedding"), *linear("projection", f"{scope}/template_projection")]


def output_head(module: MaskedMSAHead | DistogramHead, scope: str, available: Collection[str]) -> list[Rule]:
    name = "logits" if isinstance(module, MaskedMSAHead) else "half_logits"
    return linear(name, f"{scope}/{name}")


def trunk(module: EvoformerTrunk, scope: str, available: Collection[str]) -> list[Rule]:
    relative = EMBEDDING if module.config.max_chain is None else EMBEDDING | {"relative_position.linear": MULTIMER_RELATIVE}
    rules = [rule for name, child in relative.items() for rule in linear(name, f"{scope}/{child}")]
    for name in ("templates", "template_rows"):
        child_module = getattr(module, name)
        rules += [] if child_module is None else under(table(child_module, scope, available), name)
    rules += [*norm("recycling.msa_norm", f"{scope}/prev_msa_first_row_norm"), *norm("recycling.pair_norm", f"{scope}/prev_pair_norm")]
    rules += under(stack(module.evoformer, scope, available), "evoformer")
    if module.extra_stack is not None:
        rules += linear("extra_msa", f"{scope}/extra_msa_activations") + under(stack(module.extra_stack, scope, available), "extra_stack")
    return rules


TABLES: dict[type[nn.Module], Callable[[Any, str, Collection[str]], list[Rule]]] = {
    MSARowAttention: row_attention,
    MSAColumnAttention: column_attention,
    MSAGlobalColumnAttention: column_attention,
    MSATransition: transition,
    PairTransition: transition,
    OuterProductMean: outer_product,
    TriangleMultiplication: triangle_multiplication,
    TriangleAttention: triangle_attention,
    EvoformerBlock: evoformer_block,
    EvoformerStack: stack,
    ExtraMSAStack: stack,
    TemplatePointwiseAttention: pointwise_attention,
    TemplatePairBlock: template_block,
    TemplatePairStack: template_stack,
    PointwiseTemplates: pointwise_templates,
    AveragedTemplates: averaged_templates,
    TemplateRows: template_rows,
    MaskedMSAHead: output_head,
    DistogramHead: output_head,
    EvoformerTrunk: trunk,
}


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    """The rules for every parameter of `module`, whose arrays are below `scope`.

    Raises:
        WeightsError: AlphaFold 2 has no such module.
    """
    for kind in type(module).__mro__:
        if kind in TABLES:
            return TABLES[kind](module, scope, available)
    known = ", ".join(kind.__name__ for kind in TABLES)
    raise WeightsError(f"AlphaFold 2 has no parameters for a {type(module).__name__}; there are tables for {known}.")


def claims(module: nn.Module, scope: str) -> str:
    """What the names of arrays that belong to `module` begin with: its own scope, or for a stack that of its blocks."""
    parts = {ExtraMSAStack: "extra_msa_stack", EvoformerStack: "evoformer_iteration", TemplateRows: "template_single_embedding"}
    parts |= {PointwiseTemplates: "template_embedding", AveragedTemplates: "template_embedding"}
    return next((f"{scope}/{part}/" for kind, part in parts.items() if isinstance(module, kind)), f"{scope}/")


def recognise(shapes: Shapes) -> list[str]:
    """AlphaFold 3 has double slashes in its names too, and other words. Multimer v3 fused its triangle projections; what tells the rest of
    multimer from the monomer is how residue offsets are encoded, of which a block by itself says nothing.
    """
    if not any("//" in name for name in shapes) or any("pair_attention1/" in name for name in shapes):
        return []
    if any("triangle_multiplication_outgoing/projection//" in name for name in shapes):
        return ["multimer_v3"]
    if any("/~_relative_encoding/" in name for name in shapes):
        return ["multimer_v1_v2"]
    return ["monomer"] if any("/pair_activiations//" in name for name in shapes) else ["monomer", "multimer_v1_v2"]


def stack_config(shapes: Shapes, scope: str, version: str, c_s: int | None) -> EvoformerConfig:
    """The config of the stack whose blocks are below `scope`, read off its arrays."""

    def sizes(name: str) -> tuple[int, ...]:
        return shapes[f"{scope}/{name}"]

    extra = any(name.startswith(f"{scope}/msa_column_global_attention/") for name in shapes)
    column = "msa_column_global_attention" if extra else "msa_column_attention"
    n_blocks, c_m, row_heads, _ = sizes("msa_row_attention_with_pair_bias/attention//query_w")
    _, c_z, start_heads, _ = sizes("triangle_attention_starting_node/attention//query_w")
    return EvoformerConfig(
        n_blocks=n_blocks, c_m=c_m, c_z=c_z, c_s=c_s, n_head_msa_row=row_heads,
        n_head_msa_column=sizes(f"{column}/attention//query_w")[2], n_head_tri_start=start_heads,
        n_head_tri_end=sizes("triangle_attention_ending_node/attention//query_w")[2],
        c_hidden_mul=sizes("triangle_multiplication_outgoing/output_projection//weights")[1],
        c_hidden_opm=sizes("outer_product_mean/left_projection//weights")[2],
        msa_transition_n=sizes("msa_transition/transition1//weights")[2] // c_m,
        pair_transition_n=sizes("pair_transition/transition1//weights")[2] // c_z,
        msa_column="global" if extra else "attention", profile=PROFILES[FAMILY.versions[version]],
    )  # fmt: skip


def templates_config(shapes: Shapes, version: str) -> TemplateConfig | None:
    """The config of the templates' embedding, read off its arrays; None where there are none."""
    multimer, single = version != "monomer", f"{TRUNK}/{SINGLE_TEMPLATE}"
    stack = f"{single}/{'template_embedding_iteration' if multimer else 'template_pair_stack/__layer_stack_no_state'}"
    first = f"{stack}/triangle_attention_starting_node/attention//query_w"
    if first not in shapes:
        return None
    n_blocks, c_t, heads, width = shapes[first]
    attention = shapes.get(f"{TRUNK}/template_embedding/attention//query_w", (0, 4, 16))
    return TemplateConfig(
        n_blocks=n_blocks, c_z=c_t, n_head_tri_start=heads, c_head_tri=None if heads * width == c_t else width,
        n_head_tri_end=shapes[f"{stack}/triangle_attention_ending_node/attention//query_w"][2],
        c_hidden_mul=shapes[f"{stack}/triangle_multiplication_outgoing/output_projection//weights"][1],
        pair_transition_n=shapes[f"{stack}/pair_transition/transition1//weights"][2] // c_t,
        form="average" if multimer else "pointwise", n_head_pointwise=attention[1], c_head_pointwise=attention[2],
        torsions=f"{TRUNK}/template_projection//weights" in shapes, profile=PROFILES[FAMILY.versions[version]],
    )  # fmt: skip


def build(shapes: Shapes, version: str) -> nn.Module:
    """The trunk that a file fills."""
    monomer = version == "monomer"
    offsets = shapes[f"{TRUNK}/{'pair_activiations' if monomer else MULTIMER_RELATIVE}//weights"][0]
    return EvoformerTrunk(
        TrunkConfig(
            evoformer=stack_config(shapes, f"{TRUNK}/evoformer_iteration", version, shapes[f"{TRUNK}/single_activations//weights"][1]),
            extra=stack_config(shapes, f"{TRUNK}/extra_msa_stack", version, None), templates=templates_config(shapes, version),
            c_target_feat=shapes[f"{TRUNK}/preprocess_1d//weights"][0], c_msa_feat=shapes[f"{TRUNK}/preprocess_msa//weights"][0],
            c_extra_feat=shapes[f"{TRUNK}/extra_msa_activations//weights"][0],
            max_relative=(offsets if monomer else offsets - 8) // 2, max_chain=None if monomer else 2,
            recycle_bins=shapes[f"{TRUNK}/prev_pos_linear//weights"][0],
        )
    )  # fmt: skip


FAMILY = Family(
    name="alphafold2",
    title="AlphaFold 2",
    versions={"monomer": "alphafold2", "multimer_v1_v2": "alphafold2_multimer", "multimer_v3": "alphafold2_multimer"},
    table=table,
    recognise=recognise,
    scopes={MaskedMSAHead: f"{ITERATION}/masked_msa_head", DistogramHead: f"{ITERATION}/distogram_head", nn.Module: TRUNK},
    claims=claims,
    build=build,
    out_of_scope={
        f"{ITERATION}/structure_module": "structure module",
        **{f"{ITERATION}/{head}": f"{word} head" for head, word in HEADS.items()},
        f"{TRUNK}/template_": "template embedding",
        f"{TRUNK}/": "trunk",
    },
    source="https://github.com/google-deepmind/alphafold (scripts/download_alphafold_params.sh): params_model_*.npz",
    licence="CC BY 4.0: share and adapt, commercially too, with credit to DeepMind",
    line='load_weights(EvoformerTrunk(preset("af2_model_1")), "params_model_1.npz")',
)
