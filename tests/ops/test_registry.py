"""How a backend is chosen: the order, every reason, what a name that cannot run says; and sdpa's rules for CUDA, on any machine."""

from dataclasses import replace

import pytest
import torch

from evoattn.errors import BackendError
from evoattn.ops import ATTENTION, AttentionSpec, Backend, Registry, attention, explain, sdpa
from evoattn.ops.masks import hide_masked, nothing_allowed
from evoattn.ops.tiles import Problem, heads_first
from tests.helpers import assert_within_twice
from tests.ops.cases import BY_NAME, make, plain, truth

SPEC = AttentionSpec((2,), 16, 16, 4, 4, 8, 8, torch.float32, "cpu")
A_BIAS = {"bias_shapes": ((1, 4, 16, 16),)}


def backend(name: str, *reasons: str, missing: str | None = None) -> Backend:
    return Backend(name, run=lambda: None, why_not=lambda spec: list(reasons), missing=lambda: missing)


FIRST = backend("first", "wants a GPU", "wants 5 heads", missing="No module named 'first'")
SECOND, THIRD = backend("second"), backend("third")


def test_auto_takes_the_first_that_can_run() -> None:
    assert Registry("op", [FIRST, SECOND, THIRD]).select(SPEC).name == "second"
    assert Registry("op", [FIRST, THIRD, SECOND]).select(SPEC).name == "third"
    assert Registry("op", [FIRST, SECOND, THIRD]).select(SPEC, "third") is THIRD
    assert Registry("op", [FIRST]).select(SPEC, SECOND) is SECOND  # one's own needs no place in the list


@pytest.mark.parametrize("asked", ["first", FIRST], ids=["by name", "as an object"])
def test_what_is_asked_for_runs_or_raises_with_all_reasons(asked: str | Backend) -> None:
    with pytest.raises(BackendError) as error:
        Registry("op", [FIRST, SECOND, THIRD]).select(SPEC, asked)
    message = str(error.value)
    assert "op: backend 'first' cannot run batch [2], q 16, k 16, 4 heads of 8, no bias, no mask, float32 on cpu, no gradients:" in message
    assert "\n  - No module named 'first'\n  - wants a GPU\n  - wants 5 heads\n" in message
    assert "backend='auto', or another of second, third." in message


def test_no_backend_can_run() -> None:
    with pytest.raises(BackendError) as error:
        Registry("op", [FIRST, backend("other", "is asleep")]).select(SPEC)
    message = str(error.value)
    assert "op: no backend can run this call" in message and "-> no backend can run this" in message
    assert "No module named 'first'; wants a GPU; wants 5 heads" in message and "is asleep" in message


def test_unknown_name() -> None:
    with pytest.raises(BackendError, match=r"no backend 'frist'; there are first, second, and 'auto' for the first that can run\."):
        Registry("op", [FIRST, SECOND]).select(SPEC, "frist")


def test_explanation_shows_everything() -> None:
    explanation = Registry("op", [FIRST, SECOND, THIRD]).explain(SPEC)
    assert explanation.chosen == "second"
    assert explanation.reasons == {"first": ["No module named 'first'", "wants a GPU", "wants 5 heads"], "second": [], "third": []}
    assert str(explanation).splitlines() == [
        f"op of {SPEC}",
        "  -> second",
        "  first          No module named 'first'; wants a GPU; wants 5 heads",
        "  second         chosen",
        "  third          can run, lower in the order",
    ]


def test_order_and_choice_of_attention() -> None:
    """A changed order is a changed default: it wants a benchmark."""
    assert ATTENTION.names == ["sdpa", "triton", "cuequivariance", "deepspeed", "flash_attn", "streaming", "flex", "reference"]
    q = torch.empty(8, 16, 4, 8)
    assert explain(q, q, q).chosen == "sdpa"
    assert explain(q, q, q[..., :5]).chosen == "streaming"
    assert "needs queries and values of one width above 0, got d 8 and dv 5" in str(explain(q, q, q[..., :5]))


def test_explain_describes_the_call() -> None:
    q = torch.empty(8, 16, 4, 8, dtype=torch.bfloat16, device="meta")  # no memory behind it
    k = q[:, :, :1]
    bias = torch.empty(1, 4, 16, 16, dtype=torch.bfloat16, device="meta", requires_grad=True)
    explanation = explain(q, k, k, biases=[bias], mask=torch.ones(8, 1, 1, 16, dtype=torch.bool, device="meta"), device="cuda")
    head = str(explanation).splitlines()[0]
    assert head == (
        "attention of batch [8], q 16, k 16, 4 heads of 8, 1 shared key head, biases [1, 4, 16, 16], mask [8, 1, 1, 16], "
        "bfloat16 on cuda, gradients incl. biases"
    )
    assert explanation.chosen == "streaming"
    assert len(explanation.reasons["sdpa"]) == 2  # the gradient of the bias, and the shared key head
    with torch.no_grad():
        assert "no gradients" in str(explain(q, k, k, biases=[bias]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "mps"}, "serves cpu and cuda, not mps"),
        ({"dtype": torch.float64}, "no fused kernel for torch.float64 on cuda"),
        ({"dtype": torch.float8_e4m3fn}, "no fused kernel for torch.float8_e4m3fn"),
        ({"dv": 16}, "one width above 0, got d 8 and dv 16"),
        ({"d": 0, "dv": 0}, "one width above 0, got d 0 and dv 0"),
        ({"d": 5, "dv": 5}, "must fill whole 16-byte words, got 5 x torch.float32"),
        ({"d": 12, "dv": 12, "dtype": torch.float16}, "must fill whole 16-byte words, got 12 x torch.float16"),
        ({"batch": (256, 256)}, "at most 65535 batch entries and heads, got 65536 and 4"),
        ({"heads": 70000, "kv_heads": 70000}, "at most 65535 batch entries and heads, got 2 and 70000"),
        ({**A_BIAS, "bias_dtypes": (torch.bfloat16,)}, "takes biases of torch.float32 beside queries of torch.float32, got torch.bfloat16"),
        ({**A_BIAS, "bias_dtypes": (torch.float32,), "dtype": torch.float16}, "torch.float16 beside queries of torch.float16, got"),
        ({"bias_needs_grad": True, "needs_grad": True}, "on cuda its gradient of a bias is expanded"),
        ({"return_lse": True}, "on cuda it does not give the log-sum-exp"),
        ({"kv_heads": 1}, "as many key heads as query heads, got 1 and 4"),
    ],
)
def test_what_sdpa_cannot_do_on_cuda(changes: dict[str, object], reason: str) -> None:
    on_cuda = replace(SPEC, device="cuda")
    assert sdpa.why_not(on_cuda) == []
    reasons = sdpa.why_not(replace(on_cuda, **changes))
    assert any(reason in given for given in reasons), reasons
    assert ATTENTION.explain(replace(on_cuda, **changes)).chosen == "streaming"


@pytest.mark.parametrize(
    "changes", [{"batch": (70000,)}, {"d": 5, "dv": 5}, {"bias_needs_grad": True}, {"return_lse": True}, {"kv_heads": 1}]
)
def test_what_sdpa_can_do_on_a_cpu(changes: dict[str, object]) -> None:
    assert sdpa.why_not(replace(SPEC, **changes)) == []


def test_torch_without_the_cpu_flash_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops, "aten", object())
    assert "has no _scaled_dot_product_flash_attention_for_cpu" in str(sdpa.missing())
    assert ATTENTION.select(SPEC).name == "streaming"
    with pytest.raises(BackendError, match="has no _scaled_dot_product_flash_attention_for_cpu"):
        ATTENTION.select(SPEC, "sdpa")


@pytest.mark.parametrize(
    "name",
    [
        "no_batch", "no_batch_masked", "msa_row", "rows_times_columns", "two_biases", "second_axis_varies", "rank_three", "mask_per_head",
        "full_mask", "long",
    ],
)
def test_the_path_for_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`device_forward` and its gradients, here through torch's kernels for the CPU; it needs no log-sum-exp and gives none."""
    monkeypatch.setattr(sdpa, "FUSED", [*sdpa.FUSED, torch.nn.attention.SDPBackend.MATH])  # with which a bias gets its gradient on a CPU
    case = BY_NAME[name]

    def outputs(dtype: torch.dtype, op: str) -> list[torch.Tensor]:
        inputs = make(case, dtype)
        if op == "plain":
            out = plain(inputs, case.scale)[0]
        else:
            q, k, v, biases = inputs.q, inputs.k, inputs.v, inputs.biases
            if inputs.mask is not None:
                q, k, v, biases = hide_masked(q, k, v, biases, inputs.mask)
            problem = Problem(*map(heads_first, (q, k, v)), tuple(biases), inputs.mask, case.d**-0.5 if case.scale is None else case.scale)
            out = heads_first(sdpa.device_forward(problem))
            out = out if inputs.mask is None else out.masked_fill(nothing_allowed(inputs.mask), 0.0)
        return [out, *torch.autograd.grad(out, list(inputs.named.values()), inputs.grad_out)]

    exact = outputs(torch.float64, "plain")
    torch.testing.assert_close(exact[0].detach(), torch.from_numpy(truth(name).outputs["out"]), rtol=1e-12, atol=1e-12)
    for dtype in (torch.float32, torch.bfloat16):
        for number, (got, usual, true) in enumerate(zip(outputs(dtype, "sdpa"), outputs(dtype, "plain"), exact, strict=True)):
            assert got.isfinite().all()
            assert_within_twice(f"{name}, number {number}", got, usual, true)


def test_rows_times_columns_are_one_call() -> None:
    """Padding of an alignment keeps its rows folded, on the CPU and on CUDA; anything else is looped over."""
    q = torch.randn(6, 2, 8, 4)
    rows, columns = torch.tensor([True] * 4 + [False] * 2), torch.tensor([True] * 5 + [False] * 3)
    bias, mask = torch.randn(1, 2, 8, 8), (rows[:, None] & columns)[:, None, None]
    problem = Problem(q, q, q, (bias,), mask, 1.0)
    (entry, term), *rest = sdpa.calls(problem)
    assert not rest and entry == () and term is not None and term.shape == (1, 2, 8, 8)
    other = torch.rand(6, 1, 1, 8) < 0.5
    assert len(list(sdpa.calls(replace(problem, mask=other)))) == 6
    # what has one varying term for every axis is one call as it stands
    assert len(list(sdpa.calls(replace(problem, biases=(torch.randn(6, 2, 8, 8),), mask=other)))) == 1
    assert len(list(sdpa.calls(replace(problem, biases=())))) == 1


def test_device_forward_folds_padding_and_shows_no_kernel_an_empty_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some CUDA kernels turn a row of -inf into NaN."""
    calls, kernel = [], sdpa.scaled_dot_product_attention

    def watched(*args: torch.Tensor, attn_mask: torch.Tensor, scale: float) -> torch.Tensor:
        calls.append(attn_mask)
        return kernel(*args, attn_mask=attn_mask, scale=scale)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", watched)
    q = torch.randn(6, 2, 8, 4)
    mask = (torch.arange(6) < 4)[:, None, None, None] & (torch.arange(8) < 5)
    sdpa.device_forward(Problem(q, q, q, (torch.randn(1, 2, 8, 8),), mask, 1.0))
    assert len(calls) == 1
    by_query = torch.rand(6, 1, 8, 8) < 0.7
    by_query[:, :, 2] = False
    sdpa.device_forward(Problem(q, q, q, (), by_query, 1.0))
    assert len(calls) == 2 and not any((term == -torch.inf).all(-1).any() for term in calls)


def test_attention_names_the_backend_it_was_given() -> None:
    q = torch.randn(1, 3, 1, 4)
    with pytest.raises(BackendError, match=r"attention: there is no backend 'flash'; there are sdpa, .*streaming, flex, reference"):
        attention(q, q, q, backend="flash")
