"""The whole triangle multiplicative update as one op with its own backends (AlphaFold 2 supplement, algorithms 11 and 12).

Norm, gated projections, product over the third residue, norm, gate: a kernel that does several of these at once reads and writes the pair
representation fewer times than one block of torch calls can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import linear

from evoattn.errors import ShapeError
from evoattn.ops.cuequivariance import CUEQUIVARIANCE_UPDATE
from evoattn.ops.devices import architecture
from evoattn.ops.gate import gate
from evoattn.ops.layers import Linear, Norm, layer_norm, lowered
from evoattn.ops.masks import hide_nonfinite
from evoattn.ops.pairwise import channels_first, in_range, triangle_product
from evoattn.ops.registry import Backend, Explanation, Registry
from evoattn.ops.triton import launch
from evoattn.ops.triton import triangle as triton_triangle


class TriangleWeights(NamedTuple):
    """Parameters of one update, with c_z channels of the pair representation and c of the product.

    norm_in [c_z]; proj and gate [2 c, c_z], the half of a first; norm_out [c]; out [c_z, c]; out_gate [c_z, c_z].
    """

    norm_in: Norm
    proj: Linear
    gate: Linear
    norm_out: Norm
    out: Linear
    out_gate: Linear

    @property
    def tensors(self) -> list[Tensor]:
        return [x for part in self for x in part if isinstance(x, Tensor)]


@dataclass(frozen=True)
class TriangleSpec:
    """Metadata of one update, all that a backend's rules may look at.

    Attributes:
        batch, n: axes of z. c_z, c: channels. dtype, device, arch: of z, as in :class:`evoattn.ops.AttentionSpec`.
        product_dtype: of the matrix products, another one than that of z under autocast. weight_dtypes: of the parameters.
        eps: of the two norms. mean: the product is divided. needs_grad: some input wants a gradient.
    """

    batch: tuple[int, ...]
    n: int
    c_z: int
    c: int
    dtype: torch.dtype
    product_dtype: torch.dtype
    weight_dtypes: frozenset[torch.dtype]
    eps: tuple[float, float]
    device: str
    arch: str | None = None
    mean: bool = False
    needs_grad: bool = False

    def __str__(self) -> str:
        names = dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.product_dtype))
        device = f"{self.device} ({self.arch})" if self.arch else self.device
        size = f"batch {list(self.batch)}, n {self.n}, {self.c_z} channels and {self.c} of the product"
        grad = "gradients" if self.needs_grad else "no gradients"
        return f"{size}, {' with products in '.join(names)} on {device}, {'mean' if self.mean else 'sum'}, {grad}"


def triangle_update(
    z: Float[Tensor, "*batch n n c_z"],
    weights: TriangleWeights,
    *,
    incoming: bool,
    mask: Bool[Tensor, "*batch n n"] | None = None,
    mean: bool = False,
    backend: str | Backend = "auto",
) -> Float[Tensor, "*batch n n c_z"]:
    """out_gate(x) * out(norm_out(o)) with x = norm_in(z), a and b the gated projections of x, and o_ij = sum_k a_ik b_jk.

    Under ``torch.compile``, ``"auto"`` is the form in plain torch, which the compiler fuses itself.

    Args:
        z: pair representation. weights: of the six layers.
        incoming: o_ij = sum_k a_ki b_kj instead.
        mask: False where a and b are 0; what stands there, be it NaN, reaches nothing else.
        mean: o is divided by the number of residues that the mask leaves (RosettaFold 3).
        backend: as for :func:`evoattn.attention`; those of this op.

    Raises:
        ShapeError: a layer does not fit z. BackendError: the backend asked for cannot run this call.
    """
    _check(z, weights)
    z = hide_nonfinite(z, mask)
    chosen = _choose(TRIANGLE_UPDATE, z, weights, mean, backend)
    updated: Tensor = chosen.run(z, weights, mask, incoming, divisor(z, mask) if mean else None)
    return updated


class Steps(NamedTuple):
    """An update of some rows (outgoing edges) or columns (incoming) at a time, once one operand of the product is there as a whole.

    Attributes:
        operand: (z, weights, mask, which) -> a (which 0) or b (1), gated, [*batch, c, n, n2]; z may be any rows or columns.
        delta: (z, whole, weights, mask, incoming, divide_by) -> the update of z, some rows or columns; `whole` is b, if incoming a.
    """

    operand: Callable[[Tensor, TriangleWeights, Tensor | None, int], Tensor]
    delta: Callable[[Tensor, Tensor, TriangleWeights, Tensor | None, bool, Tensor | None], Tensor]


def steps_for(z: Tensor, weights: TriangleWeights, *, mean: bool, backend: str | Backend) -> Steps | None:
    """The steps in which :func:`triangle_update` can be made in slices. "auto" chooses among the backends that have them.

    None: the backend asked for makes the update as a whole, and no other way.

    Raises:
        BackendError: the backend asked for cannot run this update.
    """
    registry = Registry(TRIANGLE_UPDATE.op, list(IN_STEPS)) if backend == "auto" else TRIANGLE_UPDATE
    return IN_STEPS.get(_choose(registry, z, weights, mean, backend))


def _choose(registry: Registry, z: Tensor, weights: TriangleWeights, mean: bool, backend: str | Backend) -> Backend:
    if torch.compiler.is_compiling():
        return registry.named(backend, default=LEAN)
    return registry.select(describe_update(z, weights, mean=mean), backend)


def explain_update(
    z: Float[Tensor, "*batch n n c_z"], weights: TriangleWeights, *, mean: bool = False, device: str | None = None, arch: str | None = None
) -> Explanation:
    """Which backend :func:`triangle_update` takes, and every reason against every other; `device` and `arch` as in
    :func:`evoattn.explain`."""
    return TRIANGLE_UPDATE.explain(describe_update(z, weights, mean=mean, device=device, arch=arch))


def describe_update(
    z: Tensor, weights: TriangleWeights, *, mean: bool = False, device: str | None = None, arch: str | None = None
) -> TriangleSpec:
    return TriangleSpec(
        batch=tuple(z.shape[:-3]), n=z.shape[-2], c_z=z.shape[-1], c=weights.out.weight.shape[1], dtype=z.dtype,
        product_dtype=lowered(z[..., :0]).dtype,
        weight_dtypes=frozenset(x.dtype for x in weights.tensors), eps=(weights.norm_in.eps, weights.norm_out.eps),
        device=device or z.device.type, arch=arch if device else architecture(z.device), mean=mean,
        needs_grad=torch.is_grad_enabled() and any(x.requires_grad for x in (z, *weights.tensors)),
    )  # fmt: skip


def divisor(z: Tensor, mask: Tensor | None) -> Tensor:
    """The number of residues that the mask leaves, [*batch, 1, 1, 1]."""
    if mask is None:
        return z.new_tensor(z.shape[-2])
    return mask.any(-1).sum(-1).clamp(min=1)[..., None, None, None]


def _gated_operands(x: Tensor, weights: TriangleWeights, mask: Tensor | None, channels: slice = slice(None)) -> Tensor:
    """Gated projections of the normed x, channels first: the layout of the product, written by the projection itself."""
    layers = (weights.proj, weights.gate)
    weight = torch.cat([layer.weight[channels] for layer in layers])  # one product for both, which reads x once
    biases = [layer.bias[channels] for layer in layers if layer.bias is not None]
    projected, logits = channels_first(x, weight, torch.cat(biases) if biases else None).chunk(2, dim=-3)
    gated = gate(projected, logits)
    return gated if mask is None else gated.masked_fill(~mask.unsqueeze(-3), 0.0)


def _gated_product(x: Tensor, a: Tensor, b: Tensor, weights: TriangleWeights, incoming: bool, divide_by: Tensor | None) -> Tensor:
    """Product, norm, projection and gate. The norm comes before the cast: sums over k overflow float16, normalised ones do not."""
    product = rearrange(triangle_product(a, b, incoming=incoming), "... c i j -> ... i j c")
    product = product if divide_by is None else product / divide_by
    return gate(linear(layer_norm(product, *weights.norm_out).to(a.dtype), *weights.out), linear(x, *weights.out_gate))


def _half(weights: TriangleWeights, which: int) -> slice:
    """The channels of a (0) or b (1) in `proj` and `gate`."""
    c = weights.out.weight.shape[1]
    return slice(which * c, (which + 1) * c)


def _lean(z: Tensor, weights: TriangleWeights, mask: Tensor | None, incoming: bool, divide_by: Tensor | None) -> Tensor:
    x = layer_norm(z, *weights.norm_in)
    a, b = _gated_operands(x, weights, mask).chunk(2, dim=-3)
    return _gated_product(x, a, b, weights, incoming, divide_by)


def _lean_operand(z: Tensor, weights: TriangleWeights, mask: Tensor | None, which: int) -> Tensor:
    return _gated_operands(layer_norm(z, *weights.norm_in), weights, mask, _half(weights, which))


def _lean_delta(
    z: Tensor, whole: Tensor, weights: TriangleWeights, mask: Tensor | None, incoming: bool, divide_by: Tensor | None
) -> Tensor:
    x = layer_norm(z, *weights.norm_in)
    own = _gated_operands(x, weights, mask, _half(weights, int(incoming)))
    a, b = (whole, own) if incoming else (own, whole)
    return _gated_product(x, a, b, weights, incoming, divide_by)


def _reference(z: Tensor, weights: TriangleWeights, mask: Tensor | None, incoming: bool, divide_by: Tensor | None) -> Tensor:
    """As the paper writes it."""
    x = layer_norm(z, *weights.norm_in)
    ab = torch.sigmoid(linear(x, *weights.gate)) * linear(x, *weights.proj)
    ab = in_range(ab if mask is None else ab.masked_fill(~mask.unsqueeze(-1), 0.0))
    a, b = ab.chunk(2, dim=-1)
    o = torch.einsum("...kic,...kjc->...ijc" if incoming else "...ikc,...jkc->...ijc", a, b)
    o = o if divide_by is None else o / divide_by
    return torch.sigmoid(linear(x, *weights.out_gate)) * linear(layer_norm(o, *weights.norm_out).to(x.dtype), *weights.out)


def _triton(z: Tensor, weights: TriangleWeights, mask: Tensor | None, incoming: bool, divide_by: Tensor | None) -> Tensor:
    a, b = triton_triangle.gated_projection(z, mask, weights.norm_in, weights.proj, weights.gate).chunk(2, dim=-3)
    return _triton_product(z, a, b, weights, incoming, divide_by)


def _triton_product(z: Tensor, a: Tensor, b: Tensor, weights: TriangleWeights, incoming: bool, divide_by: Tensor | None) -> Tensor:
    product = triangle_product(a, b, incoming=incoming)
    product = product if divide_by is None else product / divide_by
    return triton_triangle.gated_output(product, weights.norm_out, weights.out, z, weights.norm_in, weights.out_gate)


def _triton_operand(z: Tensor, weights: TriangleWeights, mask: Tensor | None, which: int) -> Tensor:
    half = _half(weights, which)
    proj, gating = (Linear(layer.weight[half], None if layer.bias is None else layer.bias[half]) for layer in (weights.proj, weights.gate))
    return triton_triangle.gated_projection(z, mask, weights.norm_in, proj, gating)


def _triton_delta(
    z: Tensor, whole: Tensor, weights: TriangleWeights, mask: Tensor | None, incoming: bool, divide_by: Tensor | None
) -> Tensor:
    own = _triton_operand(z, weights, mask, int(incoming))
    a, b = (whole, own) if incoming else (own, whole)
    return _triton_product(z, a, b, weights, incoming, divide_by)


def _triton_why_not(spec: TriangleSpec) -> list[str]:
    reasons = triton_triangle.why_not(spec, (spec.c_z, spec.c))
    if spec.product_dtype != spec.dtype:
        reasons.append(f"computes products in the dtype of z, {spec.dtype}, not in {spec.product_dtype}")
    return reasons


def _check(z: Tensor, weights: TriangleWeights) -> None:
    c_z, c = z.shape[-1] if z.dim() else 0, weights.out.weight.shape[-1]
    expected = {"proj": (2 * c, c_z), "gate": (2 * c, c_z), "out": (c_z, c), "out_gate": (c_z, c_z)}
    odd = [f"{name} {tuple(getattr(weights, name).weight.shape)}, not {shape}" for name, shape in expected.items()
           if tuple(getattr(weights, name).weight.shape) != shape]  # fmt: skip
    if z.dim() < 3 or z.shape[-2] != z.shape[-3] or odd:
        raise ShapeError(
            f"triangle_update: z has shape {tuple(z.shape)}, expected [*batch, n, n, c_z]; and the layers must fit it"
            f"{': ' + '; '.join(odd) if odd else ''}."
        )


LEAN = Backend("lean", _lean, why_not=lambda spec: [])
REFERENCE = Backend("reference", _reference, why_not=lambda spec: [])
TRITON = Backend("triton", _triton, _triton_why_not, launch.missing, package="triton", needs_check=True)
TRIANGLE_UPDATE = Registry("triangle_update", [TRITON, CUEQUIVARIANCE_UPDATE, LEAN, REFERENCE])
IN_STEPS = {TRITON: Steps(_triton_operand, _triton_delta), LEAN: Steps(_lean_operand, _lean_delta)}
