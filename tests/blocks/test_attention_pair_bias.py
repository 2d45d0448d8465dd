"""AttentionPairBias: AlphaFold 3 supplement, algorithm 24, as four published systems compute it."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from evoattn import AttentionPairBias
from tests.blocks import oracles
from tests.blocks.alphafold import Run, scaled, transposed_bias
from tests.blocks.contract import BlockTests, PairAsTests, TwoInputTests, assert_refused, mixes_of, published_and_all
from tests.helpers import assert_golden

MIXES = mixes_of(
    functools.partial(AttentionPairBias, 10, 6, 5),
    functools.partial(oracles.attention_pair_bias, heads=5),
    ("s", "z"),
    ("mask", "pair_mask"),
    "s",
)

BOLTZ = {
    "pair_norm": "attention.proj_z.0", "pair_bias": "attention.proj_z.1", "attn.q": "attention.proj_q", "attn.k": "attention.proj_k",
    "attn.v": "attention.proj_v", "attn.gate": "attention.proj_g", "attn.out": "attention.proj_o",
}  # fmt: skip
PROTENIX = {
    "norm": "attention_pair_bias.layernorm_a", "pair_norm": "attention_pair_bias.layernorm_z",
    "pair_bias": "attention_pair_bias.linear_nobias_z", "attn.gate": "attention_pair_bias.attention.linear_g",
    "attn.out": "attention_pair_bias.attention.linear_o", **{f"attn.{x}": f"attention_pair_bias.attention.linear_{x}" for x in "qkv"},
}  # fmt: skip
# file: (our module -> theirs, their mask of the single representation, their output of this block)
SYSTEMS = {
    "boltz1_pairformer_layer": ({"norm": "attention.norm_s", **BOLTZ}, "mask", "attention"),
    "boltz2_pairformer_layer": ({"norm": "pre_norm_s", **BOLTZ}, "mask", "attention"),
    "protenix_pairformer_block": (PROTENIX, None, "attention_pair_bias"),
}
AF3 = {
    "norm.weight": "layer_norm//scale", "norm.bias": "layer_norm//offset", "attn.q.weight": "q_projection//weights",
    "attn.q.bias": "q_projection//bias", "attn.k.weight": "k_projection//weights", "attn.v.weight": "v_projection//weights",
    "attn.gate.weight": "gating_query//weights", "attn.out.weight": "transition2//weights",
}  # fmt: skip


def published(shared: Path, name: str) -> tuple[AttentionPairBias, list[torch.Tensor | None], np.ndarray]:
    """The block with the parameters of a published one, its inputs and its output in the case "rand"."""
    with np.load(shared / "golden" / f"{name}.npz") as file:
        data = {key: file[key] for key in file.files}
    layers, mask, sub = SYSTEMS[name]
    block = AttentionPairBias(40, 24, 4)
    state = {f"{ours}.{leaf}": data[f"param/{theirs}.{leaf}"] for ours, theirs in layers.items() for leaf in ("weight", "bias")
             if f"param/{theirs}.{leaf}" in data}  # fmt: skip
    block.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    # the pair representation is updated first in these blocks
    inputs = [torch.from_numpy(data["in/s"]), torch.from_numpy(data["rand/out/z"])]
    return block, [*inputs, None if mask is None else torch.from_numpy(data[f"rand/{mask}"]).bool()], data[f"rand/sub/{sub}"]


def published_af3(shared: Path) -> tuple[AttentionPairBias, list[torch.Tensor | None], np.ndarray]:
    """The same for AlphaFold 3, whose matrices are [in, (heads, width of a head)]."""
    with np.load(shared / "golden" / "af3_pairformer_block.npz") as file:
        data = {key: torch.from_numpy(file[key]) for key in file.files if file[key].dtype.kind == "f"}
    scope = "param/trunk_pairformer/single_"
    state = {ours: data[f"{scope}attention_{theirs}"] for ours, theirs in AF3.items()}
    state = {name: x.flatten(1).mT if name.startswith("attn.") and name.endswith("weight") else x.flatten() for name, x in state.items()}
    state |= {"pair_norm.weight": data[f"{scope}pair_logits_norm//scale"], "pair_norm.bias": data[f"{scope}pair_logits_norm//offset"]}
    state["pair_bias.weight"] = data[f"{scope}pair_logits_projection//weights"].mT
    block = AttentionPairBias(40, 32, 4)
    block.load_state_dict(state)
    inputs = [data["in/single"], data["rand/out/pair"], data["rand/seq_mask"].bool()]
    return block, inputs, data["rand/sub/single_attention_transition2/out"].numpy()


def read(shared: Path, name: str) -> tuple[AttentionPairBias, list[torch.Tensor | None], np.ndarray]:
    return published_af3(shared) if name.startswith("af3") else published(shared, name)


NAMES = [*SYSTEMS, "af3_pairformer_block"]


def ungated(block: nn.Module) -> Run:
    block.attn.gate = None
    return block


class TestAttentionPairBias(BlockTests, TwoInputTests, PairAsTests):
    cases = published_and_all(MIXES)
    mixes = MIXES

    @pytest.mark.parametrize("name", NAMES)
    def test_output_is_that_of(self, name: str, shared: Path) -> None:
        block, inputs, expected = read(shared, name)
        assert_golden("output", block(*inputs), expected)

    @pytest.mark.parametrize(
        "mutate",
        [scaled("pair_bias.weight", 0.0), transposed_bias, scaled("attn.q.weight"), scaled("attn.q.bias", 0.0), ungated,
         lambda block: lambda s, z, mask: block(s, z)],
        ids=["bias dropped", "bias transposed", "queries scaled by 1.02", "bias of the queries dropped", "ungated", "mask dropped"],
    )  # fmt: skip
    def test_wrong_blocks_are_rejected(self, mutate, shared: Path) -> None:
        block, inputs, expected = read(shared, "boltz1_pairformer_layer")
        with pytest.raises(AssertionError, match="output: off by"):
            assert_golden("output", mutate(block)(*inputs), expected)

    def test_without_a_key_nothing_is_left(self) -> None:
        """Here the output has no bias."""
        mix = self.mixes[0]
        out = mix.block()(*mix.draw(), *mix.no_masks(False))
        assert torch.equal(out, torch.zeros_like(out))

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"heads": 3}, ["3", "10"]),
            ({"pair_as": ("single",)}, ["single", "'bias'"]),
            ({"pair_mode": "added"}, ["'added'", "'appended'"]),
        ],
    )
    def test_unknown_settings_are_refused(self, settings: dict, words: list[str], no_type_checks: None) -> None:
        assert_refused(lambda: AttentionPairBias(10, 6, **{"heads": 5, **settings}), words)
