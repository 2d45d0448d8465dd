"""Models for whole files, their sizes read off the shapes of the arrays: of AlphaFold 3's kin, and of OpenFold."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import nn

from evoattn.config import EvoformerConfig, MSAModuleConfig, PairformerConfig, Profile, TemplateConfig, TrunkConfig, profile
from evoattn.model import EvoformerTrunk
from evoattn.stacks import EvoformerStack, ExtraMSAStack, MSAModule, PairformerStack, TemplatePairStack
from evoattn.weights.family import Family, Shapes

Sizes = Callable[[str], tuple[int, ...]]
"""Name of one of our parameters, below the first block -> its shape."""


def stacks(family: Family, shapes: Shapes, version: str) -> nn.Module:
    """The MSA module and the Pairformer of a whole file, as a ModuleDict. Called under ``torch.device("meta")``.

    Raises:
        KeyError: an array that tells a size is not there, or the family has no such stacks.
    """
    numerics = profile(family.versions[version])
    return nn.ModuleDict(
        {
            "msa_module": MSAModule(_measured(family, shapes, MSAModule, MSAModuleConfig, _msa_module, numerics)),
            "pairformer": PairformerStack(_measured(family, shapes, PairformerStack, PairformerConfig, _pairformer, numerics)),
        }
    )


def openfold_trunk(family: Family, shapes: Shapes, version: str) -> EvoformerTrunk:
    """The trunk of a whole file of OpenFold's. Called under ``torch.device("meta")``.

    Heads of column attention and of the attention over templates are in no shape: those of row attention, and of width 16, as published.

    Raises:
        KeyError: an array that tells a size is not there.
    """
    multimer, numerics = version == "multimer", profile(family.versions[version])
    offsets = shapes["input_embedder.linear_relpos.weight"][1]
    return EvoformerTrunk(
        TrunkConfig(
            evoformer=_evoformer(family, shapes, numerics, shapes["evoformer.linear.weight"][0]),
            extra=_evoformer(family, shapes, numerics, None), templates=_templates(family, shapes, numerics, multimer),
            c_target_feat=shapes["input_embedder.linear_tf_m.weight"][1], c_msa_feat=shapes["input_embedder.linear_msa_m.weight"][1],
            c_extra_feat=shapes["extra_msa_embedder.linear.weight"][1], recycle_bins=shapes["recycling_embedder.linear.weight"][1],
            max_relative=(offsets - 8 if multimer else offsets) // 2, max_chain=2 if multimer else None,
        )
    )  # fmt: skip


def _evoformer(family: Family, shapes: Shapes, numerics: Profile, c_s: int | None) -> EvoformerConfig:
    """Of the main stack, or without c_s of the extra-MSA stack."""
    probe = EvoformerConfig(n_blocks=2, profile=numerics)
    extra = ExtraMSAStack(replace(EvoformerConfig.extra_msa(), n_blocks=2, profile=numerics))
    look = Look(family, shapes, extra if c_s is None else EvoformerStack(probe))
    sizes = look.in_block
    c_m, heads = sizes("msa_row.norm.weight")[0], sizes("msa_row.pair_bias.weight")[0]
    column = heads if c_s is not None else sizes("msa_column.attn.q.weight")[0] // sizes("msa_column.attn.k.weight")[0]
    return EvoformerConfig(
        n_blocks=look.n_blocks(), c_m=c_m, c_s=c_s, n_head_msa_row=heads, n_head_msa_column=column,
        c_head_msa=sizes("msa_row.attn.out.weight")[1] // heads, c_hidden_opm=sizes("outer_product.left.weight")[0],
        msa_transition_n=sizes("msa_transition.up.weight")[0] // c_m, msa_column="attention" if c_s is not None else "global",
        profile=numerics, **_pair(sizes),
    )  # fmt: skip


def _templates(family: Family, shapes: Shapes, numerics: Profile, multimer: bool) -> TemplateConfig | None:
    """None where the file has none. Names of release 1 are not below ``template_embedder``."""
    first = next((name for name in shapes if "template_pair_stack.blocks.0." in name), None)
    if first is None:
        return None
    scope = first.partition("template_pair_stack.")[0]
    look = Look(family, shapes, TemplatePairStack(TemplateConfig(profile=numerics)), f"{scope}template_pair_stack")
    width = shapes.get(f"{scope}template_pointwise_att.mha.linear_q.weight", (64,))[0]
    return TemplateConfig(
        n_blocks=look.n_blocks(), form="average" if multimer else "pointwise", n_head_pointwise=width // 16, c_head_pointwise=16,
        torsions=any("template_single_embedder." in name or "template_angle_embedder." in name for name in shapes), profile=numerics,
        **_pair(look.in_block),
    )  # fmt: skip


def _measured(
    family: Family, shapes: Shapes, stack: Any, config: Any, measure: Callable[[Sizes], dict[str, Any]], numerics: Profile
) -> Any:
    """The config of a stack. Some layouts need the number of heads, which other arrays tell: so the second look is the right one."""
    settings: dict[str, Any] = {"profile": numerics}
    for _ in range(2):
        look = Look(family, shapes, stack(config(n_blocks=2, **settings)))  # of two blocks, since the last may lack parts
        settings = {"profile": numerics, **measure(look.in_block)}
    if not (stack is MSAModule and numerics.share_msa_weights):  # how often shared weights are gone through is in no file
        settings["n_blocks"] = look.n_blocks()
    if stack is MSAModule:
        embedding = Look(family, shapes, stack(config(c_msa_feat=1, c_single_inputs=1, **settings)))
        if not embedding.absent("msa_feat.weight"):
            settings["c_msa_feat"] = embedding.made("msa_feat.weight")[1]
            settings["c_single_inputs"] = embedding.made("single_inputs.weight")[1]
    return config(**settings)


class Look:
    """The rules of a family for a stack, and what they find in a source of these shapes."""

    def __init__(self, family: Family, shapes: Shapes, stack: nn.Module, scope: str | None = None) -> None:
        self.shapes = shapes
        self.rules = {rule.name: rule for rule in family.table(stack, family.scope(stack) if scope is None else scope, shapes)}

    def absent(self, name: str) -> bool:
        return bool(self.rules[name].absent(self.shapes))

    def made(self, name: str) -> tuple[int, ...]:
        """The shape of our parameter."""
        rule = self.rules[name]
        made = rule.make({source: torch.empty(self.shapes[source], device="meta") for source in rule.sources})
        if made is None:
            raise KeyError(f"{rule.sources[0]} as {rule.layout}")
        return tuple(made.shape)

    def in_block(self, name: str) -> tuple[int, ...]:
        return self.made(f"blocks.0.{name}")

    def n_blocks(self) -> int:
        """The length of the layer axis; or how many numbered names there are, in a row."""
        first, second = (self.rules[f"blocks.{index}.pair_transition.down.weight"] for index in range(2))
        if first.layer is not None:
            return self.shapes[first.sources[0]][0]
        name = first.sources[0]
        at = next(i for i, (a, b) in enumerate(zip(name, second.sources[0], strict=True)) if a != b)
        beginning, end = name[:at], name[at + 1 :]
        return next(n for n in count(1) if f"{beginning}{n}{end}" not in self.shapes)


def _pair(sizes: Sizes) -> dict[str, Any]:
    c_z = sizes("tri_mul_out.norm_in.weight")[0]
    heads = {node: sizes(f"tri_attn_{node}.pair_bias.weight")[0] for node in ("start", "end")}
    return {
        "c_z": c_z, "c_hidden_mul": sizes("tri_mul_out.out.weight")[1], "pair_transition_n": sizes("pair_transition.up.weight")[0] // c_z,
        "n_head_tri_start": heads["start"], "n_head_tri_end": heads["end"],
        "c_head_tri": sizes("tri_attn_start.attn.out.weight")[1] // heads["start"],
    }  # fmt: skip


def _pairformer(sizes: Sizes) -> dict[str, Any]:
    c_s, heads = sizes("single_attn.norm.weight")[0], sizes("single_attn.pair_bias.weight")[0]
    return {
        **_pair(sizes), "c_s": c_s, "n_head_single": heads, "c_head_single": sizes("single_attn.attn.out.weight")[1] // heads,
        "single_transition_n": sizes("single_transition.up.weight")[0] // c_s,
    }  # fmt: skip


def _msa_module(sizes: Sizes) -> dict[str, Any]:
    c_m, heads = sizes("msa_average.norm.weight")[0], sizes("msa_average.pair_bias.weight")[0]
    return {
        **_pair(sizes), "c_m": c_m, "n_head_msa": heads, "c_head_msa": sizes("msa_average.attn.out.weight")[1] // heads,
        "c_hidden_opm": sizes("outer_product.left.weight")[0], "msa_transition_n": sizes("msa_transition.up.weight")[0] // c_m,
    }  # fmt: skip
