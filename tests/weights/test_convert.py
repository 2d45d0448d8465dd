"""Conversion to safetensors under our names and back: every bit, every name, every array out of scope."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn

from evoattn import (
    EvoformerStack,
    EvoformerTrunk,
    MSAModule,
    MSAModuleConfig,
    PairformerConfig,
    PairformerStack,
    WeightsError,
    load_weights,
    profile,
)
from evoattn.primitives import redraw_
from evoattn.weights import FAMILIES, conversion, convert, identify
from evoattn.weights.canonical import KEPT
from evoattn.weights.sources import open_source
from evoattn.weights.tables import MATRIX, VECTOR, Layout, Rule, by_sources, unmade
from tests.helpers import GOLDEN, Read
from tests.stacks.cases import GOLDEN_BLOCKS, golden_arrays, golden_block, golden_version
from tests.stacks.families import REFERENCES
from tests.weights.cases import EVOFORMER, TRUNK, WITH_TEMPLATES, published

MINI = GOLDEN / "params_model_1_mini.npz"


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal to the bit, NaN included."""
    return a.shape == b.shape and a.dtype == b.dtype and a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()


def arrays(path: Path) -> dict[str, Tensor]:
    source = open_source(path)
    return dict(source.read(source.shapes))


# --- layouts and rules -------------------------------------------------------------------------------------------------------------------

LAYOUTS = [
    (VECTOR, "c"), (MATRIX, "i o"), (Layout("o i -> o i"), "o i"), (Layout("i h d -> (h d) i", h=3), "i h d"),
    (Layout("h d i -> (h d) i", h=3), "h d i"), (Layout("h d o -> o (h d)", h=3), "h d o"), (Layout("h d -> (h d)", h=3), "h d"),
    (Layout("l r o -> o (l r)", l=2), "l r o"), (Layout("i (c t) -> (t c) i", t=2), "i x"), (Layout("o -> o 1"), "o"),
    (Layout("(h t d) i -> (t h d) i", h=3, t=3), "y i"),
]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rules_can_be_undone(data: st.DataObject) -> None:
    """Any layout, layers or none, one source or two, halves swapped or not, any number of parts: what was made gives the arrays again."""
    layout, axes = data.draw(st.sampled_from(LAYOUTS))
    sizes = {axis: data.draw(st.integers(1, 4)) for axis in axes.split()} | {"h": 3, "l": 2, "x": 8, "y": 18}
    shape = [sizes[axis] for axis in axes.split()]
    n_layers = data.draw(st.sampled_from([None, 1, 3]))
    sources = ("a", "b")[: data.draw(st.integers(1, 2))]
    theirs = {name: torch.randn([*([] if n_layers is None else [n_layers]), *shape]) for name in sources}
    rows = len(layout.make(torch.empty(shape))) * len(sources)
    swap = data.draw(st.booleans()) and rows % 2 == 0
    parts = data.draw(st.sampled_from([n for n in (1, 2, 3) if rows % n == 0]))
    layers = [None] if n_layers is None else list(range(n_layers))
    rules = [Rule(f"{layer}.{k}", sources, layout, layer, swap, (k, parts)) for layer in layers for k in range(parts)]
    ours = {rule.name: rule.make(theirs) for rule in rules}
    assert all(value is not None for value in ours.values())
    again = dict(unmade(data.draw(st.permutations(rules)), lambda name: ours[name]))
    assert again.keys() == theirs.keys() and all(torch.equal(again[name], x) for name, x in theirs.items())
    assert sum(x.numel() for x in ours.values()) == sum(x.numel() for x in theirs.values())


def test_parts_and_swaps_are_where_they_should_be() -> None:
    x = torch.arange(6.0).reshape(6, 1)
    packed = [Rule(str(k), ("x",), Layout("(h t d) i -> (t h d) i", h=2, t=3), part=(k, 3)).make({"x": x}) for k in range(3)]
    assert [part.flatten().tolist() for part in packed] == [[0, 3], [1, 4], [2, 5]]  # rows are q, k, v of head 0, then of head 1
    interleaved = Rule("x", ("x",), Layout("(c t) i -> (t c) i", t=2), swap=True).make({"x": x})
    assert interleaved.flatten().tolist() == [1, 3, 5, 0, 2, 4]
    assert Rule("x", ("x",), MATRIX, part=(0, 4)).make({"x": torch.ones(2, 6)}) is None  # six rows are not four parts


# --- whole files -------------------------------------------------------------------------------------------------------------------------


def test_there_and_back(tmp_path: Path) -> None:
    """All 336 arrays of the published file, templates, heads and structure module included."""
    forth = convert(MINI, tmp_path / "ours.safetensors")
    assert (forth.identity.family, forth.identity.version, forth.notice) == ("alphafold2", "monomer", "")
    back = convert(tmp_path / "ours.safetensors", tmp_path / "theirs.npz")
    theirs = arrays(tmp_path / "theirs.npz")
    assert theirs.keys() == published().keys() and len(theirs) == 336
    assert all(same_bits(theirs[name], torch.from_numpy(x)) for name, x in published().items())
    assert (back.converted, back.kept) == (forth.converted, forth.kept)
    assert sorted(os.listdir(tmp_path)) == ["ours.safetensors", "theirs.npz"]


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), bits=st.sampled_from([np.float32, np.float16, np.float64]))
def test_there_and_back_for_any_bits(seed: int, bits: type, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Numbers of any bit pattern, NaN and infinities among them."""
    folder = tmp_path_factory.mktemp("bits")
    draw = np.random.default_rng(seed)
    source = {name: np.frombuffer(draw.bytes(x.size * np.dtype(bits).itemsize), bits).reshape(x.shape) for name, x in published().items()}
    convert(source, folder / "ours.safetensors")
    convert(folder / "ours.safetensors", folder / "theirs.npz")
    theirs = arrays(folder / "theirs.npz")
    assert all(same_bits(theirs[name], torch.from_numpy(x.copy())) for name, x in source.items()) and theirs.keys() == source.keys()


@pytest.mark.parametrize("name", GOLDEN_BLOCKS)
def test_blocks_there_and_back(name: str, tmp_path: Path) -> None:
    """Global attention, fused projections, both orders; to every format that can be written."""
    block, file = golden_block(name)
    theirs = golden_arrays(file)
    convert(theirs, tmp_path / "ours.safetensors", model=block, version=golden_version(name), scope=GOLDEN_BLOCKS[name])
    for ending in (".npz", ".safetensors", ".pt", ".bin", ".bin.zst"):
        convert(tmp_path / "ours.safetensors", tmp_path / f"theirs{ending}")
        again = arrays(tmp_path / f"theirs{ending}")
        assert again.keys() == theirs.keys()
        assert all(same_bits(again[key], torch.from_numpy(array)) for key, array in theirs.items())


# --- what a converted file says and gives ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("converted") / "ours.safetensors"
    convert(MINI, path)
    return path


def test_the_file_names_itself(ours: Path) -> None:
    with safe_open(ours, framework="pt") as file:
        says = file.metadata()
        names = set(file.keys())
    profile = identify(MINI)[0].profile
    assert identify(ours) == identify(MINI)
    assert json.loads(says["evoattn_profile"])["ending_bias"] == profile.ending_bias
    config = json.loads(says["evoattn_config"])
    assert config["evoformer"]["n_head_msa_row"] == TRUNK.evoformer.n_head_msa_row and config["max_relative"] == TRUNK.max_relative
    assert json.loads(says["evoattn_model"]) == {"": "EvoformerTrunk"} and "CC BY" in says["evoattn_licence"]
    parameters = {name for name, _ in EvoformerTrunk(WITH_TEMPLATES).named_parameters()}
    assert parameters <= names and all(name.startswith(KEPT) for name in names - parameters)


def test_loading_it_is_loading_the_published_file(ours: Path) -> None:
    expected, trunk = EvoformerTrunk(WITH_TEMPLATES), EvoformerTrunk(WITH_TEMPLATES)
    load_weights(expected, MINI)
    account = load_weights(trunk, ours)  # strictly: what has no place is out of scope by name
    assert all(torch.equal(a, b) for a, b in zip(trunk.parameters(), expected.parameters(), strict=True))
    assert len(account.used) == len(list(trunk.parameters())) and len(account.outside) == 59 and not account.unexpected
    stack = EvoformerStack(EVOFORMER)  # a part of the trunk is found by its names
    load_weights(stack, ours, scope="evoformer")
    other = EvoformerStack(EVOFORMER)
    load_weights(other, ours)
    assert expected.extra_stack is not None
    assert all(torch.equal(a, b) for a, b in zip(stack.parameters(), expected.evoformer.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(other.parameters(), expected.evoformer.parameters(), strict=True))


def test_a_part_that_is_in_several_places(ours: Path) -> None:
    block = EvoformerStack(EVOFORMER).blocks[0].tri_mul_out
    with pytest.raises(WeightsError, match=r"a TriangleMultiplication in several places; choose one as scope=: 'evoformer\.blocks\.0"):
        load_weights(block, ours)
    load_weights(block, ours, scope="evoformer.blocks.1.tri_mul_out")


def test_another_profile_is_refused(ours: Path) -> None:
    wrong = replace(EVOFORMER, profile=replace(EVOFORMER.profile, ending_bias="ik"))
    with pytest.raises(WeightsError, match=r"ending_bias is 'ik' and must be 'ki'"):
        load_weights(EvoformerStack(wrong), ours)


# --- refusals ----------------------------------------------------------------------------------------------------------------------------


def test_existing_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ours.safetensors"
    path.write_text("precious")
    with pytest.raises(WeightsError, match=r"ours\.safetensors exists; .*force=True"):
        convert(MINI, path)
    assert path.read_text() == "precious"
    convert(MINI, path, force=True)
    assert identify(path)


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(path: Path, tensors: Iterator[tuple[str, Tensor]], metadata: dict[str, str]) -> None:
        path.write_text("half")
        raise OSError("no space left on device")

    monkeypatch.setattr(conversion, "_write_safetensors", stops)
    (tmp_path / "ours.safetensors").write_text("before")
    with pytest.raises(OSError, match="no space"):
        convert(MINI, tmp_path / "ours.safetensors", force=True)
    assert os.listdir(tmp_path) == ["ours.safetensors"] and (tmp_path / "ours.safetensors").read_text() == "before"


def without(beginning: str) -> Callable[[], dict[str, Any]]:
    return lambda: {name: x for name, x in published().items() if not name.startswith(beginning)}


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        (published, {}, r"ours\.what does not end in a format that can be written here: \.safetensors\.$"),
        (without("alphafold/alphafold_iteration/evoformer/left_single"), {}, r"does not fill this EvoformerTrunk, nothing was written: .*"),
        (without("alphafold/alphafold_iteration/evoformer/evoformer_iteration"), {}, "no model can be built for the mapping .*model=."),
        (published, {"family": "nobody"}, "there is no family 'nobody'; there are alphafold2"),
        (published, {"version": "multimer_v3"}, "version is 'multimer_v3'; by its names, the mapping can be alphafold2 'monomer'"),
        (published, {"model": EvoformerTrunk(replace(TRUNK, evoformer=replace(EVOFORMER, n_blocks=1)))}, "takes .1, .* more blocks"),
    ],
)
def test_what_is_refused(source: Callable[[], dict[str, Any]], options: dict[str, Any], words: str, tmp_path: Path) -> None:
    name = "ours.what" if words.startswith(r"ours\.what") else "ours.safetensors"
    with pytest.raises(WeightsError, match=words):
        convert(source(), tmp_path / name, **options)
    assert os.listdir(tmp_path) == []


def test_back_to_a_format_without_bfloat16(tmp_path: Path) -> None:
    convert({name: torch.from_numpy(x).bfloat16() for name, x in published().items()}, tmp_path / "ours.safetensors")
    with pytest.raises(WeightsError, match=r"is bfloat16, which an npz cannot hold; write \.safetensors or \.pt"):
        convert(tmp_path / "ours.safetensors", tmp_path / "theirs.npz")
    assert os.listdir(tmp_path) == ["ours.safetensors"]


def test_terms_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "alphafold2", replace(FAMILIES["alphafold2"], forbids_conversion=True, licence="terms of use"))
    assert convert(MINI, tmp_path / "ours.safetensors").notice == (
        "AlphaFold 2: terms of use. What was written falls under the same terms: do not pass it on."
    )


def test_groups_share_no_source() -> None:
    """On which undoing rests: an array belongs to one group of rules."""
    trunk = EvoformerTrunk(TRUNK)
    groups = by_sources(FAMILIES["alphafold2"].table(trunk, "s", set()))
    sources = [source for group in groups for source in group]
    assert len(sources) == len(set(sources))


# --- the other families -----------------------------------------------------------------------------------------------------------------


def small_stacks(name: str) -> nn.ModuleDict:
    """MSA module and Pairformer, each width another number, so that no two sizes can be confused."""
    pair = {"c_z": 24, "n_head_tri_start": 3, "n_head_tri_end": 3, "c_head_tri": 6, "c_hidden_mul": 20, "pair_transition_n": 2}
    pair |= {"profile": profile(name)}
    msa = MSAModuleConfig(
        n_blocks=3, c_m=16, n_head_msa=5, c_head_msa=4, c_hidden_opm=7, msa_transition_n=3, c_msa_feat=9, c_single_inputs=11, **pair
    )
    pairformer = PairformerConfig(n_blocks=2, c_s=40, n_head_single=4, c_head_single=7, single_transition_n=3, **pair)
    if name == "rosettafold3":
        msa = replace(msa, n_blocks=4)
    return nn.ModuleDict({"msa_module": MSAModule(msa), "pairformer": PairformerStack(pairformer)})


def as_published(name: str, version: str, available: tuple[str, ...] = ()) -> tuple[nn.ModuleDict, dict[str, Tensor]]:
    """Small stacks with random parameters, and a file of them under the family's names, with an array out of scope."""
    family = FAMILIES[name]
    model = redraw_(small_stacks(family.versions[version]), seed=1)
    theirs: dict[str, Tensor] = {"diffuser/head//weights" if name == "alphafold3" else "distogram.weight": torch.randn(3, 4)}
    for part in model.values():
        rules = family.table(part, family.scope(part), available)
        theirs |= {key: x.detach() for key, x in unmade(rules, dict(part.named_parameters()).__getitem__)}
    return model, theirs


KIN = {
    "alphafold3": ("alphafold3", ()), "boltz": ("boltz1", ()), "boltz, 2": ("boltz2", ("pre_norm_s.",)), "protenix": ("protenix", ()),
    "openfold3": ("bias_ik", ()), "rosettafold3": ("rosettafold3", ()),
}  # fmt: skip


@pytest.mark.parametrize("name", KIN)
def test_stacks_of_every_family(name: str, tmp_path: Path) -> None:
    """The file is identified, its sizes are read off its shapes, it is converted and goes back; and both forms load alike."""
    family = name.partition(",")[0]
    version, available = KIN[name]
    model, theirs = as_published(family, version, available)
    torch.save({"state_dict": theirs}, tmp_path / "theirs.ckpt")
    assert version in [answer.version for answer in identify(tmp_path / "theirs.ckpt") if answer.family == family]
    done = convert(tmp_path / "theirs.ckpt", tmp_path / "ours.safetensors", version=version)
    assert (done.identity.family, done.kept) == (family, 1) and bool(done.notice) == (family == "alphafold3")
    convert(tmp_path / "ours.safetensors", tmp_path / "again.safetensors")
    again = arrays(tmp_path / "again.safetensors")
    assert again.keys() == theirs.keys() and all(same_bits(again[key], x) for key, x in theirs.items())
    for part in ("msa_module", "pairformer"):
        for file in ("theirs.ckpt", "ours.safetensors"):
            empty = redraw_(small_stacks(FAMILIES[family].versions[version])[part], seed=2)
            load_weights(empty, tmp_path / file, version=version)
            assert all(torch.equal(a, b) for a, b in zip(empty.parameters(), model[part].parameters(), strict=True))
    with safe_open(tmp_path / "ours.safetensors", framework="pt") as file:
        config = json.loads(file.metadata()["evoattn_config"])
    assert config["pairformer"] == json.loads(json.dumps(asdict(model["pairformer"].config)))
    assert config["msa_module"] == json.loads(json.dumps(asdict(model["msa_module"].config)))


@pytest.mark.parametrize("name", REFERENCES)
def test_published_blocks_there_and_back(name: str, read: Read, tmp_path: Path) -> None:
    """State dicts of the reference implementations themselves."""
    reference = REFERENCES[name]
    theirs = {key.removeprefix("param/"): array for key, array in read(name, "param/").items() if key.startswith("param/")}
    of = {"model": reference.build(), "family": reference.family, "version": reference.version, "scope": reference.scope}
    convert(theirs, tmp_path / "ours.safetensors", **of)
    convert(tmp_path / "ours.safetensors", tmp_path / "again.npz")
    again = arrays(tmp_path / "again.npz")
    assert again.keys() == theirs.keys() and all(same_bits(again[key], torch.from_numpy(x)) for key, x in theirs.items())
