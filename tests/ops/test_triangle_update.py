"""The triangle multiplicative update as one op: every backend against the formula written out, and what its kernels cannot do."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evoattn.errors import BackendError, ShapeError
from evoattn.ops import Backend, cuequivariance
from evoattn.ops.layers import Linear, Norm
from evoattn.ops.triangle_update import TRIANGLE_UPDATE, TriangleSpec, TriangleWeights, explain_update, triangle_update
from tests.helpers import assert_within_twice
from tests.ops.cases import grid

C_Z, C, N = 6, 4, 5
NAMES = ["z", *(f"{layer}.{part}" for layer in TriangleWeights._fields for part in ("weight", "bias"))]
MASK = torch.rand(2, N, N, generator=torch.Generator().manual_seed(1)) < 0.7
MASK[1, 2] = False
GRAD_OUT = grid(torch.rand(2, N, N, C_Z, generator=torch.Generator().manual_seed(2)))  # of one sign: sums over pairs do not cancel


def draw(dtype: torch.dtype, biases: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    layers = {"norm_in": (C_Z,), "proj": (2 * C, C_Z), "gate": (2 * C, C_Z), "norm_out": (C,), "out": (C_Z, C), "out_gate": (C_Z, C_Z)}
    shapes = {"z": (2, N, N, C_Z)}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if biases or "norm" in name else {})
    spread = {1: 1, 2: 3, 4: 1}  # of vectors, matrices and z: sums stay of order 1
    drawn = {name: grid(torch.randn(shape, generator=generator) / spread[len(shape)]) for name, shape in shapes.items()}
    return {name: x.to(dtype).requires_grad_() for name, x in drawn.items()}


def weights_of(x: dict[str, Tensor]) -> TriangleWeights:
    layers = {name: (x[f"{name}.weight"], x.get(f"{name}.bias")) for name in TriangleWeights._fields}
    return TriangleWeights(**{name: (Norm if "norm" in name else Linear)(*layer) for name, layer in layers.items()})


def by_hand(x: dict[str, Tensor], mask: Tensor | None, incoming: bool, mean: bool) -> Tensor:
    """Products one residue pair at a time, everything in the dtype of the inputs."""

    def norm(y: Tensor, name: str) -> Tensor:
        y = y - y.mean(-1, keepdim=True)
        return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * x[f"{name}.weight"] + x[f"{name}.bias"]

    def layer(y: Tensor, name: str) -> Tensor:
        return y @ x[f"{name}.weight"].T + x.get(f"{name}.bias", 0.0)

    y = norm(x["z"], "norm_in")
    ab = layer(y, "gate").sigmoid() * layer(y, "proj")
    ab = ab if mask is None else ab * mask[..., None]
    a, b = ab[..., :C], ab[..., C:]
    rows = []
    for i in range(N):
        for j in range(N):
            rows.append((a[:, :, i] * b[:, :, j] if incoming else a[:, i] * b[:, j]).sum(1))
    o = torch.stack(rows, 1).unflatten(1, (N, N))
    if mean:
        counts = [N, N] if mask is None else [max(1, int(entry.any(-1).sum())) for entry in mask]
        o = o / o.new_tensor(counts)[:, None, None, None]
    return layer(y, "out_gate").sigmoid() * layer(norm(o, "norm_out"), "out")


def stand_in(x: Tensor, direction: str, mask: Tensor | None = None, *, eps: float, **named: Tensor | None) -> Tensor:
    assert x.dim() == 4 and eps == 1e-5 and (mask is None or (mask.shape == x.shape[:-1] and mask.dtype == x.dtype))
    ours = {"p_in": "proj", "g_in": "gate", "p_out": "out", "g_out": "out_gate", "norm_in": "norm_in", "norm_out": "norm_out"}
    values = {f"{ours[name.rsplit('_', 1)[0]]}.{name.rsplit('_', 1)[1]}": value for name, value in named.items() if value is not None}
    return by_hand({"z": x, **values}, None if mask is None else mask.bool(), direction == "incoming", mean=False)


CUEQ = replace(TRIANGLE_UPDATE.get("cuequivariance"), why_not=lambda spec: [], missing=lambda: None)
CALLS = [
    (backend, incoming, mean, mask)
    for backend in ("lean", "reference", CUEQ)
    for incoming in (False, True)
    for mean in ((False,) if backend is CUEQ else (False, True))
    for mask in (None, MASK)
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("backend", "incoming", "mean", "mask"), CALLS)
def test_output_and_all_gradients(
    backend: str | Backend, incoming: bool, mean: bool, mask: Tensor | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, cuequivariance.MODULES[0], SimpleNamespace(triangle_multiplicative_update=stand_in))
    results = []
    for x in (draw(torch.float64), draw(dtype), draw(dtype)):
        if len(results) < 2:
            out = by_hand(x, mask, incoming, mean)
        else:
            out = triangle_update(x["z"], weights_of(x), incoming=incoming, mask=mask, mean=mean, backend=backend)
        results.append([out, *torch.autograd.grad(out, list(x.values()), GRAD_OUT.to(dtype=out.dtype))])
    for name, exact, usual, got in zip(["out", *NAMES], *results, strict=True):
        if dtype == torch.float64:
            torch.testing.assert_close(got, exact, rtol=1e-11, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert_within_twice(name, got, usual, exact)


@pytest.mark.parametrize("backend", ["lean", "reference"])
def test_layers_without_biases_and_nan_behind_the_mask(backend: str) -> None:
    x = draw(torch.float64, biases=False)
    expected = by_hand(x, MASK, True, False)[MASK]
    poisoned = x | {"z": x["z"].detach().masked_fill(~MASK[..., None], torch.nan)}
    got = triangle_update(poisoned["z"], weights_of(poisoned), incoming=True, mask=MASK, backend=backend)
    torch.testing.assert_close(got[MASK], expected)


def test_sums_do_not_overflow_float16() -> None:
    x = draw(torch.float16)
    large = x | {"proj.weight": x["proj.weight"].detach() * 300}
    for backend in ("lean", "reference"):
        assert triangle_update(large["z"], weights_of(large), incoming=False, backend=backend).isfinite().all()


@pytest.mark.usefixtures("no_type_checks")
def test_layers_that_do_not_fit() -> None:
    x = draw(torch.float32)
    weights = weights_of(x)
    with pytest.raises(ShapeError, match=r"z has shape \(2, 5, 4, 6\), expected \[\*batch, n, n, c_z\]"):
        triangle_update(x["z"][:, :, :4], weights, incoming=False)
    with pytest.raises(ShapeError, match=r"gate \(8, 8\), not \(8, 6\)"):
        triangle_update(x["z"], weights._replace(gate=Linear(torch.randn(8, 8), None)), incoming=False)


H100 = TriangleSpec(
    (1,), 256, 128, 128, torch.bfloat16, torch.bfloat16, frozenset({torch.bfloat16}), (1e-5, 1e-5), "cuda", arch="sm_90", needs_grad=True
)
FLOAT32 = {"dtype": torch.float32, "weight_dtypes": frozenset({torch.float32})}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("cuequivariance", {"device": "cpu", "arch": None}, "serves NVIDIA cards, not cpu"),
        ("cuequivariance", {"arch": "sm_75"}, "capability 8.0 or above, got sm_75"),
        ("cuequivariance", {"dtype": torch.float16, "product_dtype": torch.float16}, "overflows float16"),
        ("cuequivariance", FLOAT32, "computes in one dtype, that of z, torch.float32, for products (torch.bfloat16)"),
        ("cuequivariance", {"weight_dtypes": frozenset({torch.float32})}, "computes in one dtype"),
        ("cuequivariance", {"c": 48}, "channels in steps of 32, got 128 and 48 of the product"),
        ("cuequivariance", {"c_z": 100}, "channels in steps of 32, got 100 and 128"),
        ("cuequivariance", {"eps": (1e-5, 1e-3)}, "one eps for both norms, got 1e-05 and 0.001"),
        ("cuequivariance", {"mean": True}, "does not average"),
        ("cuequivariance", {"n": 100}, "plain torch up to 100 residues, got 100"),
        ("triton", {"device": "mps", "arch": None}, "serves NVIDIA cards, not mps"),
        ("triton", FLOAT32, "computes products in the dtype of z, torch.float32, not in torch.bfloat16"),
        ("triton", {"c_z": 512}, "up to 256 channels of a pair in bfloat16, got 512"),
    ],
)
def test_every_limit_is_a_reason(name: str, changes: dict[str, Any], reason: str) -> None:
    backend = TRIANGLE_UPDATE.get(name)
    assert backend.why_not(H100) == []
    assert any(reason in given for given in backend.why_not(replace(H100, **changes))), backend.why_not(replace(H100, **changes))


def test_choice() -> None:
    """A changed order is a changed default: it wants a benchmark."""
    assert TRIANGLE_UPDATE.names == ["triton", "cuequivariance", "lean", "reference"]
    x = draw(torch.float32)
    assert explain_update(x["z"], weights_of(x)).chosen == "lean"
    on_card = explain_update(x["z"], weights_of(x), device="cuda", arch="sm_90")
    assert on_card.chosen == "lean" and "float32 on cuda (sm_90), sum, gradients" in str(on_card)
    with torch.autocast("cpu", torch.bfloat16):
        assert "float32 with products in bfloat16" in str(explain_update(x["z"], weights_of(x)))
    with pytest.raises(BackendError, match=r"triangle_update: backend 'cuequivariance' cannot run batch \[2\], n 5, 6 channels and 4 of"):
        triangle_update(x["z"], weights_of(x), incoming=True, backend="cuequivariance")
