"""AlphaFold 3 and its kin at their published sizes: the names and shapes that the tables ask for are those of the published classes.

Built on the meta device, and compared with lists of the names and shapes in each system's own model (`systems.md`, appendix A).
"""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from evoattn import (
    MSA_MODULES,
    PAIRFORMERS,
    MSAModule,
    MSAModuleBlock,
    OuterProductMean,
    PairformerStack,
    PairWeightedAveraging,
)
from evoattn.weights.families import FAMILIES
from evoattn.weights.tables import unmade

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Dump:
    """One list of the appendix: its title, whose it is, our module of those sizes, and what stands before its names.

    `left_out` is a pattern of names that the list leaves out, as it says or since they repeat.
    """

    title: str
    family: str
    build: Callable[[], nn.Module]
    scope: str = ""
    left_out: str = "$."
    available: tuple[str, ...] = ()


def pairformer(name: str, n_blocks: int = 1) -> Callable[[], nn.Module]:
    return lambda: PairformerStack(replace(PAIRFORMERS[name], n_blocks=n_blocks))


def msa_module(name: str, n_blocks: int | None = None, **changes: None) -> Callable[[], nn.Module]:
    config = MSA_MODULES[name]
    return lambda: MSAModule(replace(config, n_blocks=n_blocks or config.n_blocks, **changes))


REPEATED = r"\.tri_mul_in\.|\.tri_att_end\."
BOLTZ2 = ("pre_norm_s.weight",)
DUMPS = [
    Dump("Boltz2 pairformer_module", "boltz", pairformer("boltz2"), available=BOLTZ2),
    Dump("PWA", "boltz", lambda: PairWeightedAveraging(64, 128, 8, d_head=32)),
    Dump("OPM", "boltz", lambda: OuterProductMean(64, 128, 32, norm="sum", proj_bias=False)),
    Dump("boltz1 pairformer layer", "boltz", lambda: pairformer("boltz1")().blocks[0], left_out="^tri_|^transition_"),
    Dump("boltz1 msa layer", "boltz", lambda: MSAModuleBlock(MSA_MODULES["boltz1"]), left_out="^tri_"),
    Dump("boltz2 msa module", "boltz", msa_module("boltz2", 1), left_out=REPEATED, available=BOLTZ2),
    Dump("Protenix pairformer_stack", "protenix", pairformer("protenix")),
    Dump("Protenix msa_module", "protenix", msa_module("protenix", 2)),
    Dump("OF3 pairformer", "openfold3", pairformer("openfold3")),
    Dump("OF3 msa module", "openfold3", msa_module("openfold3", 2, c_msa_feat=None, c_single_inputs=None)),
    Dump("AF3 trunk_pairformer", "alphafold3", pairformer("alphafold3", 2), "__layer_stack_no_per_layer/trunk_pairformer"),
    Dump("AF3 msa_stack", "alphafold3", lambda: MSAModuleBlock(MSA_MODULES["alphafold3"]), "msa_stack", left_out="pair_|triangle_"),
]


@cache
def dumped(appendix: Path, title: str) -> Shapes:
    """The list with this title."""
    text = appendix.read_text(encoding="utf-8")
    lines = re.search(rf"^## {re.escape(title)}.*\n((?:[^#`\n].*\n)+)", text, re.MULTILINE)
    assert lines is not None, title
    pairs = (line.split(" ", 1) for line in lines[1].splitlines())
    return {name: ast.literal_eval(shape) for name, shape in pairs}


def asked_for(dump: Dump) -> Shapes:
    """Every array that the table reads for the module, with the shape that makes ours."""
    with torch.device("meta"):
        module = dump.build()
    rules = FAMILIES[dump.family].table(module, dump.scope, dump.available)
    parameters = dict(module.named_parameters())
    assert {rule.name for rule in rules} == parameters.keys()
    return {name.replace("//", "/"): tuple(array.shape) for name, array in unmade(rules, parameters.__getitem__)}


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.title)
def test_names_and_shapes(dump: Dump, shared: Path) -> None:
    asked = {name: shape for name, shape in asked_for(dump).items() if not re.search(dump.left_out, name)}
    assert asked == dumped(shared / "reference" / "systems.md", dump.title)


def test_stacks_repeat_the_block() -> None:
    """At the published depth: the names of block 0 for every index, or its shapes with a layer axis that long."""
    for family, name, depth, axis in (("boltz", "boltz2", 64, False), ("alphafold3", "alphafold3", 48, True)):
        one, all_ = (asked_for(Dump("", family, pairformer(name, n), "s", available=BOLTZ2)) for n in (1, depth))
        if axis:
            assert all_ == {name: (depth, *shape[1:]) for name, shape in one.items()}
        else:
            assert all_ == {name.replace(".0.", f".{i}.", 1): shape for name, shape in one.items() for i in range(depth)}


def test_where_the_embedding_of_the_msa_is() -> None:
    """AlphaFold 3 has it two scopes out of its stack, OpenFold3 beside the module; RosettaFold 3's one block has the module's scope."""
    asked = asked_for(Dump("", "alphafold3", msa_module("alphafold3"), "diffuser/evoformer/__layer_stack_no_per_layer/msa_stack"))
    assert asked["diffuser/evoformer/msa_activations/weights"] == (34, 64)
    assert asked["diffuser/evoformer/extra_msa_target_feat/weights"] == (447, 64)
    asked = asked_for(Dump("", "openfold3", msa_module("openfold3"), "msa_module"))
    assert asked["msa_module_embedder.linear_m.weight"] == (64, 34) and asked["msa_module_embedder.linear_s_input.weight"] == (64, 449)
    asked = asked_for(Dump("", "rosettafold3", msa_module("rosettafold3"), "recycler.msa_module"))
    assert asked["recycler.msa_module.msa_subsampler.emb_S_inputs.weight"] == (64, 449)
    assert asked["recycler.msa_module.outer_product.proj_left.bias"] == (32,)
    assert asked["recycler.msa_module.tri_mult_outgoing.p_in.weight"] == (256, 128)
    assert not any("blocks" in name or ".0." in name for name in asked)
