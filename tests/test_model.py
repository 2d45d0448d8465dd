"""The trunk: AlphaFold 2's full model up to its representations, recycling, padding, and what is said about features that do not fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evoattn import PRESETS, ConfigError, EvoformerTrunk, Recycled, ShapeError, load_weights, make_features, read_msa
from evoattn.primitives import attention as attention_modules
from evoattn.primitives.init import redraw_
from evoattn.weights import FAMILIES
from tests.helpers import Read, assert_golden, golden
from tests.parity import record
from tests.stacks.test_golden import attention_of_alphafold
from tests.weights.cases import TRUNK, WITH_TEMPLATES, published

Features = dict[str, Tensor]
TINY = replace(PRESETS["tiny"], max_relative=3)
N_SEQ, N_EXTRA, N_RES = 4, 5, 7


def tiny_trunk() -> EvoformerTrunk:
    trunk = EvoformerTrunk(TINY).double().eval()
    redraw_(trunk, seed=1)
    return trunk


def tiny_features(batch: tuple[int, ...] = ()) -> Features:
    """Random features with holes in both alignments and a masked residue."""
    msa_mask = torch.rand(*batch, N_SEQ, N_RES) > 0.2
    msa_mask[..., 0, :] = True
    seq_mask = torch.ones(*batch, N_RES, dtype=torch.bool)
    seq_mask[..., 2] = False
    return {
        "target_feat": torch.randn(*batch, N_RES, 22, dtype=torch.float64),
        "residue_index": torch.arange(N_RES).expand(*batch, N_RES).clone(),
        "msa_feat": torch.randn(*batch, N_SEQ, N_RES, 49, dtype=torch.float64),
        "extra_msa_feat": torch.randn(*batch, N_EXTRA, N_RES, 25, dtype=torch.float64),
        "seq_mask": seq_mask,
        "msa_mask": msa_mask,
        "extra_msa_mask": torch.rand(*batch, N_EXTRA, N_RES) > 0.2,
    }


def everything(trunk: EvoformerTrunk, features: Features, **settings: Any) -> list[Tensor]:
    out = trunk(features, **settings)
    return [out.msa, out.pair, out.single]


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0.0, atol=1e-11 * max(1.0, y.abs().max().item()))


class Watch:
    """What goes into a module and what comes out of it."""

    def __init__(self, module: nn.Module) -> None:
        self.inputs: tuple[Any, ...] = ()
        self.out: Any = None
        module.register_forward_hook(self.look)

    def look(self, module: nn.Module, inputs: tuple[Any, ...], out: Any) -> None:
        self.inputs, self.out = inputs, out


def alphafold_features(file: dict[str, np.ndarray]) -> Features:
    b = {key.removeprefix("batch/"): torch.from_numpy(array) for key, array in file.items() if key.startswith("batch/")}
    residues = torch.nn.functional.one_hot(b["extra_msa"].long(), 23).float()
    extra = [residues, b["extra_has_deletion"].unsqueeze(-1), b["extra_deletion_value"].unsqueeze(-1)]
    masks = {name: b[name].bool() for name in ("seq_mask", "msa_mask", "extra_msa_mask")}
    return {**{name: b[name] for name in ("target_feat", "residue_index", "msa_feat")}, "extra_msa_feat": torch.cat(extra, -1), **masks}


def alphafold_previous(file: dict[str, np.ndarray]) -> Recycled:
    """C-beta positions, C-alpha for glycine (residue type 7): atoms 3 and 1 of the 37."""
    positions = torch.from_numpy(file["batch/prev_pos"])
    glycine = torch.from_numpy(file["batch/aatype"] == 7).unsqueeze(-1)
    beta = torch.where(glycine, positions[:, 1], positions[:, 3])
    return Recycled(torch.from_numpy(file["batch/prev_msa_first_row"]), torch.from_numpy(file["batch/prev_pair"]), beta)


EMBEDDINGS = {  # layer of the reference -> ours
    "preprocess_1d": "target_msa", "preprocess_msa": "msa", "left_single": "target_left", "right_single": "target_right",
    "pair_activiations": "relative_position", "prev_msa_first_row_norm": "recycling.msa_norm", "prev_pair_norm": "recycling.pair_norm",
    "prev_pos_linear": "recycling.distance", "extra_msa_activations": "extra_msa", "single_activations": "evoformer.single",
}  # fmt: skip
TEMPLATE_LAYERS = {"template_single_embedding": "template_rows.embedding", "template_projection": "template_rows.projection"}
FULL = {"af2_full_model_1": WITH_TEMPLATES, "af2_full_model_3": TRUNK}


def alphafold_templates(file: dict[str, np.ndarray]) -> Features:
    """With the torsion angles as the reference embedded them: those of atoms that all lie at the origin are rounding."""
    b = {key.removeprefix("batch/template_"): torch.from_numpy(array) for key, array in file.items() if key.startswith("batch/template_")}
    types, angles, others, known = torch.from_numpy(file["sub/template_single_embedding/in"]).split([22, 14, 14, 7], dim=-1)
    torch.testing.assert_close(types.argmax(-1), b["aatype"].long())
    return {
        "template_aatype": b["aatype"], "template_mask": b["mask"].bool(),
        "template_all_atom_positions": b["all_atom_positions"], "template_all_atom_mask": b["all_atom_masks"].bool(),
        "template_torsion_angles_sin_cos": angles.unflatten(-1, (7, 2)),
        "template_alt_torsion_angles_sin_cos": others.unflatten(-1, (7, 2)), "template_torsion_angles_mask": known.bool(),
    }  # fmt: skip


@pytest.mark.parametrize("name", FULL)
def test_full_model_of_alphafold(name: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of the embedding, both stacks in and out, and the representations, from the published parameters' look-alike.

    The rows of the templates in model 1 are not masked at padded residues, where the rules for masks differ: so it is run under its own.
    """
    file = read(name, "out/")
    trunk = EvoformerTrunk(FULL[name]).eval()
    load_weights(trunk, published(), strict=trunk.templates is not None)
    assert trunk.extra_stack is not None
    with_templates = trunk.templates is not None
    features = alphafold_features(file) | (alphafold_templates(file) if with_templates else {})
    if with_templates:
        monkeypatch.setattr(attention_modules, "attention", attention_of_alphafold)
    layers = EMBEDDINGS | (TEMPLATE_LAYERS if with_templates else {})
    steps = {theirs: Watch(trunk.get_submodule(ours)) for theirs, ours in layers.items()}
    embedding = Watch(trunk.templates) if trunk.templates is not None else None
    extra = Watch(trunk.extra_stack.blocks[0]), Watch(trunk.extra_stack.blocks[-1])
    evoformer = Watch(trunk.evoformer.blocks[0]), Watch(trunk.evoformer.blocks[-1])
    out = trunk(features, previous=alphafold_previous(file))

    residues, extra_rows, rows = (features[key].numpy() for key in ("seq_mask", "extra_msa_mask", "msa_mask"))
    pairs, all_rows = residues[:, None] & residues[None], rows
    if with_templates:
        all_rows = np.concatenate([rows, features["template_torsion_angles_mask"][..., 2].numpy()])

    def compare(part: str, got: Tensor, valid: np.ndarray | None = None) -> None:
        record(name, "", part, assert_golden(part, got, file[part], valid))

    for key, step in steps.items():
        compare(f"sub/{key}/out", step.out, residues if key == "single_activations" else None)
        if f"sub/{key}/in" in file and key != "pair_activiations":
            compare(f"sub/{key}/in", step.inputs[0])
    if embedding is not None:
        compare("sub/template_embedding/query_embedding", embedding.inputs[0])
        compare("sub/template_embedding/out", embedding.out - embedding.inputs[0], pairs)
    for stack, blocks, mask in (("__layer_stack_no_state", extra, extra_rows), ("__layer_stack_no_state_1", evoformer, all_rows)):
        compare(f"sub/{stack}/in_msa", blocks[0].inputs[0])
        compare(f"sub/{stack}/in_pair", blocks[0].inputs[1], pairs)
        compare(f"sub/{stack}/out_msa", blocks[1].out[0], mask)
        compare(f"sub/{stack}/out_pair", blocks[1].out[1], pairs)
    compare("out/msa", out.msa, rows)
    compare("out/msa_first_row", out.msa[0], residues)
    compare("out/pair", out.pair, pairs)
    compare("out/single", out.single, residues)


def multimer(file: dict[str, np.ndarray], **changes: Any) -> tuple[EvoformerTrunk, Features, Recycled]:
    """AlphaFold-Multimer v3's trunk, its sizes read off the file's arrays, and what it was run on; `changes` are of features."""
    arrays = {key.removeprefix("param/"): array for key, array in file.items() if key.startswith("param/")}
    with torch.device("meta"):
        built = FAMILIES["alphafold2"].build({name: array.shape for name, array in arrays.items()}, "multimer_v3")
    trunk = EvoformerTrunk(built.config).eval()
    load_weights(trunk, arrays)
    b = {key.removeprefix("batch/"): torch.from_numpy(array) for key, array in file.items() if key.startswith("batch/")}
    angles, known = b["template_chi_angles"], b["template_chi_mask"].bool()
    nothing = angles.new_zeros(*angles.shape[:-1], 3)  # omega, phi and psi are none of its features
    torsions = torch.cat([torch.stack([nothing, nothing], -1), torch.stack([angles.sin(), angles.cos()], -1)], -2)
    features = {
        **{name: b[name] for name in ("residue_index", "asym_id", "entity_id", "sym_id", "msa_feat", "extra_msa_feat")},
        **{name: b[name].bool() for name in ("seq_mask", "msa_mask", "extra_msa_mask", "template_all_atom_mask")},
        "target_feat": torch.nn.functional.one_hot(b["aatype"].long(), 21).float(), "template_aatype": b["template_aatype"],
        "template_all_atom_positions": b["template_all_atom_positions"], "template_torsion_angles_sin_cos": torsions,
        "template_alt_torsion_angles_sin_cos": torsions, "template_torsion_angles_mask": torch.cat([nothing.bool(), known], -1),
    }  # fmt: skip
    return trunk, features | changes, alphafold_previous(file)


def test_full_model_of_multimer() -> None:
    """Chains of two entities, one in two copies, and two templates: relative positions, templates, their rows, and the representations."""
    file = golden("af2_multimer_full")
    trunk, features, previous = multimer(file)
    assert trunk.templates is not None and trunk.template_rows is not None
    relative, rows, templates = Watch(trunk.relative_position), Watch(trunk.template_rows.embedding), Watch(trunk.templates)
    out = trunk(features, previous=previous)
    steps = {
        "sub/position_activations/out": relative.out, "sub/template_single_embedding/out": rows.out,
        "sub/template_embedding/out": templates.out - templates.inputs[0], "out/msa": out.msa, "out/msa_first_row": out.msa[0],
        "out/pair": out.pair, "out/single": out.single,
    }  # fmt: skip
    for part, got in steps.items():
        record("af2_multimer_full", "", part, assert_golden(part, got, file[part]))


@pytest.mark.parametrize("name", ["asym_id", "entity_id", "sym_id", "template_aatype"])
def test_multimer_sees_its_chains_and_templates(name: str) -> None:
    file = golden("af2_multimer_full")
    trunk, features, previous = multimer(file, **{name: torch.from_numpy(np.roll(file[f"batch/{name}"], 1, axis=-1))})
    with torch.no_grad(), pytest.raises(AssertionError, match="off by up to"):
        assert_golden("pair", trunk(features, previous=previous).pair, file["out/pair"])


def swap_template_axes(features: Features) -> Features:
    return {key: x.flip(-1) if key == "template_aatype" else x for key, x in features.items()}


def drop_template_rows(features: Features) -> Features:
    key = "template_torsion_angles_mask"
    return {**features, key: torch.zeros_like(features[key])}


def hide_a_template(features: Features) -> Features:
    return {**features, "template_mask": torch.tensor([True, False])}


@pytest.mark.parametrize("mutate", [swap_template_axes, drop_template_rows, hide_a_template, None])
def test_mutants_with_templates_are_rejected(
    mutate: Callable[[Features], Features] | None, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = read("af2_full_model_1", "out/")
    monkeypatch.setattr(attention_modules, "attention", attention_of_alphafold)
    trunk = EvoformerTrunk(WITH_TEMPLATES).eval()
    load_weights(trunk, published())
    features = alphafold_features(file) | alphafold_templates(file)
    with torch.no_grad():  # in place
        out = trunk(features if mutate is None else mutate(features), previous=alphafold_previous(file))
    residues = features["seq_mask"].numpy()
    if mutate is None:
        assert_golden("single", out.single, file["out/single"], residues)
        return
    with pytest.raises(AssertionError, match="off by up to"):
        assert_golden("single", out.single, file["out/single"], residues)


def test_relative_position_is_a_projected_one_hot() -> None:
    """AlphaFold 2 supplement, algorithms 4 and 5, on indices with gaps, in no order, and of the width of a chain jump."""
    embed = tiny_trunk().relative_position
    index = torch.tensor([0, 5, 2, 1, 200, 201, 3])
    onehot = torch.zeros(7, 7, 7, dtype=torch.float64)
    for i, a in enumerate(index.tolist()):
        for j, b in enumerate(index.tolist()):
            onehot[i, j, min(max(a - b, -3), 3) + 3] = 1.0
    assert_same([embed(index)], [embed.linear(onehot)])


def test_bins_of_recycled_distances() -> None:
    """15 bins from 3.25 A, 1.25 A apart, the last one open; what is nearer is in none (AlphaFold 2 supplement, algorithm 32)."""
    distances = [0.0, 3.2, 3.3, 4.4, 4.6, 19.4, 19.6, 20.8, 500.0]
    positions = torch.zeros(len(distances), 3, dtype=torch.float64)
    positions[:, 1] = torch.tensor(distances)
    bins = tiny_trunk().recycling.distogram(positions)[0]
    assert bins.sum(-1).tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert bins[2:].argmax(-1).tolist() == [0, 0, 1, 12, 13, 14, 14]


def test_recycles_are_passes() -> None:
    """N recycles are N + 1 passes, each given the first row and the pair representation of the one before, and nothing else."""
    trunk, features = tiny_trunk(), tiny_features()
    earlier = Recycled(*(9 * torch.randn(shape, dtype=torch.float64) for shape in ((N_RES, 32), (N_RES, N_RES, 16), (N_RES, 3))))
    for start in (None, earlier):
        given = start
        for recycles in range(3):
            out = trunk(features, previous=given)
            assert_same([out.msa, out.pair, out.single], everything(trunk, features, recycles=recycles, previous=start))
            given = Recycled(out.msa[0].detach(), out.pair.detach())
    once, twice = everything(trunk, features), everything(trunk, features, recycles=1)
    assert not torch.allclose(once[1], twice[1])


def test_gradients_flow_through_the_last_pass_only() -> None:
    trunk, features = tiny_trunk(), tiny_features()
    with torch.no_grad():
        first = trunk(features)
    previous = Recycled(first.msa[0], first.pair)
    gradients = []
    for settings in ({"recycles": 1}, {"previous": previous}):
        total = torch.stack([x.square().sum() for x in everything(trunk, features, **settings)]).sum()
        gradients.append(list(torch.autograd.grad(total, list(trunk.parameters()))))
    assert_same(*gradients)


def test_the_first_pass_starts_from_zeros() -> None:
    trunk, features = tiny_trunk(), tiny_features()
    zeros = Recycled(torch.zeros(N_RES, 32, dtype=torch.float64), torch.zeros(N_RES, N_RES, 16, dtype=torch.float64))
    coincident = replace(zeros, positions=torch.zeros(N_RES, 3, dtype=torch.float64))  # AlphaFold 2 starts with all atoms at the origin
    for previous in (zeros, coincident):
        assert_same(everything(trunk, features, previous=previous), everything(trunk, features))


def test_every_parameter_gets_a_gradient() -> None:
    """Also in a first pass, which has no positions to recycle."""
    trunk = tiny_trunk()
    torch.stack([x.square().sum() for x in everything(trunk, tiny_features())]).sum().backward()
    for name, parameter in trunk.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or name in ("recycling.distance.weight", "recycling.msa_norm.weight", "recycling.pair_norm.weight")


@pytest.mark.parametrize(("fill", "recycles"), [(torch.nan, 0), (torch.inf, 1)])
def test_padding_changes_nothing(fill: float, recycles: int) -> None:
    """Residues and sequences full of NaN at the end: no valid output, no gradient of a feature or a parameter notices."""
    trunk, features = tiny_trunk(), tiny_features()
    previous = Recycled(torch.randn(N_RES, 32, dtype=torch.float64), torch.randn(N_RES, N_RES, 16, dtype=torch.float64))
    n = slice(N_RES)
    padded = {name: pad(x, name, fill) for name, x in features.items()}
    same = Recycled(pad(previous.msa_first_row, "target_feat", fill), pad(previous.pair, "pair", fill))
    results = []
    for given, before in ((features, previous), (padded, same)):
        wanted = [given[name].requires_grad_() for name in ("target_feat", "msa_feat", "extra_msa_feat")]
        out = trunk(given, previous=before, recycles=recycles)
        assert all(x.isfinite().all() for x in (out.msa, out.pair, out.single))
        valid = [out.msa[:N_SEQ, n], out.pair[n, n], out.single[n]]
        total = torch.stack([x.square().sum() for x in valid]).sum()
        target, msa, extra, *of_parameters = torch.autograd.grad(total, [*wanted, *trunk.parameters()])
        assert all(g.isfinite().all() for g in (target, msa, extra))
        results.append([*valid, target[n], msa[:N_SEQ, n], extra[:N_EXTRA, n], *of_parameters])
    assert_same(*results)


def pad(x: Tensor, name: str, fill: float) -> Tensor:
    """Two more sequences and three more residues, masked in masks; the residue axes by the name of the feature."""
    first = {"target_feat": 0, "residue_index": 0, "seq_mask": 0, "pair": 0}.get(name, 1)
    shape = list(x.shape)
    shape[first] += 3
    if first == 1:
        shape[0] += 2
    if name == "pair":
        shape[1] += 3
    bigger = torch.full(shape, fill if x.is_floating_point() else 0, dtype=x.dtype)
    bigger[tuple(slice(size) for size in x.shape)] = x
    return bigger


def test_order_of_sequences() -> None:
    """Only the query's place matters, and no place among the extra sequences."""
    trunk, features = tiny_trunk(), tiny_features()
    order, extra = torch.tensor([0, 3, 1, 2]), torch.tensor([4, 2, 0, 1, 3])
    permuted = {**features, **{name: features[name][order] for name in ("msa_feat", "msa_mask")}}
    permuted |= {name: features[name][extra] for name in ("extra_msa_feat", "extra_msa_mask")}
    msa, pair, single = everything(trunk, features)
    assert_same(everything(trunk, permuted), [msa[order], pair, single])


@pytest.mark.parametrize("batch", [(2,), (2, 1)])
def test_batch_equals_a_loop(batch: tuple[int, ...]) -> None:
    trunk, features = tiny_trunk(), tiny_features(batch)
    together = everything(trunk, features, recycles=1)
    for index in np.ndindex(batch):
        alone = everything(trunk, {name: x[index] for name, x in features.items()}, recycles=1)
        assert_same([x[index] for x in together], alone)


@pytest.mark.parametrize("masked", [False, True])
def test_no_extra_sequences(masked: bool) -> None:
    """None and only masked ones are the same; so is a trunk built with an extra stack to one fed without masks."""
    trunk, features = tiny_trunk(), tiny_features()
    hidden = everything(trunk, {**features, "extra_msa_mask": torch.zeros(N_EXTRA, N_RES, dtype=torch.bool)})
    none = {**features, "extra_msa_feat": features["extra_msa_feat"][:0], "extra_msa_mask": features["extra_msa_mask"][:0]}
    if not masked:
        del none["extra_msa_mask"]
    assert_same(everything(trunk, none), hidden)


@pytest.mark.parametrize("text", [">q\nMKVLAAGIVGLC\n", ">q\nM\n", ">q\nMKVL\n>a\nMRVL\n"])
def test_from_a_file(text: str, tmp_path: Path) -> None:
    """A single sequence, a single residue, two sequences: from file to finite representations, in float32 and bfloat16."""
    path = tmp_path / "family.fasta"
    path.write_text(text)
    msa = read_msa(path)
    for dtype in (torch.float32, torch.bfloat16):
        trunk = redraw_(EvoformerTrunk(PRESETS["tiny"]), seed=1).to(dtype).eval()
        out = trunk(make_features(msa, dtype=dtype), recycles=1)
        assert out.msa.shape == (msa.n_seq, msa.n_res, 32) and out.pair.shape == (msa.n_res, msa.n_res, 16)
        assert out.single.shape == (msa.n_res, 24)
        assert all(x.dtype == dtype and x.isfinite().all() for x in (out.msa, out.pair, out.single))


def without(*names: str) -> Callable[[Features], Features]:
    return lambda features: {name: x for name, x in features.items() if name not in names}


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Features], Features]:
    return lambda features: {**features, name: change(features[name])}


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("msa_feat", "residue_index"), r"features lack residue_index, msa_feat; make_features\(read_msa\(path\)\) has all"),
        (without("extra_msa_feat"), r"features lack extra_msa_feat"),
        (changed("msa_feat", lambda x: x[..., :-1]), r"features\['msa_feat'\] has shape \(4, 7, 48\); expected .*channels = 49"),
        (changed("msa_feat", lambda x: x[:, :-1]), r"features\['msa_feat'\] has shape \(4, 6, 49\) .*'residue_index'\] \(7,\).*must agree"),
        (changed("target_feat", lambda x: x[None]), r"features\['target_feat'\] has shape \(1, 7, 22\) .*batch axes and N_res must agree"),
        (changed("residue_index", lambda x: x[:-1]), r"features\['target_feat'\] has shape \(7, 22\) .*'residue_index'\] \(6,\)"),
        (changed("residue_index", lambda x: x.double()), r"features\['residue_index'\] has dtype torch.float64; it must be an integer"),
        (changed("seq_mask", lambda x: x.double()), r"features\['seq_mask'\] has dtype torch.float64; masks are torch.bool.*mask.bool\(\)"),
        (changed("seq_mask", lambda x: x[:-1]), r"features\['seq_mask'\] has shape \(6,\); expected .*N_res\] = \(7,\)"),
        (changed("msa_mask", lambda x: x[:-1]), r"features\['msa_mask'\] has shape \(3, 7\); expected .*\(4, 7\)"),
        (changed("extra_msa_mask", lambda x: x.T), r"features\['extra_msa_mask'\] has shape \(7, 5\); expected .*N_extra, N_res\]"),
        (changed("msa_feat", lambda x: x.long()), r"features\['msa_feat'\] has dtype torch.int64; it must be floating"),
        (changed("msa_feat", lambda x: x.float()), r"features\['msa_feat'\] is torch.float32 on cpu, the parameters are torch.float64"),
        (changed("target_feat", lambda x: x.to("meta")), r"features\['target_feat'\] is torch.float64 on meta.*\.to\("),
        (lambda f: {**f, "msa_feat": f["msa_feat"][:0], "msa_mask": f["msa_mask"][:0]}, r"features\['msa_feat'\] has no rows; the query"),
    ],
)  # fmt: skip
def test_bad_features(change: Callable[[Features], Features], words: str) -> None:
    with pytest.raises(ShapeError, match=f"(?s)^EvoformerTrunk: {words}"):
        tiny_trunk()(change(tiny_features()))


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((6, 32), (7, 7, 16), None), r"previous\.msa_first_row has shape \(6, 32\); expected \(7, 32\)"),
        (((7, 32), (7, 7, 15), None), r"previous\.pair has shape \(7, 7, 15\); expected \(7, 7, 16\)"),
        (((7, 32), (7, 7, 16), (7, 37, 3)), r"previous\.positions has shape \(7, 37, 3\); expected \(7, 3\)"),
    ],
)
def test_bad_previous(shapes: tuple[tuple[int, ...] | None, ...], words: str) -> None:
    previous = Recycled(*(None if shape is None else torch.zeros(shape, dtype=torch.float64) for shape in shapes))
    with pytest.raises(ShapeError, match=f"^EvoformerTrunk: {words}"):
        tiny_trunk()(tiny_features(), previous=previous)


def test_negative_recycles() -> None:
    with pytest.raises(ConfigError, match=r"EvoformerTrunk: recycles is -1; it must be 0 \(one pass\) or more"):
        tiny_trunk()(tiny_features(), recycles=-1)


def test_features_are_not_changed() -> None:
    features = tiny_features()
    features["msa_feat"][1, 3] = torch.nan
    features["msa_mask"][1, 3] = False
    before = {name: x.clone() for name, x in features.items()}
    tiny_trunk()(features, recycles=1)
    assert features.keys() == before.keys()
    for name, x in features.items():
        torch.testing.assert_close(x, before[name], rtol=0, atol=0, equal_nan=True)


def test_trunk_without_extra_stack() -> None:
    """Needs no extra features, and has the parameters of the other one but for the extra stack's."""
    trunk, small = tiny_trunk(), EvoformerTrunk(replace(TINY, extra=None)).double()
    assert small(without("extra_msa_feat", "extra_msa_mask")(tiny_features())).pair.shape == (N_RES, N_RES, 16)
    assert {name for name, _ in small.named_parameters()} == {name for name, _ in trunk.named_parameters() if not name.startswith("extra")}
