"""ESMFold's parameter names, of its trunk: which tensor of a checkpoint belongs to which parameter of ours.

q, k and v of the attention along the sequence are one matrix, head by head: q of the first head, its k, its v, q of the second, ...
"""

from collections.abc import Collection

from torch import nn

from evoattn.blocks import AttentionPairBias, SequenceToPair, TriangleAttention, TriangleMultiplication
from evoattn.config import ESMFoldConfig
from evoattn.primitives import Transition
from evoattn.stacks import ESMFoldBlock, ESMFoldTrunk
from evoattn.weights.family import Family, Shapes
from evoattn.weights.protenix import ATTENTION, TRIANGLE_MULTIPLICATION
from evoattn.weights.state_dict import StateDictNames, layer_rules
from evoattn.weights.tables import Layout, Rule, dotted, under

SCOPE = "trunk"

NAMES = StateDictNames(
    "ESMFold",
    {
        TriangleMultiplication: TRIANGLE_MULTIPLICATION,
        TriangleAttention: {
            "norm": "layer_norm", "pair_bias": "linear", **{ours: f"mha.{theirs}" for ours, theirs in ATTENTION.items()},
        },
        Transition: {"norm": "mlp.0", "up": "mlp.1", "down": "mlp.3"},
        SequenceToPair: {"norm": "layernorm", "proj": "proj", "out": "o_proj"},
        AttentionPairBias: {  # its scope is that of the block; q, k and v are below
            "norm": "layernorm_1", "pair_norm": "pair_to_sequence.layernorm", "pair_bias": "pair_to_sequence.linear",
            "attn.gate": "seq_attention.g_proj", "attn.out": "seq_attention.o_proj",
        },
        ESMFoldBlock: {
            "single_attn": "", "single_transition": "mlp_seq", "sequence_to_pair": "sequence_to_pair", "tri_mul_out": "tri_mul_out",
            "tri_mul_in": "tri_mul_in", "tri_attn_start": "tri_att_start", "tri_attn_end": "tri_att_end", "pair_transition": "mlp_pair",
        },
        ESMFoldTrunk: {"blocks": "blocks.{}", "recycled_s_norm": "recycle_s_norm", "recycled_z_norm": "recycle_z_norm"},
    },
)  # fmt: skip


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    rules = NAMES.table(module, scope)
    for name, child in module.named_modules():
        if isinstance(child, AttentionPairBias):
            block = name.removesuffix("single_attn").removesuffix(".")  # whose names end as ours do: "" or "blocks.N"
            packed = interleaved(child, dotted(scope, block) if block else scope)
            rules += under(packed, name) if name else packed
    if isinstance(module, ESMFoldTrunk):
        for ours, theirs in (("relative_position", "pairwise_positional_embedding.embedding"), ("recycled_distance", "recycle_disto")):
            rules += layer_rules(module.get_submodule(ours), ours, [dotted(scope, theirs)])
    return rules


def interleaved(attention: AttentionPairBias, scope: str) -> list[Rule]:
    """q, k and v of an attention whose block is below `scope`."""
    layout = Layout("(h qkv d) c -> (qkv h d) c", h=attention.attn.heads, qkv=3)
    source = dotted(scope, "seq_attention.proj.weight")
    return [Rule(f"attn.{each}.weight", (source,), layout, part=(index, 3)) for index, each in enumerate("qkv")]


def claims(module: nn.Module, scope: str) -> str | tuple[str, ...]:
    """The structure module is in the trunk of the file, and not in ours."""
    if isinstance(module, ESMFoldTrunk):
        return tuple(dotted(scope, part) for part in ("blocks.", "pairwise_positional_embedding.", "recycle_"))
    return f"{scope}." if scope else ""


def recognise(shapes: Shapes) -> list[str]:
    return ["esmfold"] if any("pair_to_sequence.linear." in name for name in shapes) else []


def build(shapes: Shapes, version: str) -> ESMFoldTrunk:
    """The trunk of a whole file; its shapes tell all sizes."""
    block = f"{SCOPE}.blocks.0"
    n_head, c_z = shapes[f"{block}.pair_to_sequence.linear.weight"]
    packed, c_s = shapes[f"{block}.seq_attention.proj.weight"]
    n_blocks = len({name.split(".")[2] for name in shapes if name.startswith(f"{SCOPE}.blocks.")})
    return ESMFoldTrunk(
        ESMFoldConfig(
            n_blocks=n_blocks, c_s=c_s, c_z=c_z, n_head_single=n_head, c_head_single=packed // (3 * n_head),
            n_head_tri_start=shapes[f"{block}.tri_att_start.linear.weight"][0],
            n_head_tri_end=shapes[f"{block}.tri_att_end.linear.weight"][0],
            c_hidden_mul=shapes[f"{block}.tri_mul_out.linear_a_p.weight"][0],
            single_transition_n=shapes[f"{block}.mlp_seq.mlp.1.weight"][0] // c_s,
            pair_transition_n=shapes[f"{block}.mlp_pair.mlp.1.weight"][0] // c_z,
            max_relative=shapes[f"{SCOPE}.pairwise_positional_embedding.embedding.weight"][0] // 2 - 1,
            recycle_bins=shapes[f"{SCOPE}.recycle_disto.weight"][0],
        )
    )  # fmt: skip


FAMILY = Family(
    name="esmfold",
    title="ESMFold",
    versions={"esmfold": "esmfold"},
    table=table,
    recognise=recognise,
    claims=claims,
    scopes={ESMFoldTrunk: SCOPE},
    out_of_scope={
        "trunk.structure_module.": "structure module",
        "trunk.trunk2sm_": "structure module",
        "trunk.": "trunk",
        "esm.": "language model",
        "esm_s_": "embedding of the language model",
        "embedding.": "embedding of the sequence",
        "distogram_head.": "distogram head",
        "ptm_head.": "confidence head",
        "lddt_head.": "confidence head",
        "lm_head.": "head for masked residues",
    },
    build=build,
    source="https://dl.fbaipublicfiles.com/fair-esm/models/esmfold_3B_v1.pt; or https://huggingface.co/facebook/esmfold_v1",
    licence="MIT: any use, with the notice of the licence",
    line='load_weights(ESMFoldTrunk(ESMFoldConfig()), "esmfold_3B_v1.pt")',
)
