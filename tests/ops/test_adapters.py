"""Adapters to kernels of others, without the kernels: a stand-in looks at what it is handed and computes the answer in plain torch.

What a stand-in demands is what the real function demands or silently assumes.
"""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput

from evoattn.errors import BackendError
from evoattn.ops import ATTENTION, AttentionSpec, Backend, attention, cuequivariance, deepspeed, flash_attn, flex, packages
from evoattn.ops.rows import why_no_rows
from tests.helpers import assert_within_twice
from tests.ops import oracle
from tests.ops.cases import Case, make, plain

ROWS = [
    Case("rows", (2, 3), 17, 17, 2, 2, 8, 8, biases=("x1hqk",), mask="xy11k"),
    Case("rows_of_one", (1, 3), 17, 17, 2, 2, 8, 8, biases=("11hqk",), mask="1y11k", scale=0.5),
    Case("one_batch_axis", (3,), 18, 18, 2, 2, 8, 8, biases=("1hqk",), mask="x11k"),
    Case("no_batch_axis", (), 17, 17, 3, 3, 8, 8, biases=("hqk",)),
    Case("bias_of_each_entry", (3,), 17, 17, 2, 2, 8, 8, biases=("xhqk",), mask="x11k"),
    Case("three_axes", (2, 2, 2), 17, 17, 1, 1, 8, 8, biases=("xy1hqk",), mask="xyz11k", layout="permuted"),
    Case("two_pair_biases", (2, 2), 17, 17, 2, 2, 8, 8, biases=("x1hqk", "111qk"), mask="x111k", layout="expanded"),
]
KEY_BIASES = [
    Case("key_bias", (2, 3), 17, 17, 2, 2, 8, 8, biases=("xy11k",)),
    Case("all_terms", (2, 3), 17, 17, 2, 2, 8, 8, biases=("x1hqk", "xy11k", "1y11k"), mask="xy11k"),
    Case("no_term", (2, 3), 17, 17, 2, 2, 8, 8, scale=0.3),
]
COLUMNS = [
    Case("columns", (2, 3), 7, 9, 2, 2, 8, 8, mask="xy11k"),
    Case("columns_of_one_mask", (2, 3), 9, 9, 2, 2, 8, 8, mask="x111k", layout="permuted"),
]
FREE = [
    Case("any_terms", (2, 3), 7, 9, 4, 1, 16, 24, biases=("1yhqk", "x1h11", "11q1k".replace("q", "h")), mask="x1hqk"),
    Case("no_batch", (), 5, 7, 2, 2, 16, 16, biases=("hqk",), mask="1qk"),
]


def attend(q: Tensor, k: Tensor, v: Tensor, terms: list[Tensor], scale: float) -> Tensor:
    """Heads before lengths; logits in float32."""
    logits = (q @ k.mT).float() * scale
    for term in terms:
        logits = logits + term
    return torch.softmax(logits, dim=-1).to(v.dtype) @ v


class ReadsContiguousGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        assert grad.is_contiguous(), "the kernel reads the gradient as if it were contiguous"
        return grad


def evoformer_attention(q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor | None]) -> Tensor:
    batch, rows, length, heads, d = q.shape
    assert k.shape == v.shape == q.shape and length > 16 and d % 8 == 0 and type(biases) is list and len(biases) == 2
    keys, pair = biases
    assert keys is None or (keys.shape == (batch, rows, 1, 1, length) and keys.dtype == q.dtype and keys.isfinite().all())
    assert pair is None or (pair.shape == (batch, 1, heads, length, length) and pair.dtype == q.dtype)
    out = attend(*(x.transpose(2, 3) for x in (q, k, v)), [x for x in biases if x is not None], d**-0.5)
    biases.append(None)  # as the original may
    return ReadsContiguousGradient.apply(out.transpose(2, 3))


def triangle_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    batch, rows, heads, length, _ = q.shape
    assert bias.shape == (batch, 1, heads, length, k.shape[3])
    hidden = []
    if mask is not None:
        assert mask.dtype == torch.bool and mask.shape == (batch, rows, 1, 1, k.shape[3]) and mask.any(-1).all()
        hidden = [-1e9 * ~mask]
    return attend(q, k, v, [bias, *hidden], scale)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float) -> Tensor:
    assert q.dim() == k.dim() == v.dim() == 4
    return attend(*(x.transpose(1, 2) for x in (q, k, v)), [], softmax_scale).transpose(1, 2)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, softmax_scale: float
) -> Tensor:
    """One sequence after the other; [positions, h, d]."""
    out = []
    for x, offsets, longest in ((q, cu_seqlens_q, max_seqlen_q), (k, cu_seqlens_k, max_seqlen_k)):
        lengths = offsets.diff()
        assert offsets.dtype == torch.int32 and offsets[0] == 0 and offsets[-1] == len(x) and 0 < lengths.min() <= lengths.max() <= longest
    for (start, end), (first, last) in zip(*(offsets.unfold(0, 2, 1).tolist() for offsets in (cu_seqlens_q, cu_seqlens_k)), strict=True):
        sequence = (x.transpose(0, 1) for x in (q[start:end], k[first:last], v[first:last]))
        out.append(attend(*sequence, [], softmax_scale).transpose(0, 1))
    return torch.cat(out)


def compiled_flex(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, scale: float, enable_gqa: bool, return_aux: Any) -> Any:
    assert q.dim() == 4 and return_aux.lse and enable_gqa == (k.shape[1] != q.shape[1])
    scores = (q @ k.mT).float() * scale
    places = (torch.arange(size).view([-1 if axis == own else 1 for axis in range(4)]) for own, size in enumerate(scores.shape))
    scores = score_mod(scores, *places)
    return torch.softmax(scores, dim=-1).to(v.dtype) @ v, AuxOutput(lse=torch.logsumexp(scores, dim=-1))


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, deepspeed.MODULES[0], SimpleNamespace(DS4Sci_EvoformerAttention=evoformer_attention))
    monkeypatch.setitem(sys.modules, cuequivariance.MODULES[0], SimpleNamespace(triangle_attention=triangle_attention))
    flash = SimpleNamespace(flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setitem(sys.modules, "flash_attn", flash)
    monkeypatch.setattr(flex, "compiled", lambda: compiled_flex)


def anywhere(backend: Backend) -> Backend:
    return replace(backend, why_not=lambda spec: [], missing=lambda: None)


SERVED = [
    *((deepspeed.DEEPSPEED, case) for case in (*ROWS, *KEY_BIASES)),
    *((cuequivariance.CUEQUIVARIANCE, case) for case in ROWS),
    *((flash_attn.FLASH_ATTN, case) for case in (KEY_BIASES[-1], *COLUMNS)),
    *((flex.FLEX, case) for case in (*ROWS, *KEY_BIASES, *FREE)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("backend", "case"), SERVED, ids=lambda value: value.name)
def test_output_and_all_gradients(backend: Backend, case: Case, dtype: torch.dtype) -> None:
    inputs = make(case, dtype)
    out = attention(inputs.q, inputs.k, inputs.v, biases=inputs.biases, mask=inputs.mask, scale=case.scale, backend=anywhere(backend))
    arrays = {name: x.detach().double().numpy() for name, x in inputs.named.items()}
    exact = oracle.attention(
        *(arrays[name] for name in "qkv"), biases=[arrays[f"biases[{n}]"] for n in range(len(case.biases))],
        mask=None if inputs.mask is None else inputs.mask.numpy(), scale=case.scale, grad_out=inputs.grad_out.double().numpy(),
    )  # fmt: skip
    usual = plain(inputs, case.scale)[0]
    assert_within_twice("out", out, usual, torch.from_numpy(exact.outputs["out"]))
    wanted = list(inputs.named.values())
    grads, usual_grads = (torch.autograd.grad(x, wanted, inputs.grad_out) for x in (out, usual))
    for name, grad, usual_grad in zip(inputs.named, grads, usual_grads, strict=True):
        assert_within_twice(f"gradient of {name}", grad, usual_grad, torch.from_numpy(exact.gradients[name]))


def test_flex_gives_the_log_sum_exp() -> None:
    inputs = make(FREE[0], torch.float32)
    call = {"biases": inputs.biases, "mask": inputs.mask, "return_lse": True}
    torch.testing.assert_close(
        attention(inputs.q, inputs.k, inputs.v, backend=anywhere(flex.FLEX), **call),
        attention(inputs.q, inputs.k, inputs.v, backend="reference", **call),
    )


def test_deepspeed_is_handed_a_contiguous_gradient_and_a_list_of_its_own() -> None:
    q = torch.randn(2, 17, 1, 8, requires_grad=True)
    bias = torch.randn(1, 1, 17, 17)
    biases = [bias]
    attention(q, q, q, biases=biases, backend=anywhere(deepspeed.DEEPSPEED)).sum().backward()  # a gradient of stride 0
    assert len(biases) == 1 and biases[0] is bias


H100 = AttentionSpec((2, 3), 128, 128, 4, 4, 32, 32, torch.bfloat16, "cuda", arch="sm_90")
PAIR = {"bias_shapes": ((2, 1, 4, 128, 128),), "bias_dtypes": (torch.bfloat16,)}
KEYS = {"bias_shapes": ((2, 1, 4, 128, 128), (2, 3, 1, 1, 128)), "bias_dtypes": (torch.bfloat16, torch.bfloat16)}
PLACES = [
    ({"device": "cpu", "arch": None}, "serves NVIDIA cards, not cpu"),
    ({"device": "mps", "arch": None}, "serves NVIDIA cards, not mps"),
    ({"arch": "gfx942"}, "serves NVIDIA cards, not gfx942"),
    ({"arch": None}, "needs to know the card; say which"),
]
NEW_CARDS = [*PLACES, ({"arch": "sm_75"}, "of compute capability 8.0 or above, got sm_75")]
NO_LSE = ({"return_lse": True}, "log-sum-exp")
OF_ROWS = [
    ({"kv_heads": 1}, "as many key heads as query heads, got 1 and 4"),
    ({"mask_shape": (2, 3, 1, 128, 128)}, "takes masks of keys, [..., 1, 1, k], got [2, 3, 1, 128, 128]"),
    ({"mask_shape": (2, 3, 4, 1, 128)}, "takes masks of keys"),
    (
        {"bias_shapes": ((2, 1, 1, 128, 128), (2, 1, 4, 1, 128)), "bias_dtypes": (torch.bfloat16, torch.bfloat16)},
        "the sum of [2, 1, 1, 128, 128], [2, 1, 4, 1, 128] is larger than each",
    ),
    ({"bias_shapes": ((1, 3, 4, 128, 128),)}, "shared along the last of the batch axes [2, 3] and none before, got [1, 3, 4, 128, 128]"),
]
LIMITS = {
    deepspeed: [
        *PLACES,
        ({"arch": "sm_70"}, "capability 8.0 or above, got sm_70"),
        ({"arch": "sm_61", "dtype": torch.float16, "bias_dtypes": (torch.float16,)}, "capability 7.0 or above, got sm_61"),
        ({"dtype": torch.float32, "bias_dtypes": (torch.float32,)}, "serves bfloat16 and float16, not torch.float32"),
        ({"bias_dtypes": (torch.float32,)}, "takes biases of the dtype of the queries, torch.bfloat16, got torch.float32"),
        ({"k_len": 64}, "as many keys as queries, got 64 and 128"),
        ({"q_len": 16, "k_len": 16}, "more than 16 positions, got 16"),
        ({"d": 72, "dv": 72}, "8 to 64 in steps of 8, got d 72"),
        ({"d": 20, "dv": 20}, "8 to 64 in steps of 8, got d 20"),
        ({"dv": 16}, "of one width, 8 to 64 in steps of 8, got d 32 and dv 16"),
        ({"d": 0, "dv": 0}, "got d 0"),
        ({"batch": (256, 256), "bias_shapes": ((256, 1, 4, 128, 128),)}, "at most 65535 rows and heads, got 65536 and 4"),
        ({"heads": 70000, "kv_heads": 70000}, "at most 65535 rows and heads, got 6 and 70000"),
        ({"side_stream": True}, "default stream only"),
        NO_LSE,
        *OF_ROWS,
    ],
    cuequivariance: [
        *NEW_CARDS,
        ({"dtype": torch.float64, "bias_dtypes": (torch.float64,)}, "serves bfloat16, float16 and float32, not torch.float64"),
        ({"d": 136, "dv": 136}, "8 to 128 in steps of 8 for torch.bfloat16, got d 136"),
        ({"d": 20, "dv": 20}, "in steps of 8 for torch.bfloat16, got d 20"),
        ({"d": 64, "dv": 64, "dtype": torch.float32, "bias_dtypes": (torch.float32,)}, "4 to 32 in steps of 4 for torch.float32, got d 64"),
        ({"dv": 16}, "of one width"),
        ({"bias_shapes": (), "bias_dtypes": ()}, "needs a pair bias"),
        (KEYS, "takes no bias of keys alone"),
        ({"bias_dtypes": (torch.float16,)}, "takes pair biases of torch.bfloat16 or torch.float32 here, got torch.float16"),
        ({"bias_dtypes": (torch.float32,), "arch": "sm_100"}, "takes pair biases of torch.bfloat16 here, got torch.float32"),
        ({"q_len": 100}, "runs plain torch up to 100 positions at this width, got 100"),
        ({"d": 16, "dv": 16}, "runs plain torch up to 200 positions at this width, got 128"),
        NO_LSE,
        *OF_ROWS,
    ],
    flash_attn: [
        *NEW_CARDS,
        ({"dtype": torch.float32}, "serves bfloat16 and float16, not torch.float32"),
        (PAIR, "takes no bias"),
        ({"mask_shape": (2, 3, 1, 128, 128)}, "takes masks of keys, [..., 1, 1, k], got [2, 3, 1, 128, 128]"),
        ({"mask_shape": (2, 3, 4, 1, 128)}, "takes masks of keys"),
        ({"mask_shape": (2, 1, 1, 1, 128), "batch": (2, 2**23)}, "packs at most 2147483647 positions under a mask, got 2147483648"),
        ({"d": 264, "dv": 264}, "8 to 256 in steps of 8, got d 264"),
        ({"d": 12, "dv": 12}, "8 to 256 in steps of 8, got d 12"),
        ({"dv": 16}, "of one width"),
        NO_LSE,
    ],
    flex: [
        *[(place, f"serves cuda, not {place['device']}") for place, _ in PLACES[:2]],
        ({"dtype": torch.float64}, "serves float32, bfloat16 and float16, not torch.float64"),
        ({"d": 8}, "at least 16 wide, got d 8 and dv 32"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("adapter", "changes", "reason"),
    [(adapter, changes, reason) for adapter, limits in LIMITS.items() for changes, reason in limits],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_limit_is_a_reason(adapter: Any, changes: dict[str, Any], reason: str) -> None:
    served = H100 if adapter is flash_attn else replace(H100, **PAIR, mask_shape=(2, 3, 1, 1, 128))
    assert adapter.why_not(served) == []
    assert any(reason in given for given in adapter.why_not(replace(served, **changes))), adapter.why_not(replace(served, **changes))


def test_what_the_limits_leave() -> None:
    keys = replace(H100, **KEYS, mask_shape=(2, 3, 1, 1, 128), needs_grad=True, bias_needs_grad=True)
    assert deepspeed.why_not(keys) == deepspeed.why_not(replace(H100, arch="sm_120")) == []
    assert deepspeed.why_not(replace(H100, dtype=torch.float16, arch="sm_75")) == []
    assert cuequivariance.why_not(replace(H100, **PAIR, k_len=300)) == []
    assert flash_attn.why_not(replace(H100, kv_heads=1)) == flash_attn.why_not(replace(H100, mask_shape=(2, 3, 1, 1, 128))) == []
    assert flash_attn.why_not(replace(H100, batch=(2, 2**23))) == []
    assert flex.why_not(replace(H100, **KEYS, arch="gfx942", kv_heads=1, return_lse=True)) == []


@pytest.mark.parametrize(
    ("batch", "biases", "fits"),
    [
        ((2, 3), [(2, 1)], True),
        ((2, 3), [(2, 3)], True),
        ((2, 3), [(1, 3)], False),
        ((1, 3), [(1, 3)], True),
        ((2, 3), [(1, 3), (2, 1)], False),
        ((2, 3), [(2, 3), (2, 1)], True),
        ((2, 3), [(1, 1)], True),
        ((2, 3, 4), [(2, 1, 4)], False),
        ((2, 1, 4), [(2, 1, 4)], True),
    ],
)
def test_rows_that_share_a_bias(batch: tuple[int, ...], biases: list[tuple[int, ...]], fits: bool) -> None:
    spec = replace(H100, batch=batch, bias_shapes=tuple((*axes, 4, 128, 128) for axes in biases))
    assert (why_no_rows(spec) == []) == fits


@pytest.mark.parametrize("name", ["cuequivariance", "deepspeed", "flash_attn", "flex"])
def test_a_package_that_does_not_load(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU it is really loaded, and the failure is told; elsewhere it is only looked for."""

    def broken(module: str) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file")

    packages.missing_package.cache_clear()
    deepspeed.missing.cache_clear()
    monkeypatch.setattr(packages, "find_spec", lambda module: object())
    monkeypatch.setattr(packages, "import_module", broken)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        with pytest.raises(BackendError, match=r"cannot be loaded: OSError: libcudart\.so\.13: cannot open shared object file"):
            ATTENTION.select(H100, name)
    finally:
        packages.missing_package.cache_clear()
        deepspeed.missing.cache_clear()
