"""The MSA Transformer's parameter names: which tensor of a checkpoint belongs to which parameter of ours.

In the published files (``esm_msa1b_t12_100M_UR50S.pt``), whose names begin with ``encoder.sentence_encoder.``, row and column attention
have each other's names: ESM's loader exchanges them (``load_model_and_alphabet_core`` in ``esm/pretrained.py``). In a state dict of its
module they have their own.
"""

from collections.abc import Collection

from torch import nn

from evoattn.blocks import MSAColumnAttention, TiedRowAttention
from evoattn.config import MSATransformerConfig
from evoattn.primitives import Transition
from evoattn.stacks import ContactHead, MSATransformer, MSATransformerBlock, MSATransformerEncoder
from evoattn.stacks.msa_transformer import PADDING, TokenHead
from evoattn.weights.family import Family, Shapes
from evoattn.weights.state_dict import StateDictNames, layer_rules
from evoattn.weights.tables import Layout, Rule, dotted, under

PUBLISHED = "encoder.sentence_encoder"
ATTENTION = {"norm": "layer_norm", **{f"attn.{ours}": f"layer.{ours}_proj" for ours in ("q", "k", "v", "out")}}
ROW_POSITION = Layout("1 s 1 c -> s c")


def names(row: str, column: str) -> StateDictNames:
    return StateDictNames(
        "The MSA Transformer",
        {
            TiedRowAttention: ATTENTION,
            MSAColumnAttention: ATTENTION,
            Transition: {"norm": "layer_norm", "up": "layer.fc1", "down": "layer.fc2"},
            MSATransformerBlock: {"msa_row": row, "msa_column": column, "msa_transition": "feed_forward_layer"},
            MSATransformerEncoder: {
                "blocks": "layers.{}", "norm_before": "emb_layer_norm_before", "norm_after": "emb_layer_norm_after",
            },
            TokenHead: {"dense": "dense", "norm": "layer_norm"},
            ContactHead: {"regression": "regression"},
        },
    )  # fmt: skip


OF_MODULE = names("row_self_attention", "column_self_attention")
OF_FILE = names("column_self_attention", "row_self_attention")


def is_file(available: Collection[str]) -> bool:
    return any(name.startswith(f"{PUBLISHED}.") for name in available)


def table(module: nn.Module, scope: str, available: Collection[str]) -> list[Rule]:
    published = is_file(available)
    known = OF_FILE if published else OF_MODULE
    if isinstance(module, MSATransformer):
        head = known.table(module.contact_head, dotted(scope, "contact_head"))
        return under(table(module.encoder, scope, available), "encoder") + under(head, "contact_head")
    if isinstance(module, TokenHead):  # its last layer has no name of its own
        return known.table(module, scope) + layer_rules(module.out, "out", [scope])
    if not isinstance(module, MSATransformerEncoder):
        return known.table(module, scope)
    inner = dotted(scope, PUBLISHED) if published else scope
    head = table(module.token_head, dotted(scope, "encoder.lm_head" if published else "lm_head"), available)
    return [
        *known.table(module, inner),
        *layer_rules(module.tokens, "tokens", [dotted(inner, "embed_tokens")]),
        *layer_rules(module.positions, "positions", [dotted(inner, "embed_positions")]),
        Rule("rows.weight", (dotted(inner, "msa_position_embedding"),), ROW_POSITION),
        *under(head, "token_head"),
    ]


def claims(module: nn.Module, scope: str) -> str | tuple[str, ...]:
    """Beside the encoder's own names a state dict has those of the contact head."""
    if isinstance(module, MSATransformerEncoder):
        parts = ("encoder.", "embed_", "msa_position_embedding", "emb_layer_norm_", "layers.", "lm_head.")
        return tuple(dotted(scope, part) for part in parts)
    return f"{scope}." if scope else ""


def recognise(shapes: Shapes) -> list[str]:
    """The first release encodes rows with a number each. What holds the contact head alone does not tell."""
    if set(shapes) == {"contact_head.regression.weight", "contact_head.regression.bias"}:
        return ["msa1", "msa1b"]
    if not any(".layer.q_proj." in f".{name}" and "row_self_attention." in name for name in shapes):
        return []
    of_rows = [shape for name, shape in shapes.items() if name.endswith("msa_position_embedding")]
    if not of_rows:
        return ["msa1", "msa1b"]
    return ["msa1"] if of_rows[0][-1] == 1 else ["msa1b"]


def build(shapes: Shapes, version: str) -> nn.Module:
    """The encoder of a published file, the contact head of the other, or both of a state dict of ESM's module."""
    n_maps = shapes["contact_head.regression.weight"][1] if "contact_head.regression.weight" in shapes else None
    inner = f"{PUBLISHED}." if is_file(shapes) else ""
    n_blocks = len({name.split(".layers.")[1].split(".")[0] for name in (f".{name}" for name in shapes) if ".layers." in name})
    if n_maps is not None and not n_blocks:
        return ContactHead(n_maps)
    c_m = shapes[f"{inner}embed_tokens.weight"][1]
    if n_maps is None and c_m != 768:
        raise ValueError("without the contact head only the published width of 768 tells that there are 12 heads")
    c_hidden = shapes[f"{inner}layers.0.feed_forward_layer.layer.fc1.weight"][0]
    _, max_seqs, _, c_row_position = shapes[f"{inner}msa_position_embedding"]
    config = MSATransformerConfig(
        n_blocks=n_blocks, c_m=c_m, n_head=12 if n_maps is None else n_maps // n_blocks, c_hidden_transition=c_hidden, max_seqs=max_seqs,
        max_positions=shapes[f"{inner}embed_positions.weight"][0] - PADDING - 1, c_row_position=c_row_position,
    )  # fmt: skip
    return MSATransformerEncoder(config) if n_maps is None else MSATransformer(config)


FAMILY = Family(
    name="msa_transformer",
    title="The MSA Transformer",
    versions={"msa1": "msa_transformer", "msa1b": "msa_transformer"},
    table=table,
    recognise=recognise,
    claims=claims,
    scopes={ContactHead: "contact_head"},
    out_of_scope={"contact_head.": "contact head", "": "encoder"},
    build=build,
    source="https://dl.fbaipublicfiles.com/fair-esm/models/esm_msa1b_t12_100M_UR50S.pt, and .../fair-esm/regression/"
    "esm_msa1b_t12_100M_UR50S-contact-regression.pt for the contact head",
    licence="MIT: any use, with the notice of the licence",
    line='model = MSATransformer(MSATransformerConfig()); load_weights(model.encoder, "esm_msa1b_t12_100M_UR50S.pt"); '
    'load_weights(model.contact_head, "esm_msa1b_t12_100M_UR50S-contact-regression.pt")',
)
