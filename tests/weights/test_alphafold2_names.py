"""AlphaFold 2 and OpenFold at their published sizes: the names and shapes that the tables ask for are those of the published classes."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from evoattn import PRESETS, EvoformerConfig, EvoformerStack, EvoformerTrunk, ExtraMSAStack, load_weights, preset, profile
from evoattn.config import TemplateConfig, TrunkConfig
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.stacks import TemplatePairBlock, TemplatePairStack
from evoattn.weights import FAMILIES, convert, identify
from evoattn.weights.alphafold2 import FAMILY, ITERATION, TRUNK
from evoattn.weights.tables import unmade
from tests.weights.cases import EVOFORMER, WITH_TEMPLATES, published
from tests.weights.test_full_size_names import Dump, Shapes, asked_for, dumped

TWO = {"n_blocks": 2}
MULTIMER = profile("alphafold2_multimer")
FUSED = ("evoformer_iteration/triangle_multiplication_outgoing/projection//weights",
         "evoformer_iteration/triangle_multiplication_incoming/projection//weights")  # fmt: skip
OPENFOLD_FUSED = ("blocks.0.pair_stack.tri_mul_out.linear_ab_p.weight",)


def extra() -> EvoformerConfig:
    return replace(EvoformerConfig.extra_msa(), **TWO)


def without_single() -> nn.Module:
    return EvoformerStack(EvoformerConfig(**TWO))


DUMPS = [
    Dump("evoformer monomer", "alphafold2", without_single, "", left_out="single_activations"),
    Dump("extra monomer", "alphafold2", lambda: ExtraMSAStack(extra()), ""),
    Dump("evoformer multimer_v3", "alphafold2", lambda: EvoformerStack(EvoformerConfig(**TWO, profile=MULTIMER)), "",
         left_out="single_activations", available=tuple(f"/{name}" for name in FUSED)),
    Dump("template_pair_stack", "alphafold2", lambda: TemplatePairStack(TemplateConfig()), "template_pair_stack/__layer_stack_no_state"),
    Dump("OpenFold evoformer", "openfold", lambda: EvoformerStack(EvoformerConfig(n_blocks=1)), ""),
    Dump("OpenFold extra (first part)", "openfold", lambda: ExtraMSAStack(replace(extra(), n_blocks=1)), "", available=OPENFOLD_FUSED),
]  # fmt: skip


@pytest.mark.parametrize("dump", DUMPS, ids=lambda dump: dump.title)
def test_names_and_shapes(dump: Dump, shared: Path) -> None:
    asked = {name.removeprefix("/"): shape for name, shape in asked_for(dump).items() if not re.search(dump.left_out, name)}
    listed = {name.replace("//", "/"): shape for name, shape in dumped(shared / "reference" / "systems.md", dump.title).items()}
    assert asked == listed


def test_every_name_of_the_published_file() -> None:
    """The names of model 1 are those of its look-alike; what is left has a word for what it is."""
    names = {name.replace("//", "/") for name in published()}
    model_1 = asked_for(Dump("", "alphafold2", lambda: EvoformerTrunk(preset("af2_model_1").with_blocks(2)), TRUNK))
    assert model_1.keys() == {name for name in names if name.startswith(f"{TRUNK}/")}
    model_3 = asked_for(Dump("", "alphafold2", lambda: EvoformerTrunk(preset("af2_model_3").with_blocks(2)), TRUNK))
    assert model_3.keys() == {name for name in model_1 if "/template_" not in name}
    assert model_3.items() <= model_1.items()
    heads = asked_for(Dump("", "alphafold2", lambda: MaskedMSAHead(256), f"{ITERATION}/masked_msa_head"))
    heads |= asked_for(Dump("", "alphafold2", lambda: DistogramHead(128), f"{ITERATION}/distogram_head"))
    assert heads.keys() == {name for name in names if "/masked_msa_head/" in name or "/distogram_head/" in name}
    assert heads[f"{ITERATION}/masked_msa_head/logits/weights"] == (256, 23)
    assert heads[f"{ITERATION}/distogram_head/half_logits/weights"] == (128, 64)
    others = names - model_1.keys() - heads.keys()
    assert {FAMILY.part(name) for name in others} == {"structure module", "pLDDT head", "resolved atoms head"}


@pytest.mark.parametrize("name", ["af2_model_1", "af2_multimer_v3"])
def test_shapes_of_the_embedding(name: str) -> None:
    asked = asked_for(Dump("", "alphafold2", lambda: EvoformerTrunk(preset(name)), "trunk"))
    shapes = {key.removeprefix("trunk/").removesuffix("/weights"): shape for key, shape in asked.items() if key.endswith("/weights")}
    multimer = name == "af2_multimer_v3"
    target = 21 if multimer else 22
    expected = {
        "preprocess_1d": (target, 256), "preprocess_msa": (49, 256), "left_single": (target, 128), "right_single": (target, 128),
        "prev_pos_linear": (15, 128), "extra_msa_activations": (25, 64), "single_activations": (256, 384),
        "template_single_embedding": (34 if multimer else 57, 256), "template_projection": (256, 256),
    }  # fmt: skip
    if multimer:
        single = "template_embedding/single_template_embedding"
        expected |= {"~_relative_encoding/position_activations": (73, 128), "template_embedding/output_linear": (64, 128)}
        widths = [(39, 64), (64,), (22, 64), (22, 64), (64,), (64,), (64,), (64,), (128, 64)]
        expected |= {f"{single}/template_pair_embedding_{i}": width for i, width in enumerate(widths)}
        assert asked[f"trunk/{single}/query_embedding_norm/scale"] == (128,)
        blocks = f"trunk/{single}/template_embedding_iteration/"
        assert asked[f"{blocks}triangle_attention_ending_node/attention/query_w"] == (2, 64, 4, 16)
    else:
        expected |= {"pair_activiations": (65, 128), "template_embedding/single_template_embedding/embedding2d": (88, 64)}
        assert asked["trunk/template_embedding/attention/query_w"] == (128, 4, 16)
        assert asked["trunk/template_embedding/attention/output_w"] == (4, 16, 128)
    stacks = ("evoformer_iteration/", "extra_msa_stack/", "template_pair_stack/", "template_embedding_iteration/")
    assert expected == {key: shape for key, shape in shapes.items() if not any(part in key for part in stacks)}
    assert asked["trunk/evoformer_iteration/msa_transition/transition1/weights"] == (48, 256, 1024)
    assert asked["trunk/extra_msa_stack/msa_column_global_attention/attention/key_w"] == (4, 64, 8)


def test_multimer_files_before_version_3_have_plain_projections() -> None:
    plain = asked_for(Dump("", "alphafold2", lambda: EvoformerTrunk(preset("af2_multimer_v2").with_blocks(2)), TRUNK))
    assert any("/left_projection/" in name for name in plain) and not any("outgoing/projection/" in name for name in plain)


def openfold_names(module: Callable[[], nn.Module], *available: str) -> Shapes:
    return asked_for(Dump("", "openfold", module, available=available))


EMBEDDERS = {
    "input_embedder.linear_tf_m": (256, 22), "input_embedder.linear_msa_m": (256, 49), "input_embedder.linear_tf_z_i": (128, 22),
    "input_embedder.linear_tf_z_j": (128, 22), "input_embedder.linear_relpos": (128, 65), "recycling_embedder.linear": (128, 15),
    "recycling_embedder.layer_norm_m": (256,), "recycling_embedder.layer_norm_z": (128,), "extra_msa_embedder.linear": (64, 25),
    "evoformer.linear": (384, 256),
}  # fmt: skip
TEMPLATES = {
    "template_pair_embedder.linear": (64, 88), "template_pair_stack.layer_norm": (64,), "template_single_embedder.linear_1": (256, 57),
    "template_single_embedder.linear_2": (256, 256), "template_pointwise_att.mha.linear_q": (64, 128),
    "template_pointwise_att.mha.linear_k": (64, 64), "template_pointwise_att.mha.linear_v": (64, 64),
    "template_pointwise_att.mha.linear_o": (128, 64),
}  # fmt: skip
MULTIMER_TEMPLATES = {
    **{f"template_pair_embedder.{name}": (64, width) for name, width in {
        "dgram_linear": 39, "aatype_linear_1": 22, "aatype_linear_2": 22, "query_embedding_linear": 128, "pseudo_beta_mask_linear": 1,
        "x_linear": 1, "y_linear": 1, "z_linear": 1, "backbone_mask_linear": 1,
    }.items()},
    "template_pair_embedder.query_embedding_layer_norm": (128,), "template_pair_stack.layer_norm": (64,), "linear_t": (128, 64),
    "template_single_embedder.template_single_embedder": (256, 34), "template_single_embedder.template_projector": (256, 256),
}  # fmt: skip


@pytest.mark.parametrize("name", ["openfold", "openfold_multimer"])
def test_embedders_of_openfold(name: str) -> None:
    multimer = name == "openfold_multimer"
    available = ("template_embedder.template_single_embedder.template_projector.weight",) if multimer else ()
    asked = openfold_names(lambda: EvoformerTrunk(preset(name)), *available)
    expected = dict(EMBEDDERS)
    if multimer:
        expected |= {
            f"input_embedder.{part}": (width, 21)
            for part, width in {"linear_tf_m": 256, "linear_tf_z_i": 128, "linear_tf_z_j": 128}.items()
        }
        expected["input_embedder.linear_relpos"] = (128, 73)
    expected |= {f"template_embedder.{part}": shape for part, shape in (MULTIMER_TEMPLATES if multimer else TEMPLATES).items()}
    assert expected == {key.removesuffix(".weight"): x for key, x in asked.items() if key.endswith(".weight") and ".blocks." not in key}
    assert len({key.split(".")[2] for key in asked if key.startswith("evoformer.blocks.")}) == 48
    assert len({key.split(".")[2] for key in asked if key.startswith("extra_msa_stack.blocks.")}) == 4
    blocks = "template_embedder.template_pair_stack.blocks.1."
    assert asked[f"{blocks}tri_att_end.mha.linear_q.weight"] == asked[f"{blocks}tri_mul_in.linear_a_p.weight"] == (64, 64)


def test_names_of_openfolds_first_release() -> None:
    """As its own conversion of old names has them (``convert_deprecated_v1_keys``)."""
    replaced = {
        "template_angle_embedder": "template_single_embedder", "core.msa_transition": "msa_transition",
        "core.outer_product_mean": "outer_product_mean", "core.tri_": "pair_stack.tri_",
        "core.pair_transition": "pair_stack.pair_transition",
    }  # fmt: skip
    new = openfold_names(lambda: EvoformerTrunk(preset("openfold").with_blocks(2)))
    old = openfold_names(
        lambda: EvoformerTrunk(preset("openfold").with_blocks(2)), "evoformer.blocks.0.core.msa_transition.linear_1.weight"
    )
    converted = {}
    for name, shape in old.items():
        key = re.sub("|".join(map(re.escape, replaced)), lambda found: replaced[found[0]], name)
        converted[f"template_embedder.{key}" if key.startswith("template") else key] = shape
    assert converted == new != old


def small(name: str) -> nn.Module:
    """The trunk of a preset, with the sizes of the look-alike; OpenFold has as many heads for columns as for rows, and for both nodes."""
    whole = preset(name)
    stacks = {part: replace(getattr(WITH_TEMPLATES, part), profile=whole.evoformer.profile) for part in ("evoformer", "extra", "templates")}
    assert whole.templates is not None
    stacks["templates"] = replace(stacks["templates"], form=whole.templates.form)
    if name.startswith("openfold"):
        heads = {"n_head_msa_column": EVOFORMER.n_head_msa_row, "n_head_tri_end": EVOFORMER.n_head_tri_start}
        stacks |= {part: replace(stacks[part], **heads) for part in ("evoformer", "extra")}
    return EvoformerTrunk(replace(whole, **stacks))


FILES = {
    "af2_multimer_v3": tuple(f"/{name}" for name in FUSED), "af2_multimer_v2": (), "openfold": (),
    "openfold_multimer": ("linear_ab_p.", "template_projector."),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_whole_file_goes_where_it_belongs(name: str) -> None:
    """Into a fresh trunk, and from names and shapes alone; with parts that are not ours beside it; and not into another family's."""
    family = FAMILIES["alphafold2" if name.startswith("af2") else "openfold"]
    trunk, fresh = small(name), small(name)
    parameters = dict(trunk.named_parameters())
    scope = family.scope(trunk)
    available = {f"{scope}/{key}" for key in FUSED} | {
        f"{scope}/{part}/triangle_multiplication_{edges}/projection//weights"
        for part in ("extra_msa_stack", "template_embedding/single_template_embedding/template_embedding_iteration")
        for edges in ("outgoing", "incoming")
    } if name == "af2_multimer_v3" else set(FILES[name])  # fmt: skip
    arrays = {key: x.detach() for key, x in unmade(family.table(trunk, scope, available), parameters.__getitem__)}
    other = "alphafold/alphafold_iteration/structure_module//x" if family.name == "alphafold2" else "structure_module.x.weight"
    account = load_weights(fresh, {**arrays, other: torch.zeros(2)})
    assert account.outside == (other,) and account.parts == ("structure module: 1",)
    for got, expected in zip(fresh.parameters(), trunk.parameters(), strict=True):
        assert torch.equal(got, expected)
    (identity,) = identify(arrays)
    assert identity.family == family.name and identity.version.split("_")[0] == ("multimer" if "multimer" in name else "monomer")
    assert family.build is not None
    with torch.device("meta"):
        built = family.build({key: tuple(x.shape) for key, x in arrays.items()}, identity.version)
    assert {key: x.shape for key, x in built.named_parameters()} == {key: x.shape for key, x in parameters.items()}


@pytest.mark.parametrize("name", ["openfold", "openfold_no_templates", "openfold_multimer"])
@pytest.mark.parametrize("release_1", [False, True])
def test_a_whole_file_of_openfold_tells_its_sizes(name: str, release_1: bool) -> None:
    """At the published sizes; what no shape tells is as published too."""
    config, multimer = preset(name).with_blocks(2), name == "openfold_multimer"
    available = ({"blocks.0.core.x.weight"} if release_1 else set()) | ({"template_projector."} if multimer else set())
    with torch.device("meta"):
        trunk = EvoformerTrunk(config)
        arrays = dict(unmade(FAMILIES["openfold"].table(trunk, "", available), dict(trunk.named_parameters()).__getitem__))
        built = FAMILIES["openfold"].build({key: tuple(x.shape) for key, x in arrays.items()}, "multimer" if multimer else "monomer")
    assert {key: x.shape for key, x in built.named_parameters()} == {key: x.shape for key, x in trunk.named_parameters()}
    assert isinstance(built, EvoformerTrunk) and asdict(built.config) == asdict(widths_written_out(config))


def widths_written_out(config: TrunkConfig) -> TrunkConfig:
    """The width of each head as a number, where None divides the channels."""
    parts = {"evoformer": config.evoformer, "extra": config.extra, "templates": config.templates}
    for part, stack in parts.items():
        if stack is not None:
            widths = {"c_head_tri": stack.c_z // stack.n_head_tri_start}
            widths |= {} if part == "templates" else {"c_head_msa": stack.c_m // stack.n_head_msa_row}
            parts[part] = replace(stack, **widths)
    return replace(config, **parts)


@pytest.mark.parametrize("name", ["openfold", "openfold_multimer"])
def test_a_whole_file_of_openfold_there_and_back(name: str, tmp_path: Path) -> None:
    trunk = small(name)
    table = FAMILIES["openfold"].table(trunk, "", set(FILES[name]))
    arrays = {key: x.detach() for key, x in unmade(table, dict(trunk.named_parameters()).__getitem__)}
    arrays["structure_module.x.weight"] = torch.randn(2, 3)
    torch.save(arrays, tmp_path / "theirs.pt")
    done = convert(tmp_path / "theirs.pt", tmp_path / "ours.safetensors")
    assert (done.identity.family, done.kept) == ("openfold", 1)
    convert(tmp_path / "ours.safetensors", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert again.keys() == arrays.keys() and all(torch.equal(again[key], x) for key, x in arrays.items())


def test_heads_take_the_published_parameters() -> None:
    msa, pair = MaskedMSAHead(32), DistogramHead(24)
    load_weights(msa, published())
    load_weights(pair, published())
    arrays = published()
    assert torch.equal(msa.logits.weight.T, torch.from_numpy(arrays[f"{ITERATION}/masked_msa_head/logits//weights"]))
    assert torch.equal(pair.half_logits.bias, torch.from_numpy(arrays[f"{ITERATION}/distogram_head/half_logits//bias"]))
    assert set(PRESETS) >= {f"af2_model_{model}" for model in range(1, 6)}
    assert TemplatePairBlock(preset("af2_multimer_v3").templates or TemplateConfig()).mul_first
    assert not TemplatePairBlock(preset("af2_model_1").templates or TemplateConfig()).mul_first
