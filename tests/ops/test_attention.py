"""attention() against loops in float64: every backend, dtype, mask, bias, layout and size."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from evoattn.errors import BackendError
from evoattn.ops import ATTENTION, Backend, attention, tiles
from tests.helpers import assert_within_twice
from tests.ops.cases import BACKENDS, BY_NAME, CASES, DTYPES, Case, Inputs, check, make, plain, results, truth

SERVED = [(name, case) for name in BACKENDS for case in CASES if name != "sdpa" or case.d == case.dv]


def shown(value: object) -> str | None:
    return value.name if isinstance(value, Case) else str(value).removeprefix("torch.")


@pytest.mark.parametrize("dtype", DTYPES, ids=shown)
@pytest.mark.parametrize(("backend", "case"), SERVED, ids=shown)
def test_outputs_and_all_gradients(backend: str, case: Case, dtype: torch.dtype) -> None:
    check(case, dtype, backend)


@pytest.mark.parametrize("keys", [1, 4])
@pytest.mark.parametrize(
    "name", ["no_batch_masked", "two_biases", "mask_per_head", "shared_key_head_mask_per_head", "permuted", "expanded"]
)
@pytest.mark.parametrize("backend", ["sdpa", "streaming"])
def test_many_small_tiles(backend: str, name: str, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A softmax over many blocks of keys, and windows that cut every axis, some of them unevenly."""
    monkeypatch.setattr(tiles, "KEYS", keys)
    monkeypatch.setattr(tiles, "TILE", 5 * keys)
    for dtype in (torch.float64, torch.bfloat16):
        check(BY_NAME[name], dtype, backend)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 15, 16, 17, 33, 43, 63, 100, 101])
@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths(backend: str, length: int) -> None:
    """Lengths next to the block sizes of kernels, as queries against other lengths as keys."""
    torch.manual_seed(length)
    q, k, v = torch.randn(2, length, 1, 5), torch.randn(2, 102 - length, 1, 5), torch.randn(2, 102 - length, 1, 5)
    bias, mask = torch.randn(1, 1, length, 102 - length), torch.rand(2, 1, 1, 102 - length) < 0.8
    inputs = replace(make(BY_NAME["no_batch"], torch.float32), q=q, k=k, v=v, biases=[bias], mask=mask)
    exact, _ = plain(replace(inputs, q=q.double(), k=k.double(), v=v.double(), biases=[bias.double()]), None)
    usual, _ = plain(inputs, None)
    assert_within_twice("out", attention(q, k, v, biases=[bias], mask=mask, backend=backend), usual, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_batch_entries_than_a_grid_of_65535(backend: str) -> None:
    q, k, v = (torch.randn(330, 200, 2, 1, 2).div(2).requires_grad_() for _ in range(3))
    bias = torch.randn(1, 1, 1, 2, 2).div(2).requires_grad_()
    inputs = Inputs(q, k, v, [bias], None, grad_out=torch.randn_like(q), grad_lse=torch.randn(330, 200, 2, 1))
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.named.items()}
    exact_inputs = replace(
        inputs, q=wide["q"], k=wide["k"], v=wide["v"], biases=[wide["biases[0]"]],
        grad_out=inputs.grad_out.double(), grad_lse=inputs.grad_lse.double(),
    )  # fmt: skip
    got = results(inputs, *attention(q, k, v, biases=[bias], backend=backend, return_lse=True))
    usual, exact = results(inputs, *plain(inputs, None)), results(exact_inputs, *plain(exact_inputs, None))
    for name in got:
        assert_within_twice(name, got[name], usual[name], exact[name])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [((0, 3), 4, 5, 2), ((2,), 0, 5, 2), ((2,), 4, 0, 2), ((), 4, 0, 1), ((2,), 4, 5, 0)])
def test_nothing_to_attend(sizes: tuple[tuple[int, ...], int, int, int], backend: str) -> None:
    batch, q_len, k_len, heads = sizes
    q, k, v = (torch.randn(*batch, length, heads, 4, requires_grad=True) for length in (q_len, k_len, k_len))
    bias = torch.randn(*[1] * len(batch), heads, q_len, k_len, requires_grad=True)
    out, lse = attention(q, k, v, biases=[bias], backend=backend, return_lse=True)
    assert torch.equal(out, torch.zeros(*batch, q_len, heads, 4))
    assert torch.equal(lse, torch.full((*batch, q_len, heads), -torch.inf))
    for x, grad in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v)), strict=True):
        assert torch.equal(grad, torch.zeros_like(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_input_alone_wants_a_gradient(backend: str) -> None:
    case = BY_NAME["two_biases"]
    for name in truth(case.name).gradients:
        inputs = make(case, torch.float64)
        for other, x in inputs.named.items():
            x.requires_grad_(other == name)
        out, lse = attention(inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, backend=backend, return_lse=True)
        loss = (inputs.grad_out * out).sum() + (inputs.grad_lse * lse.masked_fill(lse == -torch.inf, 0.0)).sum()
        (grad,) = torch.autograd.grad(loss, inputs.named[name])
        torch.testing.assert_close(grad, torch.from_numpy(truth(case.name).gradients[name]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_log_sum_exp_alone_and_output_alone(backend: str) -> None:
    """The gradient through both is the sum of those through each."""
    inputs = make(BY_NAME["msa_row"], torch.float64)
    wanted = list(inputs.named.values())
    out, lse = attention(inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, backend=backend, return_lse=True)
    both = torch.autograd.grad([out, lse], wanted, [inputs.grad_out, inputs.grad_lse], retain_graph=True)
    through_out = torch.autograd.grad(out, wanted, inputs.grad_out, retain_graph=True)
    through_lse = torch.autograd.grad(lse, wanted, inputs.grad_lse, allow_unused=True)
    for total, one, other in zip(both, through_out, through_lse, strict=True):
        torch.testing.assert_close(total, one if other is None else one + other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_does_not_reach_into_the_op(backend: str) -> None:
    inputs = make(BY_NAME["msa_row"], torch.float32)
    call = dict(biases=inputs.biases, mask=inputs.mask, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(inputs.q, inputs.k, inputs.v, **call)
    assert torch.equal(out, attention(inputs.q, inputs.k, inputs.v, **call))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_stay_as_they_were(backend: str) -> None:
    inputs = make(BY_NAME["two_biases"], torch.float32)
    before = {name: x.detach().clone() for name, x in inputs.named.items()}
    mask, biases = inputs.mask.clone(), list(inputs.biases)
    results(inputs, *attention(inputs.q, inputs.k, inputs.v, biases=biases, mask=inputs.mask, backend=backend, return_lse=True))
    assert all(torch.equal(x, before[name]) for name, x in inputs.named.items())
    assert torch.equal(inputs.mask, mask) and len(biases) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_which_axis_is_which(backend: str) -> None:
    """Worked out by hand: z[i, j] = 10 i + j, queries and keys 0, so that every average is one of row or column."""
    n = 3
    z = 10.0 * torch.arange(n)[:, None] + torch.arange(n)
    zero = torch.zeros(n, n, 1, 1)

    def attend(values: Tensor, bias: Tensor) -> Tensor:
        """Attention along the second axis, the first one being the batch; `bias` [query, key] is the same for the whole batch."""
        return attention(zero, zero, values[..., None, None], biases=[bias[None, None]], backend=backend)[..., 0, 0]

    none, up, down = torch.zeros(n, n), torch.zeros(n, n), torch.zeros(n, n)
    up[0, 2], down[2, 0] = 50.0, 50.0
    i, j = torch.arange(n), torch.arange(n)
    # starting node: edge ij averages z[i, k] over k, biased by edge jk; the same axes as an MSA row
    torch.testing.assert_close(attend(z, none), (10.0 * i + 1)[:, None].expand(n, n))
    assert torch.equal(attend(z, up)[:, 0], z[:, 2])
    torch.testing.assert_close(attend(z, up)[:, 1:], (10.0 * i + 1)[:, None].expand(n, 2))
    # ending node: edge ij averages z[k, j] over k, biased by edge ki; everything transposed, and back
    torch.testing.assert_close(attend(z.T, none.T).T, (10.0 + j)[None].expand(n, n))
    assert torch.equal(attend(z.T, down.T).T[0], z[2])
    torch.testing.assert_close(attend(z.T, down.T).T[1:], (10.0 + j)[None].expand(2, n))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_by_finite_differences(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "KEYS", 2)
    monkeypatch.setattr(tiles, "TILE", 4)
    q, k, v = (torch.randn(2, length, 2, 2, dtype=torch.float64, requires_grad=True) for length in (2, 3, 3))
    bias, key_bias = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((1, 2, 2, 3), (2, 1, 1, 3)))
    mask = torch.tensor([[True, True, False], [True, False, True]])[:, None, None]

    def op(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v, bias, key_bias = inputs
        return attention(q, k, v, biases=[bias, key_bias], mask=mask, scale=0.7, backend=backend, return_lse=True)

    assert torch.autograd.gradcheck(op, (q, k, v, bias, key_bias), fast_mode=True)
    if backend == "reference":  # the others recompute, and say that they give first derivatives only
        assert torch.autograd.gradgradcheck(op, (q, k, v, bias, key_bias), fast_mode=True)
    else:
        (grad,) = torch.autograd.grad(op(q, k, v, bias, key_bias)[0].square().sum(), q, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            grad.sum().backward()


def test_sdpa_passes_over_what_it_cannot_run() -> None:
    for name in ("wider_values", "narrower_values_one_head"):
        inputs = make(BY_NAME[name], torch.float32)
        with pytest.raises(BackendError, match="one width above 0, got d"):
            attention(inputs.q, inputs.k, inputs.v, backend="sdpa")
        check(BY_NAME[name], torch.float32, "auto")


@pytest.mark.parametrize("bias_dtype", DTYPES, ids=shown)
@pytest.mark.parametrize("dtype", DTYPES, ids=shown)
def test_bias_of_another_dtype(dtype: torch.dtype, bias_dtype: torch.dtype) -> None:
    """Runs, or is passed over with a reason; never an error out of a kernel. Gradients come in the dtype of each input."""
    inputs = make(BY_NAME["no_batch"], dtype)
    bias = make(BY_NAME["no_batch"], bias_dtype).biases[0]
    exact = torch.from_numpy(truth("no_batch").outputs["out"])
    usual, _ = plain(make(BY_NAME["no_batch"], dtype), None)
    for backend in BACKENDS:
        if backend == "sdpa" and bias_dtype not in (dtype, torch.float32):
            with pytest.raises(BackendError, match=f"takes biases of .* beside queries of {dtype}, got {bias_dtype}"):
                attention(inputs.q, inputs.k, inputs.v, biases=[bias], backend=backend)
            continue
        out = attention(inputs.q, inputs.k, inputs.v, biases=[bias], backend=backend)
        assert_within_twice(backend, out, usual, exact)
        assert torch.autograd.grad(out.sum(), bias)[0].dtype == bias_dtype


# What a wrong backend looks like. Each takes what a backend's `run` takes.
RUN = ATTENTION.get("streaming").run


def one_row_of_the_bias_gradient(bias: Tensor, batch: tuple[int, ...]) -> Tensor:
    """The bias spelled out for the whole batch, of which only the first entry hands its gradient back."""
    spelled = bias.detach().expand(*batch, *bias.shape[len(batch) :]).clone()
    spelled[(0,) * len(batch)] = bias[(0,) * len(batch)]
    return spelled


MUTANTS = {
    "bias dropped": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [bias * 0 for bias in biases], mask, scale),
    "one of two biases dropped": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [biases[0], biases[1] * 0], mask, scale),
    "bias transposed": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [biases[0].mT, biases[1]], mask, scale),
    "bias of another head": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [biases[0].flip(-3), biases[1]], mask, scale),
    "mask dropped": lambda q, k, v, biases, mask, scale: RUN(q, k, v, biases, None, scale),
    "mask of another batch entry": lambda q, k, v, biases, mask, scale: RUN(q, k, v, biases, mask.roll(1, 1), scale),
    "scale off by 2 %": lambda q, k, v, biases, mask, scale: RUN(q, k, v, biases, mask, 1.02 * scale),
    "queries and keys exchanged": lambda q, k, v, biases, mask, scale: RUN(k, q, v, biases, mask, scale),
    "values of another head": lambda q, k, v, biases, mask, scale: RUN(q, k, v.flip(-2), biases, mask, scale),
    "no gradient of the keys": lambda q, k, v, biases, mask, scale: RUN(q, k.detach() + 0 * k, v, biases, mask, scale),
    "bias gradient of one row only": lambda q, k, v, biases, mask, scale: RUN(
        q, k, v, [one_row_of_the_bias_gradient(biases[0], q.shape[:-3]), biases[1]], mask, scale
    ),
    "bias gradient twice": lambda q, k, v, biases, mask, scale: RUN(q, k, v, [2 * biases[0] - biases[0].detach(), biases[1]], mask, scale),
    "log-sum-exp off": lambda q, k, v, biases, mask, scale: (
        RUN(q, k, v, biases, mask, scale)[0], RUN(q, k, v, biases, mask, scale)[1] + 1e-3,
    ),
    "no gradient of the log-sum-exp": lambda q, k, v, biases, mask, scale: (
        RUN(q, k, v, biases, mask, scale)[0], RUN(q, k, v, biases, mask, scale)[1].detach() + 0 * q.sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_backend_is_found_out(mutant: str) -> None:
    with pytest.raises(AssertionError, match=r"error .*, allowed"):
        check(BY_NAME["two_biases"], torch.float32, Backend("mutant", MUTANTS[mutant], why_not=lambda spec: []))


def test_a_backend_of_ones_own() -> None:
    seen = []

    def run(*args: object) -> tuple[Tensor, Tensor]:
        seen.append(args)
        return RUN(*args)

    check(BY_NAME["two_biases"], torch.float32, Backend("mine", run, why_not=lambda spec: []))
    assert len(seen) == 1
    inputs = make(BY_NAME["no_batch"], torch.float32)
    without = Backend("without", lambda *args: (RUN(*args)[0], None), why_not=lambda spec: [])
    assert attention(inputs.q, inputs.k, inputs.v, backend=without).shape == inputs.q.shape
    with pytest.raises(BackendError, match="'without' returned no log-sum-exp, which was asked for"):
        attention(inputs.q, inputs.k, inputs.v, backend=without, return_lse=True)
    picky = Backend("picky", run, why_not=lambda spec: [f"wants 99 heads, got {spec.heads}"], missing=lambda: "picky is not installed")
    with pytest.raises(BackendError, match=r"'picky' cannot run batch \[\].*\n  - picky is not installed\n  - wants 99 heads, got 2\n"):
        attention(inputs.q, inputs.k, inputs.v, backend=picky)
    assert len(seen) == 1
