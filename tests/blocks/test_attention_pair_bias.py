"""AttentionPairBias: AlphaFold 3 supplement, algorithm 24, as four published systems compute it."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from evoattn import AttentionPairBias, load_weights
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

# file -> family, scope of the block, inputs, mask of the single representation, this block's output
SYSTEMS = {
    "boltz1_pairformer_layer": ("boltz", "", ("s", "z"), "mask", "attention"),
    "boltz2_pairformer_layer": ("boltz", "", ("s", "z"), "mask", "attention"),
    "protenix_pairformer_block": ("protenix", "attention_pair_bias", ("s", "z"), None, "attention_pair_bias"),
    "af3_pairformer_block": (
        "alphafold3", "trunk_pairformer", ("single", "pair"), "seq_mask", "single_attention_transition2/out",
    ),
}  # fmt: skip


def read(shared: Path, name: str) -> tuple[AttentionPairBias, list[torch.Tensor | None], np.ndarray]:
    """The block with the parameters of a published one, its inputs and its output in the case "rand"."""
    with np.load(shared / "golden" / f"{name}.npz") as file:
        data = {key: file[key] for key in file.files}
    family, scope, (single, pair), mask, sub = SYSTEMS[name]
    block = AttentionPairBias(40, data[f"in/{pair}"].shape[-1], 4)
    parameters = {key.removeprefix("param/"): array for key, array in data.items() if key.startswith("param/")}
    load_weights(block, parameters, family, scope=scope, strict=False)  # the other blocks have the same scope
    # the pair representation is updated first in these blocks
    inputs = [torch.from_numpy(data[f"in/{single}"]), torch.from_numpy(data[f"rand/out/{pair}"])]
    return block, [*inputs, None if mask is None else torch.from_numpy(data[f"rand/{mask}"]).bool()], data[f"rand/sub/{sub}"]


def ungated(block: nn.Module) -> Run:
    block.attn.gate = None
    return block


class TestAttentionPairBias(BlockTests, TwoInputTests, PairAsTests):
    cases = published_and_all(MIXES)
    mixes = MIXES

    @pytest.mark.parametrize("name", SYSTEMS)
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
