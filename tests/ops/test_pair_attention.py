"""pair_attention(): pair features as keys and values, against loops in float64 and against keys and values written out."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from evoattn.errors import BackendError, ShapeError
from evoattn.ops import attention, merge_attention, pair_attention, tiles
from tests.helpers import assert_within_twice, worst
from tests.ops import oracle
from tests.ops.cases import grid

BACKENDS = ["streaming", "reference"]


@dataclass(frozen=True)
class Case:
    """As in cases.py; `pair` is written as the batch axes that the pair features have."""

    batch: tuple[int, ...] = (2,)
    q: int = 5
    k: int = 7
    heads: int = 2
    kv_heads: int = 2
    d: int = 4
    dv: int = 4
    c: int = 3
    pair: tuple[int, ...] = (2,)
    keys: bool = True
    biases: tuple[tuple[int, ...], ...] = ()
    mask: tuple[int, ...] | None = None
    scale: float | None = None


CASES = {
    "no batch": Case((), pair=()),
    "values only": Case(keys=False, biases=((1, 2, 5, 7),), mask=(2, 1, 1, 7)),
    "one row for the alignment": Case((2, 3), 6, 6, pair=(2, 1), biases=((2, 1, 2, 6, 6),), mask=(2, 3, 1, 1, 6)),
    "shared by all": Case((2, 2), pair=(1, 1), mask=(2, 1, 1, 5, 7)),
    "mask per head": Case(mask=(2, 2, 5, 7), biases=((2, 2, 5, 7), (2, 1, 1, 7))),
    "one key head, other widths": Case((3,), 4, 9, 3, 1, 5, 2, 6, pair=(3,), scale=0.3),
    "one position": Case((2,), 1, 1, 1, 1, 1, 1, 1, pair=(1,)),
}


def make(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """The differentiable inputs and the gradients of the outputs: the same numbers in every dtype."""
    torch.manual_seed(5)
    shapes = {
        "q": (*case.batch, case.q, case.heads, case.d),
        "k": (*case.batch, case.k, case.kv_heads, case.d),
        "v": (*case.batch, case.k, case.kv_heads, case.dv),
        "pair": (*case.pair, case.q, case.k, case.c),
    }
    shapes |= {"pair_queries": (*case.batch, case.q, case.heads, case.c)} if case.keys else {}
    shapes |= {f"biases[{n}]": shape for n, shape in enumerate(case.biases)}
    shapes |= {"grad_out": (*case.batch, case.q, case.heads, case.dv), "grad_pair_out": (*case.batch, case.q, case.heads, case.c)}
    return {name: grid(torch.randn(shape) / 2).to(dtype).requires_grad_() for name, shape in shapes.items()}


def make_mask(case: Case) -> Tensor | None:
    """Key 0 is hidden from everybody in the first batch entry, query 1 sees nothing where the mask has queries."""
    if case.mask is None:
        return None
    torch.manual_seed(6)
    mask = torch.rand(case.mask) < 0.7
    mask[..., -1] = True
    mask[0, ..., 0] = False
    if case.mask[-2] > 1:
        mask[..., 1, :] = False
    return mask


def plain(inputs: dict[str, Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Logits and averages with nothing folded away, in the dtype of the inputs."""
    logits = torch.einsum("...qhd,...khd->...hqk", inputs["q"] * scale, inputs["k"])
    if "pair_queries" in inputs:
        logits = logits + torch.einsum("...qhc,...qkc->...hqk", inputs["pair_queries"] * scale, inputs["pair"])
    for name in inputs:
        logits = logits + inputs[name] if name.startswith("biases") else logits
    mask = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask.expand_as(logits)
    empty = ~mask.any(-1, keepdim=True)
    weights = torch.softmax(logits.masked_fill(~(mask | empty), -torch.inf), -1).masked_fill(empty, 0.0)
    return torch.einsum("...hqk,...khd->...qhd", weights, inputs["v"]), torch.einsum("...hqk,...qkc->...qhc", weights, inputs["pair"])


def results(inputs: dict[str, Tensor], out: Tensor, pair_out: Tensor) -> dict[str, Tensor]:
    wanted = [name for name in inputs if not name.startswith("grad")]
    grads = torch.autograd.grad([out, pair_out], [inputs[name] for name in wanted], [inputs["grad_out"], inputs["grad_pair_out"]])
    return {"out": out, "pair_out": pair_out} | dict(zip(wanted, grads, strict=True))


def call(inputs: dict[str, Tensor], mask: Tensor | None, scale: float | None, backend: str) -> tuple[Tensor, Tensor]:
    biases = [x for name, x in inputs.items() if name.startswith("biases")]
    return pair_attention(
        inputs["q"], inputs["k"], inputs["v"], inputs["pair"], pair_queries=inputs.get("pair_queries"), biases=biases, mask=mask,
        scale=scale, backend=backend,
    )  # fmt: skip


def unchanged(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return inputs


def check(case: Case, dtype: torch.dtype, backend: str, mutate: Callable[[dict[str, Tensor]], dict[str, Tensor]] = unchanged) -> None:
    """Outputs and all gradients are as close to the oracle as plain torch is; `mutate` makes the call a wrong one."""
    mask, exact_inputs = make_mask(case), {name: x.detach().numpy() for name, x in make(case, torch.float64).items()}
    biases = [exact_inputs.pop(name) for name in list(exact_inputs) if name.startswith("biases")]
    exact = oracle.pair_attention(**exact_inputs, biases=biases, mask=None if mask is None else mask.numpy(), scale=case.scale)
    inputs = make(case, dtype)
    usual = results(inputs, *plain(inputs, mask, case.d**-0.5 if case.scale is None else case.scale))
    for name, got in results(inputs, *call(mutate(inputs), mask, case.scale, backend)).items():
        true = torch.from_numpy((exact.outputs | exact.gradients)[name])
        assert worst(usual[name], true) < torch.inf
        assert_within_twice(name, got, usual[name], true)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_and_all_gradients(backend: str, name: str, dtype: torch.dtype) -> None:
    check(CASES[name], dtype, backend)


@pytest.mark.parametrize("name", CASES)
def test_many_small_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "KEYS", 2)
    monkeypatch.setattr(tiles, "TILE", 10)
    check(CASES[name], torch.float64, "auto")


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_keys_and_values_written_out(backend: str) -> None:
    """k_j + W_K z_ij and v_j + W_V z_ij for every pair of positions and head, in loops."""
    n, heads, d, c = 4, 2, 3, 5
    q, k, v = torch.randn(3, n, heads, d, dtype=torch.float64).unbind()
    z, w_k, w_v = torch.randn(n, n, c).double(), torch.randn(heads, d, c).double(), torch.randn(heads, d, c).double()
    out, pair_out = pair_attention(q, k, v, z, pair_queries=torch.einsum("ihd,hdc->ihc", q, w_k), backend=backend)
    got = out + torch.einsum("ihc,hdc->ihd", pair_out, w_v)
    for i in range(n):
        for h in range(heads):
            keys = torch.stack([k[j, h] + w_k[h] @ z[i, j] for j in range(n)])
            values = torch.stack([v[j, h] + w_v[h] @ z[i, j] for j in range(n)])
            unnormalised = torch.exp(keys @ q[i, h] / d**0.5)
            torch.testing.assert_close(got[i, h], unnormalised @ values / unnormalised.sum())


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_pair_features_it_is_attention(backend: str) -> None:
    q, k, v = torch.randn(3, 2, 5, 2, 4).unbind()
    out, pair_out = pair_attention(q, k, v, torch.zeros(1, 5, 5, 3), pair_queries=torch.randn(2, 5, 2, 3), backend=backend)
    torch.testing.assert_close(out, attention(q, k, v, backend="reference"))
    assert not pair_out.any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_by_finite_differences(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "KEYS", 2)
    case = CASES["mask per head"]
    inputs, mask = make(case, torch.float64), make_mask(case)
    names = [name for name in inputs if not name.startswith("grad")]

    def op(*values: Tensor) -> tuple[Tensor, Tensor]:
        return call(dict(zip(names, values, strict=True)), mask, None, backend)

    wanted = [inputs[name] for name in names]
    assert torch.autograd.gradcheck(op, wanted, fast_mode=True)
    if backend == "reference":
        assert torch.autograd.gradgradcheck(op, wanted, fast_mode=True)


@pytest.mark.parametrize("sizes", [((0,), 2, 3), ((2,), 0, 3), ((2,), 2, 0)])
def test_nothing_to_attend(sizes: tuple[tuple[int, ...], int, int]) -> None:
    batch, q_len, k_len = sizes
    q, k = (torch.randn(*batch, length, 2, 4) for length in (q_len, k_len))
    pair = torch.randn(*batch, q_len, k_len, 3, requires_grad=True)
    out, pair_out = pair_attention(q, k, k, pair, pair_queries=torch.randn(*batch, q_len, 2, 3))
    assert torch.equal(out, torch.zeros(*batch, q_len, 2, 4)) and torch.equal(pair_out, torch.zeros(*batch, q_len, 2, 3))
    assert not torch.autograd.grad(pair_out.sum(), pair)[0].any()


def test_merged_attention_is_attention_over_both_sets_of_keys() -> None:
    """Also where one set, or both, are hidden, in the gradients too."""
    q, mine, other = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 4, 2, 3), (2, 5, 2, 3), (2, 6, 2, 3)))
    masks = [torch.rand(2, 1, 4, size) < 0.7 for size in (5, 6)]
    masks[0][:, :, 1], masks[1][:, :, 2], masks[0][:, :, 3], masks[1][:, :, 3] = False, False, False, False
    parts = [x for keys, mask in zip((mine, other), masks, strict=True) for x in attention(q, keys, keys, mask=mask, return_lse=True)]
    merged = merge_attention(*parts)
    keys = torch.cat([mine, other], dim=1)
    expected = attention(q, keys, keys, mask=torch.cat(masks, dim=-1), backend="reference")
    torch.testing.assert_close(merged, expected, rtol=1e-12, atol=1e-12)
    assert not merged[:, 3].any()
    grad = torch.randn_like(merged)
    for got, wanted in zip(*(torch.autograd.grad(x, (q, mine, other), grad) for x in (merged, expected)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_merging_large_log_sum_exps() -> None:
    """Far beyond what exp can hold."""
    def merged(lse: float, other_lse: float) -> float:
        lses = (torch.tensor([[x]], dtype=torch.float64) for x in (lse, other_lse))
        return merge_attention(torch.full((1, 1, 1), 2.0), next(lses), torch.full((1, 1, 1), 4.0), next(lses)).item()

    assert merged(1e4, 1e4 + math.log(3)) == pytest.approx(3.5)  # one part of 2 and three parts of 4
    assert merged(-1e4, 1e4) == 4.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pair": torch.zeros(2, 7, 5, 3)}, r"pair has shape \(2, 7, 5, 3\).*expected .* q = 5, k = 7"),
        ({"pair": torch.zeros(5, 7, 3)}, r"pair has shape \(5, 7, 3\).*with rank 4"),
        ({"pair": torch.zeros(3, 5, 7, 3)}, r"pair has shape \(3, 5, 7, 3\).*batch axes of 1 or \(2,\)"),
        ({"pair": torch.zeros(2, 5, 7, 3).double()}, r"dtype torch\.float64.*and dtype torch\.float32"),
        ({"pair_queries": torch.zeros(2, 5, 2, 4)}, r"pair_queries has shape \(2, 5, 2, 4\).*= \(2, 5, 2, 3\), one query per head"),
        ({"pair_queries": torch.zeros(2, 5, 2, 3).half()}, r"pair_queries has .* dtype torch\.float16"),
        ({"q": torch.zeros(2, 5, 2, 5)}, r"k has shape \(2, 7, 2, 4\), which does not fit q \(2, 5, 2, 5\)"),
        ({"mask": torch.ones(2, 7, dtype=torch.bool)}, r"mask has shape \(2, 7\); expected the rank of the logits, 4"),
    ],
)
def test_bad_input(change: dict[str, Tensor], message: str, no_type_checks: None) -> None:
    inputs = {name: x.detach() for name, x in make(Case(), torch.float32).items() if not name.startswith("grad")} | change
    q, k, v, pair = (inputs.pop(name) for name in ("q", "k", "v", "pair"))
    with pytest.raises(ShapeError, match=message):
        pair_attention(q, k, v, pair, **inputs)


def test_unknown_backend() -> None:
    inputs = make(Case(), torch.float32)
    with pytest.raises(BackendError, match="there is no backend 'sdpa'; there are streaming and reference"):
        call(inputs, None, None, "sdpa")


MUTANTS = {
    "pair features not as keys": lambda inputs: inputs | {"pair_queries": inputs["pair_queries"] * 0},
    "pair transposed": lambda inputs: inputs | {"pair": inputs["pair"].transpose(-2, -3)},
    "pair queries of another head": lambda inputs: inputs | {"pair_queries": inputs["pair_queries"].flip(-2)},
    "pair gradient of one row only": lambda inputs: inputs | {
        "pair": torch.cat([inputs["pair"], inputs["pair"].detach().expand(-1, 2, -1, -1, -1)], dim=1)
    },
    "bias dropped": lambda inputs: inputs | {"biases[0]": inputs["biases[0]"] * 0},
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_result_is_found_out(mutant: str) -> None:
    with pytest.raises(AssertionError, match=r"error .*, allowed"):
        check(CASES["one row for the alignment"], torch.float32, "auto", MUTANTS[mutant])
