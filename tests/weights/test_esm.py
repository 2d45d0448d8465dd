"""ESMFold and the MSA Transformer: full-size names, published files small, there and back."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from evoattn import (
    ESMFoldConfig,
    ESMFoldTrunk,
    MSATransformer,
    MSATransformerConfig,
    PairformerConfig,
    PairformerStack,
    WeightsError,
    load_weights,
    profile,
    redraw_,
)
from evoattn.stacks import ESMFoldBlock, MSATransformerBlock
from evoattn.weights import FAMILIES, convert, identify
from evoattn.weights.family import Family
from evoattn.weights.sources import open_source
from evoattn.weights.tables import unmade

ESMFOLD, MSA_TRANSFORMER = FAMILIES["esmfold"], FAMILIES["msa_transformer"]
TINY_TRUNK = ESMFoldConfig(n_blocks=2, c_s=12, c_z=8, n_head_single=3, n_head_tri_start=2, n_head_tri_end=4, c_hidden_mul=6)
TINY = MSATransformerConfig(n_blocks=2, c_m=12, n_head=3, c_hidden_transition=10, max_seqs=6, max_positions=9, c_row_position=12)
FILE = "encoder.sentence_encoder."
LINEAR = {"weight": (768, 768), "bias": (768,)}


def theirs(family: Family, model: nn.Module, scope: str, available: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """The arrays of the family that hold this model, by its own name table backwards."""
    return dict(unmade(family.table(model, scope, available), lambda name: model.get_parameter(name).detach()))


def shapes(arrays: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in arrays.items()}


# --- full size ---------------------------------------------------------------------------------------------------------------------------


def dump_of_block(shared: Path) -> dict[str, tuple[int, ...]]:
    """The block in the list of names that was printed from ESMFold itself."""
    text = (shared / "reference" / "systems.md").read_text(encoding="utf-8").split("## ESMFold trunk block\n")[1].split("```")[0]
    lines = [line.split(" ", 1) for line in text.strip().splitlines()]
    return {name: tuple(int(size) for size in shape.strip("(),").split(",")) for name, shape in lines}


def test_full_size_esmfold(shared: Path) -> None:
    """48 times the printed block, and what stands beside the blocks."""
    with torch.device("meta"):
        got = shapes(theirs(ESMFOLD, ESMFoldTrunk(ESMFoldConfig()), "trunk"))
    expected = {f"trunk.blocks.{i}.{name}": shape for i in range(48) for name, shape in dump_of_block(shared).items()}
    expected |= {"trunk.pairwise_positional_embedding.embedding.weight": (66, 128), "trunk.recycle_disto.weight": (15, 128)}
    expected |= {f"trunk.recycle_{name}_norm.{leaf}": (c,) for name, c in (("s", 1024), ("z", 128)) for leaf in ("weight", "bias")}
    assert got == expected


def layer_of_msa_transformer() -> dict[str, tuple[int, ...]]:
    norm = {"layer_norm.weight": (768,), "layer_norm.bias": (768,)}
    attention = {f"layer.{x}_proj.{leaf}": shape for x in ("q", "k", "v", "out") for leaf, shape in LINEAR.items()}
    feed = {"layer.fc1.weight": (3072, 768), "layer.fc1.bias": (3072,), "layer.fc2.weight": (768, 3072), "layer.fc2.bias": (768,)}
    parts = {"row_self_attention": attention, "column_self_attention": attention, "feed_forward_layer": feed}
    return {f"{part}.{name}": shape for part, names in parts.items() for name, shape in {**norm, **names}.items()}


@pytest.mark.parametrize("published", [True, False])
def test_full_size_msa_transformer(published: bool) -> None:
    """The names of ``esm_msa1b_t12_100M_UR50S.pt``, and of a state dict of ESM's module, which has the contact head too."""
    inner, outer = (FILE, "encoder.") if published else ("", "")
    with torch.device("meta"):
        model = MSATransformer(MSATransformerConfig())
        whole = model.encoder if published else model
        got = shapes(theirs(MSA_TRANSFORMER, whole, "", (f"{inner}embed_tokens.weight",)))
    expected = {f"{inner}layers.{i}.{name}": shape for i in range(12) for name, shape in layer_of_msa_transformer().items()}
    expected |= {f"{inner}embed_tokens.weight": (33, 768), f"{inner}embed_positions.weight": (1026, 768)}
    expected[f"{inner}msa_position_embedding"] = (1, 1024, 1, 768)
    for place in ("before", "after"):
        expected |= {f"{inner}emb_layer_norm_{place}.{leaf}": (768,) for leaf in ("weight", "bias")}
    expected |= {f"{outer}lm_head.{name}": (768,) for name in ("dense.bias", "layer_norm.weight", "layer_norm.bias")}
    expected |= {f"{outer}lm_head.dense.weight": (768, 768), f"{outer}lm_head.weight": (33, 768), f"{outer}lm_head.bias": (33,)}
    if not published:
        expected |= {"contact_head.regression.weight": (1, 144), "contact_head.regression.bias": (1,)}
    assert got == expected


@pytest.mark.parametrize(("family", "model"), [(ESMFOLD, ESMFoldTrunk(TINY_TRUNK)), (MSA_TRANSFORMER, MSATransformer(TINY))])
def test_the_shapes_of_a_file_tell_the_config(family: Family, model: nn.Module) -> None:
    found = shapes(theirs(family, model, family.scope(model)))
    assert family.build is not None
    with torch.device("meta"):
        built = family.build(found, next(iter(family.versions)))
    assert {name: p.shape for name, p in built.named_parameters()} == {name: p.shape for name, p in model.named_parameters()}
    assert replace(built.config, c_head_single=None) == TINY_TRUNK if family is ESMFOLD else built.config == TINY


# --- published files, small --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def esmfold_file(tmp_path: Path) -> tuple[ESMFoldTrunk, Path]:
    """A trunk, and a checkpoint that holds it as the published one does, with parts of the model that are not ours."""
    trunk = redraw_(ESMFoldTrunk(TINY_TRUNK), seed=1)
    arrays = theirs(ESMFOLD, trunk, "trunk") | {"trunk.structure_module.linear_in.weight": torch.ones(2), "esm_s_combine": torch.ones(3)}
    torch.save({"cfg": argparse.Namespace(lr=1e-3), "model": arrays}, tmp_path / "esmfold_3B_v1.pt")
    return trunk, tmp_path / "esmfold_3B_v1.pt"


def test_esmfold_file(esmfold_file: tuple[ESMFoldTrunk, Path]) -> None:
    trunk, path = esmfold_file
    assert [(found.family, found.profile.name) for found in identify(path)] == [("esmfold", "esmfold")]
    fresh = ESMFoldTrunk(TINY_TRUNK)
    account = load_weights(fresh, path)
    assert same(fresh, trunk) and account.parts == ("embedding of the language model: 1", "structure module: 1")
    block = ESMFoldBlock(TINY_TRUNK)
    load_weights(block, path, scope="trunk.blocks.1")
    assert same(block, trunk.blocks[1])


def test_heads_are_interleaved_in_the_file(esmfold_file: tuple[ESMFoldTrunk, Path]) -> None:
    """Rows h 3d to h 3d + d are q of head h, then its k, then its v."""
    trunk, path = esmfold_file
    source = open_source(path)
    ((_, packed),) = source.read(["trunk.blocks.0.seq_attention.proj.weight"])
    attention, d = trunk.blocks[0].single_attn.attn, 4
    for head in range(3):
        for index, layer in enumerate((attention.q, attention.k, attention.v)):
            start = 3 * d * head + d * index
            assert torch.equal(packed[start : start + d], layer.weight[d * head : d * (head + 1)])


def msa_transformer_files(folder: Path, config: MSATransformerConfig) -> tuple[MSATransformer, Path, Path, dict[str, Tensor]]:
    """A model, its two files as published, and the state dict of ESM's module; written without our table of the file."""
    model = redraw_(MSATransformer(config), seed=1)
    of_module = theirs(MSA_TRANSFORMER, model, "")
    heads = {name: array for name, array in of_module.items() if name.startswith("contact_head.")}
    other = {"row_self": "column_self", "column_self": "row_self"}
    in_file = {}
    for name, array in of_module.items():
        for word, exchanged in other.items():
            if f".{word}" in name:
                name = name.replace(f".{word}", f".{exchanged}")
                break
        if name not in heads:
            in_file[f"encoder.{name}" if name.startswith("lm_head.") else f"{FILE}{name}"] = array
    main, regression = folder / "esm_msa1b_t12_100M_UR50S.pt", folder / "esm_msa1b_t12_100M_UR50S-contact-regression.pt"
    torch.save({"args": argparse.Namespace(arch="msa_transformer"), "model": in_file}, main)
    torch.save({"model": heads}, regression)
    return model, main, regression, of_module


@pytest.mark.parametrize("c_row_position", [12, 1])
def test_msa_transformer_files(tmp_path: Path, c_row_position: int) -> None:
    """Row and column attention have each other's names in the file, and their own in a state dict of the module."""
    config = replace(TINY, c_row_position=c_row_position)
    model, main, regression, of_module = msa_transformer_files(tmp_path, config)
    fresh = MSATransformer(config)
    load_weights(fresh.encoder, main)
    load_weights(fresh.contact_head, regression)
    assert same(fresh, model)
    again = MSATransformer(config)
    load_weights(again, of_module)
    assert same(again, model)
    again = MSATransformer(config)
    assert load_weights(again.encoder, of_module).parts == ("contact head: 2",)
    load_weights(again.contact_head, of_module)
    assert same(again, model)
    block = MSATransformerBlock(config)
    load_weights(block, main, scope=f"{FILE}layers.1")
    assert same(block, model.encoder.blocks[1])
    for source in (main, of_module):
        assert [(found.family, found.version) for found in identify(source)] == [
            ("msa_transformer", "msa1" if c_row_position == 1 else "msa1b")
        ]


def test_the_exchanged_names_are_a_module_of_their_own(tmp_path: Path) -> None:
    """Taken for a state dict of the module, the file would load, and give other numbers."""
    model, main, _, _ = msa_transformer_files(tmp_path, TINY)
    stripped = {name.removeprefix(FILE).removeprefix("encoder."): x for name, x in open_source(main).read(open_source(main).shapes)}
    wrong = MSATransformer(TINY)
    load_weights(wrong.encoder, stripped)
    assert torch.equal(wrong.encoder.blocks[0].msa_row.attn.q.weight, model.encoder.blocks[0].msa_column.attn.q.weight)
    assert not same(wrong.encoder, model.encoder)


def test_there_and_back(tmp_path: Path, esmfold_file: tuple[ESMFoldTrunk, Path]) -> None:
    """Our safetensors, and the family's names again, bit for bit."""
    trunk, esmfold = esmfold_file
    model, main, regression, of_module = msa_transformer_files(tmp_path, TINY)
    torch.save(of_module, tmp_path / "module.pt")
    cases = (
        (esmfold, None, trunk), (tmp_path / "module.pt", None, model), (main, model.encoder, model.encoder),
        (regression, model.contact_head, model.contact_head),
    )  # fmt: skip
    for number, (path, given, truth) in enumerate(cases):
        ours, back = tmp_path / f"{number}.safetensors", tmp_path / f"{number}.pt"
        convert(path, ours, model=given)
        convert(ours, back)
        before, after = (dict(source.read(source.shapes)) for source in map(open_source, (path, back)))
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        fresh = redraw_(type(truth)(truth.config), seed=2) if hasattr(truth, "config") else None
        if fresh is not None:
            load_weights(fresh, ours)
            assert same(fresh, truth)


def test_other_families_and_profiles_are_refused(tmp_path: Path, esmfold_file: tuple[ESMFoldTrunk, Path]) -> None:
    _, path = esmfold_file
    with pytest.raises(WeightsError, match="The MSA Transformer"):
        load_weights(MSATransformer(TINY), path, family="msa_transformer")
    with pytest.raises(WeightsError, match="ESMFold"):
        load_weights(PairformerStack(PairformerConfig(n_blocks=1, c_s=12, c_z=8, n_head_single=3)), path)
    with pytest.raises(WeightsError, match="ending_bias is 'ik' and must be 'ki'"):
        load_weights(ESMFoldTrunk(replace(TINY_TRUNK, profile=replace(profile("esmfold"), ending_bias="ik"))), path)
    with pytest.raises(WeightsError, match=r"Extra blocks: the model has no trunk\.blocks\.1"):
        load_weights(ESMFoldTrunk(replace(TINY_TRUNK, n_blocks=1)), path)
    with pytest.raises(WeightsError, match=r"Missing blocks: the source has nothing for blocks\.2"):
        load_weights(ESMFoldTrunk(replace(TINY_TRUNK, n_blocks=3)), path)


def test_an_encoder_of_other_rows_says_so(tmp_path: Path) -> None:
    _, main, _, _ = msa_transformer_files(tmp_path, TINY)
    with pytest.raises(WeightsError, match=r"rows\.weight is \(6, 1\)"):
        load_weights(MSATransformer(replace(TINY, c_row_position=1)).encoder, main)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
