"""The template pair stack against AlphaFold 2's and OpenFold's own numbers, in both orders; and templates in the pair representation."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from evoattn import ShapeError, WeightsError, load_weights, profile, redraw_
from evoattn.blocks import TemplatePointwiseAttention
from evoattn.config import TemplateConfig
from evoattn.stacks import AveragedTemplates, PointwiseTemplates, TemplatePairBlock, TemplatePairStack, Templates
from evoattn.updates import update_
from evoattn.weights.protenix import PAIR
from tests.helpers import Read, assert_golden, assert_golden_gradient
from tests.parity import record
from tests.weights.cases import SCOPE, TEMPLATES, published

Arrays = dict[str, np.ndarray]
PLAIN, MUL_FIRST, AF2 = "openfold_template_pair_block", "openfold_template_pair_block_mulfirst_fused", "af2_template_pair_stack"
AF2_SCOPE = f"{SCOPE}/template_embedding/single_template_embedding/template_pair_stack/__layer_stack_no_state"
CASES = [(PLAIN, "ones"), *((name, case) for name in (PLAIN, MUL_FIRST) for case in ("rand", "pad"))]
MULTIMER = replace(TEMPLATES, form="average", profile=profile("alphafold2_multimer"))


def build(file: Arrays, **switches: Any) -> TemplatePairBlock:
    k = json.loads(str(file["meta_json"]))["kwargs"]
    numerics = profile("openfold_multimer" if k["tri_mul_first"] else "openfold")
    config = TemplateConfig(
        n_blocks=1, c_z=k["c_t"], c_head_tri=k["c_hidden_tri_att"], c_hidden_mul=k["c_hidden_tri_mul"], n_head_tri_start=k["no_heads"],
        n_head_tri_end=k["no_heads"], pair_transition_n=k["pair_transition_n"], profile=replace(numerics, **switches),
    )  # fmt: skip
    return TemplatePairBlock(config).eval()


def load(block: nn.Module, file: Arrays, prefix: str = "param/") -> nn.Module:
    arrays = {name.removeprefix(prefix): array for name, array in file.items() if name.startswith(prefix)}
    first = json.loads(str(file["meta_json"]))["kwargs"]["tri_mul_first"]
    load_weights(block, arrays, "openfold", version="multimer" if first else "monomer", scope="")
    return block


def mask_of(file: Arrays, case: str) -> Tensor:
    return torch.from_numpy(file[f"{case}/mask"]).bool()


@pytest.mark.parametrize(("name", "case"), CASES)
def test_openfold_outputs(name: str, case: str, read: Read) -> None:
    """Templates are a batch axis."""
    file = read(name, f"{case}/out/")
    mask = mask_of(file, case)
    out = load(build(file), file)(torch.from_numpy(file["in/z"]), mask)
    record(name, case, "out/z", assert_golden("z", out, file[f"{case}/out/z"], mask.numpy() if case == "pad" else None))


def test_openfold_sub_blocks(read: Read) -> None:
    """Of the first template only."""
    file = read(PLAIN, "rand/sub/")
    block, z, mask = load(build(file), file), torch.from_numpy(file["in/z"][:1]), mask_of(file, "rand")[:1]
    for child in ("tri_attn_start", "tri_attn_end", "tri_mul_out", "tri_mul_in", "pair_transition"):
        expected = file[f"rand/sub/{PAIR[child]}"]
        record(PLAIN, "rand", f"sub/{PAIR[child]}", assert_golden(child, block.get_submodule(child)(z, mask), expected))
        z = z + torch.from_numpy(expected)
    np.testing.assert_allclose(z, file["rand/out/z"][:1], atol=2e-6)


@pytest.mark.parametrize("name", [PLAIN, MUL_FIRST])
@pytest.mark.parametrize(("case", "kind"), [("rand", "grad"), ("pad", "grad_valid")])
def test_openfold_gradients(name: str, case: str, kind: str, read: Read) -> None:
    file = read(name, f"{case}/{kind}/")
    z, mask = torch.from_numpy(file["in/z"]).requires_grad_(), mask_of(file, case)
    valid = mask.numpy() if case == "pad" else None
    weights = torch.from_numpy(file["in/r_z"]) * (mask.unsqueeze(-1) if case == "pad" else 1.0)
    (gradient,) = torch.autograd.grad(load(build(file), file)(z, mask), z, weights)
    record(name, case, f"{kind}/z", assert_golden_gradient("z", gradient, file[f"{case}/{kind}/z"], valid))


def test_openfold_gradients_of_parameters(read: Read) -> None:
    file = read(PLAIN, "rand/grad_param/")
    block, expected = load(build(file), file), load(build(file), file, "rand/grad_param/")
    (block(torch.from_numpy(file["in/z"]), mask_of(file, "rand")) * torch.from_numpy(file["in/r_z"])).sum().backward()
    for (name, got), (_, gradient) in zip(block.named_parameters(), expected.named_parameters(), strict=True):
        assert got.grad is not None
        record(PLAIN, "rand", f"grad_param/{name}", assert_golden_gradient(name, got.grad, gradient.detach().numpy()))


@pytest.mark.parametrize("name", [PLAIN, MUL_FIRST])
def test_the_other_order_is_refused_and_gives_other_numbers(name: str, read: Read) -> None:
    file = read(name, "rand/out/")
    right = load(build(file), file)
    wrong = TemplatePairStack(replace(TemplateConfig(), profile=profile("openfold")))
    with pytest.raises(WeightsError, match="template_mul_first is False and must be True"):
        load_weights(wrong, {}, "openfold", version="multimer", scope="")
    right.mul_first = not right.mul_first
    with pytest.raises(AssertionError, match="off by up to"):
        assert_golden("z", right(torch.from_numpy(file["in/z"]), mask_of(file, "rand")), file["rand/out/z"])


@pytest.mark.parametrize("case", ["ones", "rand", "pad"])
@pytest.mark.parametrize("in_place", [False, True])
def test_stack_of_alphafold(case: str, in_place: bool, read: Read) -> None:
    file = read(AF2, f"{case}/out")
    stack = TemplatePairStack(TEMPLATES).eval()
    load_weights(stack, published(), scope=AF2_SCOPE)
    z, mask = torch.from_numpy(file["in/pair_act"]), torch.from_numpy(file[f"{case}/pair_mask"]).bool()
    with torch.no_grad():
        out = stack.run_(z.clone(), mask) if in_place else stack(z, mask)
    record(AF2, case, "out/pair_act", assert_golden("out", out, file[f"{case}/out"], mask.numpy() if case == "pad" else None))


def templates(n: int = 3, n_res: int = 6, dtype: torch.dtype = torch.float64) -> Templates:
    atom_mask = torch.rand(n, n_res, 4) > 0.2
    return Templates(torch.randint(0, 22, (n, n_res)), 9 * torch.randn(n, n_res, 4, 3, dtype=dtype), atom_mask, torch.ones(n).bool())


def embedder(config: TemplateConfig) -> nn.Module:
    kind = PointwiseTemplates if config.form == "pointwise" else AveragedTemplates
    return redraw_(kind(config, 24).double().eval(), seed=1)


@pytest.mark.parametrize("config", [TEMPLATES, MULTIMER], ids=["monomer", "multimer"])
def test_templates_that_are_not_there(config: TemplateConfig) -> None:
    """The monomer's are not looked at; where none is left, nothing is added. Multimer embeds an empty one, however many there are."""
    module, z = embedder(config), torch.randn(6, 6, 24, dtype=torch.float64)
    given = templates()
    none = Templates(given.aatype[:0], given.atoms[:0], given.atom_mask[:0], given.mask[:0])
    if config.form == "average":
        empty = Templates.empty(z[0])
        assert not empty.atom_mask.any()
        four = Templates(*(torch.cat([getattr(empty, name)] * 4) for name in ("aatype", "atoms", "atom_mask", "mask")))
        torch.testing.assert_close(module(z, none), module(z, four), rtol=0, atol=1e-12)
        assert not torch.allclose(module(z, none), z)
        return
    assert torch.equal(module(z, none), z)
    hidden = replace(given, mask=torch.tensor([True, False, True]))
    other = replace(hidden, atoms=given.atoms.clone())
    other.atoms[1] += 5
    torch.testing.assert_close(module(z, hidden), module(z, other), rtol=0, atol=0)
    assert not torch.allclose(module(z, hidden), module(z, given))
    assert torch.equal(module(z, replace(given, mask=torch.zeros(3).bool())), z)


@pytest.mark.parametrize("config", [TEMPLATES, MULTIMER], ids=["monomer", "multimer"])
def test_in_place(config: TemplateConfig) -> None:
    module, z, given = embedder(config), torch.randn(6, 6, 24, dtype=torch.float64), templates()
    mask = torch.rand(6, 6) > 0.3
    asym_id = torch.tensor([0, 0, 0, 1, 1, 1])
    expected, owned = module(z, given, mask, asym_id), z.clone()
    out = module.run_(owned, given, mask, asym_id)
    assert out.data_ptr() == owned.data_ptr()
    torch.testing.assert_close(out, expected.detach(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("config", [TEMPLATES, MULTIMER], ids=["monomer", "multimer"])
def test_unknown_atoms_are_not_read(config: TemplateConfig) -> None:
    """But for positions of C-beta in the monomer where the backbone is known and C-beta is not: AlphaFold 2 reads zeros there."""
    module, z, given = embedder(config), torch.randn(6, 6, 24, dtype=torch.float64), templates()
    given.atom_mask[..., 3] = given.atom_mask[..., :3].all(-1)
    other = replace(given, atoms=given.atoms.masked_fill(~given.atom_mask.unsqueeze(-1), 7.0))
    torch.testing.assert_close(module(z, given), module(z, other), rtol=0, atol=1e-12)


def test_pointwise_attention_is_attention_over_templates() -> None:
    """AlphaFold 2 supplement, algorithm 17, pair by pair; whole and slice by slice."""
    block = redraw_(TemplatePointwiseAttention(8, 6, 2, d_head=3).double(), seed=1)
    z, t = torch.randn(5, 5, 8, dtype=torch.float64), torch.randn(3, 5, 5, 6, dtype=torch.float64)
    mask = torch.tensor([True, False, True])
    q, k, v = (layer.weight for layer in (block.attn.q, block.attn.k, block.attn.v))
    expected = torch.zeros_like(z)
    for i in range(5):
        for j in range(5):
            heads = []
            for h in (slice(0, 3), slice(3, 6)):
                logits = torch.stack([(q @ z[i, j])[h] @ (k @ t[s, i, j])[h] for s in (0, 2)]) * 3**-0.5
                a = logits.exp() / logits.exp().sum()
                heads.append(a[0] * (v @ t[0, i, j])[h] + a[1] * (v @ t[2, i, j])[h])
            expected[i, j] = block.attn.out.weight @ torch.cat(heads) + block.attn.out.bias
    torch.testing.assert_close(block(z, t, mask), expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(update_(z.clone(), block, t, mask, memory=1), z + expected, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("no_type_checks")
def test_bad_inputs() -> None:
    block = TemplatePointwiseAttention(8, 6, 2, d_head=3)
    with pytest.raises(ShapeError, match=r"templates has shape \(3, 4, 4, 6\), which does not fit z \(5, 5, 8\); expected \(3, 5, 5, 6\)"):
        block(torch.zeros(5, 5, 8), torch.zeros(3, 4, 4, 6))
    with pytest.raises(ShapeError, match=r"template_mask has shape \(2,\); expected .*N_templ\] = \(3,\)"):
        block(torch.zeros(5, 5, 8), torch.zeros(3, 5, 5, 6), torch.ones(2).bool())


def oracle_of_multimer(module: AveragedTemplates, z: np.ndarray, given: Templates, asym_id: np.ndarray) -> np.ndarray:
    """Features and sums of AlphaFold-Multimer's template embedding (``modules_multimer.py``) in numpy loops, the stack aside."""
    p = {name: x.detach().numpy() for name, x in module.named_parameters()}
    n_templ, n = given.aatype.shape
    aatype, atoms, known = given.aatype.numpy(), given.atoms.numpy(), given.atom_mask.numpy()
    edges = np.linspace(3.25, 50.75, 39) ** 2
    mean = 0.0
    for t in range(n_templ):
        act = np.zeros((n, n, module.config.c_z))
        for i in range(n):
            for j in range(n):
                same = asym_id[i] == asym_id[j]
                atom = [1 if aatype[t, x] == 7 else 3 for x in (i, j)]
                beta = bool(known[t, i, atom[0]] and known[t, j, atom[1]] and same)
                frame = bool(known[t, i, :3].all() and known[t, j, :3].all() and same)
                squared = ((atoms[t, i, atom[0]] - atoms[t, j, atom[1]]) ** 2).sum()
                bins = np.array([beta and low < squared < high for low, high in zip(edges, [*edges[1:], 1e8], strict=True)], float)
                nitrogen, alpha, carbon = atoms[t, i, :3]
                e0 = (carbon - alpha) / np.linalg.norm(carbon - alpha)
                e1 = nitrogen - alpha - e0 * (e0 @ (nitrogen - alpha))
                e1 /= np.linalg.norm(e1)
                local = np.stack([e0, e1, np.cross(e0, e1)]) @ (atoms[t, j, 1] - alpha)
                unit = local / max(np.linalg.norm(local), 1e-6) * frame
                x = z[i, j]
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * p["query_norm.weight"] + p["query_norm.bias"]
                features = {
                    "distances": bins, "beta_known": [beta], "second": np.eye(22)[aatype[t, j]], "first": np.eye(22)[aatype[t, i]],
                    "x": unit[:1], "y": unit[1:2], "z": unit[2:], "known": [frame], "query": x,
                }  # fmt: skip
                act[i, j] = sum(p[f"{name}.weight"] @ np.asarray(value, float) + p[f"{name}.bias"] for name, value in features.items())
        mean = mean + module.norm(module.stack(torch.from_numpy(act))).detach().numpy() / n_templ
    return z + np.maximum(mean, 0) @ p["out.weight"].T + p["out.bias"]


def test_templates_of_multimer() -> None:
    module, z, given = embedder(MULTIMER), torch.randn(6, 6, 24, dtype=torch.float64), templates()
    given.aatype[0, 2] = 7
    asym_id = torch.tensor([0, 0, 0, 0, 1, 1])
    expected = oracle_of_multimer(module, z.numpy(), given, asym_id.numpy())
    np.testing.assert_allclose(module(z, given, None, asym_id).detach().numpy(), expected, atol=1e-9)
    assert not np.allclose(module(z, given).detach().numpy(), expected, atol=1e-3)  # all one chain
