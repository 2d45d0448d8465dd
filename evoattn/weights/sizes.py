"""The sizes of a Pairformer and an MSA module, read off the shapes of a family's arrays: AlphaFold 3 and its kin."""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch
from torch import nn

from evoattn.config import MSAModuleConfig, PairformerConfig, Profile, profile
from evoattn.stacks import MSAModule, PairformerStack
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

    def __init__(self, family: Family, shapes: Shapes, stack: nn.Module) -> None:
        self.shapes = shapes
        self.rules = {rule.name: rule for rule in family.table(stack, family.scope(stack), shapes)}

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
