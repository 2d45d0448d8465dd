"""Template features by name: what is read of them, and what is said about those that do not fit."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from evoattn import PRESETS, EvoformerTrunk, ShapeError, profile, redraw_
from evoattn.config import TemplateConfig
from tests.weights.cases import TEMPLATES

N_SEQ, N_RES, N_TEMPLATES = 3, 6, 2
MULTIMER = {"max_chain": 2, "templates": replace(TEMPLATES, form="average", profile=profile("alphafold2_multimer"))}
Features = dict[str, Tensor]


def trunk(**changes: object) -> EvoformerTrunk:
    return redraw_(EvoformerTrunk(replace(PRESETS["tiny"], **{"templates": TEMPLATES, **changes})).double().eval(), seed=1)


def features(batch: tuple[int, ...] = ()) -> Features:
    known = torch.rand(*batch, N_TEMPLATES, N_RES, 7) > 0.3
    structure = (*batch, N_TEMPLATES, N_RES)
    return {
        "target_feat": torch.randn(*batch, N_RES, 22).double(), "msa_feat": torch.randn(*batch, N_SEQ, N_RES, 49).double(),
        "extra_msa_feat": torch.randn(*batch, 4, N_RES, 25).double(), "residue_index": torch.arange(N_RES).expand(*batch, N_RES),
        "asym_id": torch.tensor([0, 0, 0, 1, 1, 1]).expand(*batch, N_RES),
        "template_aatype": torch.randint(0, 22, structure), "template_all_atom_positions": 8 * torch.randn(*structure, 37, 3).double(),
        "template_all_atom_mask": torch.rand(*structure, 37) > 0.1, "template_mask": torch.tensor([True, True]).expand(*batch, -1),
        "template_torsion_angles_sin_cos": torch.randn(*structure, 7, 2).double(),
        "template_alt_torsion_angles_sin_cos": torch.randn(*structure, 7, 2).double(), "template_torsion_angles_mask": known,
    }  # fmt: skip


def without_templates(given: Features) -> Features:
    return {name: x for name, x in given.items() if not name.startswith("template_")}


@pytest.mark.parametrize("changes", [{}, MULTIMER], ids=["monomer", "multimer"])
def test_batch_and_in_place(changes: dict[str, object]) -> None:
    """A batch is its entries one by one; without gradients all is in place; templates add no row to what is returned."""
    model, given = trunk(**changes), features((2,))
    whole = model(given)
    assert whole.msa.shape == (2, N_SEQ, N_RES, 32)
    with torch.no_grad():
        for index in range(2):
            one = model({name: x[index] for name, x in given.items()})
            for got, expected in zip((one.msa, one.pair, one.single), (whole.msa, whole.pair, whole.single), strict=True):
                torch.testing.assert_close(got, expected[index], rtol=0, atol=1e-10)
    assert not torch.allclose(model(without_templates(given)).pair, whole.pair, atol=1e-3)


def test_no_templates_are_those_that_are_absent() -> None:
    """The monomer without templates, with none of them, and with masked ones: the trunk that has no embedding for them."""
    model, given = trunk(), features()
    plain = EvoformerTrunk(replace(PRESETS["tiny"], templates=None)).double().eval()
    plain.load_state_dict({name: x for name, x in model.state_dict().items() if not name.startswith("template")})
    expected = plain(given).pair
    none = {name: x[:0] if name.startswith("template_") else x for name, x in given.items()}
    masked = {**given, "template_mask": torch.zeros(2).bool(), "template_torsion_angles_mask": torch.zeros(2, N_RES, 7).bool()}
    for case in (without_templates(given), none, masked):
        torch.testing.assert_close(model(case).pair, expected, rtol=0, atol=1e-11)


def test_nan_where_nothing_is_known() -> None:
    model, given = trunk(**MULTIMER), features()
    hidden = {
        **given,
        "template_all_atom_positions": given["template_all_atom_positions"].masked_fill(
            ~given["template_all_atom_mask"][..., None], torch.nan
        ),
        "template_torsion_angles_sin_cos": given["template_torsion_angles_sin_cos"].masked_fill(
            ~given["template_torsion_angles_mask"][..., None], torch.nan
        ),
    }
    out = model(hidden)
    torch.testing.assert_close(out.pair, model(given).pair, rtol=0, atol=1e-11)
    torch.testing.assert_close(out.msa, model(given).msa, rtol=0, atol=1e-11)
    out.pair.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_rows_of_multimer_are_hidden_by_the_first_side_chain_angle() -> None:
    model, given = trunk(**MULTIMER), features()
    masks: list[Tensor] = []
    model.evoformer.register_forward_pre_hook(lambda module, inputs: masks.append(inputs[2]))
    for angle in (2, 3):  # psi, which hides the monomer's, and chi 1
        known = given["template_torsion_angles_mask"].clone()
        known[..., angle] = False
        model({**given, "template_torsion_angles_mask": known})
    assert masks[0][N_SEQ:].any() and not masks[1][N_SEQ:].any()


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Features], Features]:
    return lambda given: {**given, name: change(given[name])}


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: {k: x for k, x in f.items() if k != "template_all_atom_mask"}, r"have template_aatype, but lack template_all_atom_mask"),
        (changed("template_aatype", lambda x: x[..., 1:]), r"features\['template_aatype'\] is torch.int64 \(2, 5\); .*N_res = 6"),
        (changed("template_aatype", lambda x: x.double()), r"features\['template_aatype'\] is torch.float64"),
        (changed("template_aatype", lambda x: x + 22), r"features\['template_aatype'\] has values from .*; allowed are 0 to 21"),
        (changed("template_all_atom_positions", lambda x: x[..., :3, :]), r"\(2, 6, 3, 3\); expected \(2, 6, 37, 3\), or the first 4"),
        (changed("template_all_atom_mask", lambda x: x.double()), r"features\['template_all_atom_mask'\] has dtype torch.float64"),
        (changed("template_mask", lambda x: x[:1]), r"features\['template_mask'\] has shape \(1,\); expected .*\(2,\)"),
        (changed("template_torsion_angles_sin_cos", lambda x: x[..., 0]), r"\(2, 6, 7\); expected floating point \(2, 6, 7, 2\)"),
        (changed("template_torsion_angles_mask", lambda x: x[..., :3]), r"torsion_angles_mask'\] has shape \(2, 6, 3\)"),
    ],
)  # fmt: skip
def test_bad_features(change: Callable[[Features], Features], words: str) -> None:
    with pytest.raises(ShapeError, match=f"(?s)^EvoformerTrunk: .*{words}"):
        trunk()(change(features()))


@pytest.mark.usefixtures("no_type_checks")
def test_bad_chains() -> None:
    with pytest.raises(ShapeError, match=r"features\['asym_id'\] is torch.int64 \(5,\); it must be an integer type \(6,\)"):
        trunk(**MULTIMER)({**features(), "asym_id": torch.zeros(5).long()})


def test_torsion_features_have_the_published_widths() -> None:
    assert TemplateConfig().c_torsion_feat == 57 and TemplateConfig.multimer().c_torsion_feat == 34
