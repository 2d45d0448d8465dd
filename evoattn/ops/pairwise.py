"""The two products over pairs of residues: triangle product (sum over a third residue) and outer product mean (sum over sequences).

Both sum in float32 or wider, as matrix products do inside. Of float16 they also keep the result in float32: the sums run over hundreds of
terms and overflow float16 long before the final result, which is normalised, does. bfloat16 has the range of float32.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.ops.devices import architecture
from evoattn.ops.kept import is_unread, nothing
from evoattn.ops.layers import lowered
from evoattn.ops.registry import Backend, Registry

POSITIONS_AT_ONCE = 4096  # positions that channels_first projects at a time: input and output of so many fit a cache
OUTER_TILE = 2**22  # entries of one [rows, N_res, c * c] block of outer products: 16 MiB in float32


def triangle_product(
    a: Float[Tensor, "*batch c i_or_k k_or_i"], b: Float[Tensor, "*batch c j_or_k k_or_j"], *, incoming: bool = False
) -> Float[Tensor, "*batch c i j"]:
    """Outgoing: o_ij = sum_k a_ik b_jk. Incoming: o_ij = sum_k a_ki b_kj. Channels first. Of float16 it is float32.

    AlphaFold 2 supplement, algorithms 11 and 12, step 4.

    Raises:
        ShapeError: batch axes, channels, dtype or the axis k of the two differ.
    """
    k = -2 if incoming else -1
    if a.dim() < 3 or a.shape[:-2] != b.shape[:-2] or a.shape[k] != b.shape[k] or a.dtype != b.dtype:
        raise ShapeError(
            f"triangle_product: a has shape {tuple(a.shape)} and dtype {a.dtype}, b {tuple(b.shape)} and {b.dtype}; expected two alike, "
            f"[*batch, c, N_res, N_res], channels first (rearrange(x, '... i j c -> ... c i j')), or slices of them that share axis {k}."
        )
    with torch.autocast(a.device.type, enabled=False):
        product: Tensor = _TriangleProduct.apply(in_range(a), in_range(b), incoming)
    return product


class _TriangleProduct(torch.autograd.Function):
    """The gradient often comes with its channels last in memory, on which batched products take twice as long: it is copied first."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, incoming: bool) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.incoming = incoming
        return a.mT @ b if incoming else a @ b.mT

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        grad = grad.contiguous()
        if ctx.incoming:
            return b @ grad.mT, a @ grad, None
        return grad @ b, grad.mT @ a, None


def in_range(x: Tensor) -> Tensor:
    """`x` in a dtype that holds undivided sums."""
    return x.float() if x.dtype == torch.float16 else x


def channels_first(
    x: Float[Tensor, "*batch i j c"], weight: Float[Tensor, "c2 c"], bias: Float[Tensor, "c2"] | None
) -> Float[Tensor, "*batch c2 i j"]:
    """A linear layer whose output has its channels first, as :func:`triangle_product` takes them: written so by the product itself."""
    x = lowered(x)
    flat = x.reshape(prod(x.shape[:-3]), x.shape[-3] * x.shape[-2], x.shape[-1])
    with torch.autocast(x.device.type, enabled=False):
        out = _ChannelsFirst.apply(flat, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return out.view(*x.shape[:-3], weight.shape[0], *x.shape[-3:-1])


class _ChannelsFirst(torch.autograd.Function):
    """The gradient of x comes out with its channels last, as x has them; torch's own would be transposed, and slow to add to others."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(flat, weight)
        out = flat.new_empty(flat.shape[0], weight.shape[0], flat.shape[1])
        for entry, place in zip(flat, out, strict=True):
            for x, columns in zip(entry.split(POSITIONS_AT_ONCE), place.split(POSITIONS_AT_ONCE, dim=1), strict=True):
                torch.mm(weight, x.mT, out=columns) if bias is None else torch.addmm(bias.unsqueeze(-1), weight, x.mT, out=columns)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat, weight = ctx.saved_tensors
        dbias = grad.sum((0, 2)) if ctx.needs_input_grad[2] else None
        return grad.mT @ weight, (grad @ flat).sum(0), dbias


def outer_product_mean(
    a: Float[Tensor, "*batch s i c"],
    b: Float[Tensor, "*batch s j c2"],
    weight: Float[Tensor, "c_z c*c2"],
    bias: Float[Tensor, "c_z"] | None,
    count: Float[Tensor, "*batch i j"],
    *,
    backend: str | Backend = "auto",
) -> Float[Tensor, "*batch i j c_z"]:
    """z_ij = (W vec(sum_s a_si outer b_sj) + bias) / count_ij, in the dtype of `a`; AlphaFold 2 supplement, algorithm 10.

    `lean`, the default, works on blocks of rows i, forward and backward, so that the [N_res, N_res, c * c2] tensor of outer products never
    exists.

    Args:
        a, b: projections of the alignment; masked positions are 0.
        weight: of the output projection, the channel of `a` major.
        bias: of the output projection, divided by the count as well (as AlphaFold 2 does); None for none.
        count: what to divide by, for instance 1e-3 + the number of sequences that have both residues; it gets no gradient.
        backend: as for :func:`evoattn.attention`; those of this op are "lean" and "reference".

    Raises:
        ShapeError: a tensor does not fit the others. BackendError: there is no such backend.
    """
    _check_outer(a, b, weight, bias, count)
    if torch.compiler.is_compiling():
        chosen = OUTER_PRODUCT_MEAN.named(backend, default=LEAN)
    else:
        chosen = OUTER_PRODUCT_MEAN.select(describe_outer(a, b, weight), backend)
    with torch.autocast(a.device.type, enabled=False):
        mean: Tensor = chosen.run(a, b, weight, bias, count)
    return mean


@dataclass(frozen=True)
class OuterSpec:
    """Metadata of one outer product mean, all that a backend's rules may look at: sizes of a and of what comes out."""

    shape: tuple[int, ...]
    c_z: int
    dtype: torch.dtype
    device: str
    arch: str | None
    needs_grad: bool

    def __str__(self) -> str:
        grad = "gradients" if self.needs_grad else "no gradients"
        return f"a {list(self.shape)}, {self.c_z} channels of the pair, {str(self.dtype).removeprefix('torch.')} on {self.device}, {grad}"


def describe_outer(a: Tensor, b: Tensor, weight: Tensor) -> OuterSpec:
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, weight))
    return OuterSpec(tuple(a.shape), weight.shape[0], a.dtype, a.device.type, architecture(a.device), needs_grad)


def _check_outer(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None, count: Tensor) -> None:
    if a.dim() < 3 or b.dim() < 3 or a.shape[:-2] != b.shape[:-2] or a.dtype != b.dtype:
        raise ShapeError(
            f"outer_product_mean: a has shape {tuple(a.shape)} and dtype {a.dtype}, b {tuple(b.shape)} and {b.dtype}; expected [*batch, "
            "N_seq, N_res, c], alike in all but the residues and the last axis."
        )
    *batch, _, n_res, c = a.shape
    expected: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("weight", weight, (weight.shape[0] if weight.dim() else 0, c * b.shape[-1])),
        ("bias", bias, (weight.shape[0] if weight.dim() else 0,)),
        ("count", count, (*batch, n_res, b.shape[-2])),
    ]
    for name, x, shape in expected:
        if x is not None and tuple(x.shape) != shape:
            raise ShapeError(
                f"outer_product_mean: {name} has shape {tuple(x.shape)}; expected {shape}: weight is [c_z, c * c2], bias [c_z] and count "
                "[*batch, N_res, N_res]."
            )


def _reference(a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None, count: Tensor) -> Tensor:
    """As the paper writes it."""
    outer = torch.einsum("...sic,...sje->...ijce", in_range(a), in_range(b)).flatten(-2)
    total = outer @ weight.to(outer.dtype).mT
    total = total if bias is None else total + bias.to(outer.dtype)
    return (total / count.unsqueeze(-1)).to(a.dtype)


class _OuterProductMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None, count: Tensor) -> Tensor:
        ctx.save_for_backward(a, b, weight, bias, count)
        shape = *a.shape[:-3], a.shape[-2], b.shape[-2], weight.shape[0]
        if is_unread():
            return nothing(a, *shape)
        p = _Outer(a, b, weight, count)
        out = a.new_empty(shape)
        for rows in p.blocks():
            block = p.products(rows) @ p.weight.mT
            if bias is not None:
                block += bias.to(block.dtype)
            out[..., rows, :, :] = block.mul_(p.shrink[..., rows, :, :])
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b, weight, bias, count = ctx.saved_tensors
        p = _Outer(a, b, weight, count)
        da, db, dw = (torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (a, b, weight))
        dbias = None if bias is None else torch.zeros_like(bias, dtype=dw.dtype)
        for rows in p.blocks():
            g = grad[..., rows, :, :].to(p.dtype) * p.shrink[..., rows, :, :]
            dw += torch.einsum("...z,...x->zx", g, p.products(rows))
            if dbias is not None:
                dbias += g.flatten(0, -2).sum(0, dtype=dbias.dtype)
            douter = (g @ p.weight).unflatten(-1, (a.shape[-1], b.shape[-1]))
            da[..., rows, :] = torch.einsum("...ijce,...sje->...sic", douter, p.b)
            db += torch.einsum("...ijce,...sic->...sje", douter, p.a[..., rows, :])
        return da.to(a.dtype), db.to(b.dtype), dw.to(weight.dtype), None if dbias is None or bias is None else dbias.to(bias.dtype), None


class _Outer:
    """The operands in the dtype of their products, and the blocks they are worked through in."""

    def __init__(self, a: Tensor, b: Tensor, weight: Tensor, count: Tensor) -> None:
        self.a, self.b = in_range(a), in_range(b)
        self.dtype = self.a.dtype
        self.weight = weight.to(self.dtype)
        self.shrink = count.to(torch.promote_types(self.dtype, count.dtype)).reciprocal().unsqueeze(-1).to(self.dtype)

    def blocks(self) -> list[slice]:
        """Rows i, as many at a time as keep a block of outer products near OUTER_TILE entries."""
        n, per_row = self.a.shape[-2], self.b.shape[:-3].numel() * self.b.shape[-2] * self.weight.shape[-1]
        step = max(1, OUTER_TILE // max(per_row, 1))
        return [slice(start, start + step) for start in range(0, n, step)]

    def products(self, rows: slice) -> Tensor:
        """[*batch, rows, N_res, c * c2]: outer products summed over sequences."""
        return torch.einsum("...sic,...sje->...ijce", self.a[..., rows, :], self.b).flatten(-2)


LEAN = Backend("lean", _OuterProductMean.apply, why_not=lambda spec: [])
REFERENCE = Backend("reference", _reference, why_not=lambda spec: [])
OUTER_PRODUCT_MEAN = Registry("outer_product_mean", [LEAN, REFERENCE])
