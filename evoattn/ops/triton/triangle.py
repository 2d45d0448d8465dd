"""The two fused halves of the triangle multiplicative update in Triton; a batched matrix product goes between them.

Forward each half is one kernel (:mod:`evoattn.ops.triton.triangle_kernels`) that reads the pair representation once and writes its result
once. Backward it is recomputed in plain torch, a few rows of pairs at a time, so that none of its intermediate results exists in full.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from evoattn.ops.devices import against_card, current_device_of
from evoattn.ops.gate import gate
from evoattn.ops.layers import Linear, Norm, layer_norm
from evoattn.ops.tiles import spans
from evoattn.ops.triton import launch

MAX_CHANNELS = {4: 128, 2: 256}  # by the bytes of a number: a program holds all channels of its pairs
BACKWARD_PAIRS = 2**16  # pairs that the backward pass works on at a time


def why_not(spec: Any, channels: Sequence[int]) -> list[str]:
    """The reasons against both halves, for a spec with `device`, `arch` and `dtype`, and pairs with these numbers of channels."""
    reasons = against_card(spec, (8, 0)) + launch.against_dtype(spec.dtype)
    limit = MAX_CHANNELS.get(spec.dtype.itemsize, 0)
    if limit and max(channels) > limit:
        reasons.append(f"holds up to {limit} channels of a pair in {str(spec.dtype).removeprefix('torch.')}, got {max(channels)}")
    return reasons


def gated_projection(
    z: Float[Tensor, "*batch n n2 c_z"], mask: Bool[Tensor, "*batch n n2"] | None, norm: Norm, proj: Linear, gating: Linear
) -> Float[Tensor, "*batch c n n2"]:
    """mask * sigmoid(gating(norm(z))) * proj(norm(z)), channels first, in the dtype of z: what the triangle product takes.

    AlphaFold 2 supplement, algorithms 11 and 12, steps 1 and 2. z is finite, also where it is masked.
    """
    *batch, n, n2, c_z = z.shape
    folded = z.reshape(prod(batch), n, n2, c_z).contiguous()
    folded_mask = None if mask is None else mask.reshape(prod(batch), n, n2).contiguous()
    out = _Fused.apply(_PROJECTION, (norm.eps,), folded, folded_mask, norm.weight, norm.bias, *proj, *gating)
    return out.view(*batch, *out.shape[1:])


def gated_output(
    product: Float[Tensor, "*batch c n n2"], product_norm: Norm, out: Linear, z: Float[Tensor, "*batch n n2 c_z"], norm: Norm,
    gating: Linear,
) -> Float[Tensor, "*batch n n2 c_z"]:  # fmt: skip
    """sigmoid(gating(norm(z))) * out(product_norm(product)), in the dtype of z; the product may be wider.

    AlphaFold 2 supplement, algorithms 11 and 12, steps 3 and 4.
    """
    batch = z.shape[:-3]
    folded_product, folded_z = (x.reshape(prod(batch), *x.shape[-3:]).contiguous() for x in (product, z))
    result = _Fused.apply(_OUTPUT, (product_norm.eps, norm.eps), folded_product, product_norm.weight, product_norm.bias, *out,
                          folded_z, norm.weight, norm.bias, *gating)  # fmt: skip
    return result.view(z.shape)


@dataclass(frozen=True)
class _Half:
    """One half, written twice.

    Attributes:
        kernel, plain: (eps, *inputs) -> output, in Triton and in plain torch.
        rows: for each input, its axis of rows of pairs; None for what all rows share.
        out_rows: that axis of the output.
    """

    kernel: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    rows: tuple[int | None, ...]
    out_rows: int


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, half: _Half, eps: tuple[float, ...], *inputs: Tensor | None) -> Tensor:
        ctx.half, ctx.eps = half, eps
        ctx.save_for_backward(*inputs)
        return half.kernel(eps, *inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        half, inputs, wanted = ctx.half, ctx.saved_tensors, ctx.needs_input_grad[2:]
        grads = [
            # What all rows share gets a sum of many terms: in float32.
            torch.zeros_like(x, dtype=torch.float32 if axis is None else x.dtype) if want else None
            for x, want, axis in zip(inputs, wanted, half.rows, strict=True)
        ]
        n, n2 = grad_out.shape[half.out_rows : half.out_rows + 2]
        for entry, rows in itertools.product(range(grad_out.shape[0]), spans(n, BACKWARD_PAIRS // n2)):
            leaves = [
                None if x is None else _part(x, axis, entry, rows).detach().requires_grad_(want)
                for x, axis, want in zip(inputs, half.rows, wanted, strict=True)
            ]
            with torch.enable_grad(), torch.autocast(grad_out.device.type, enabled=False):
                out = half.plain(ctx.eps, *leaves)
            asked = [x for x in leaves if x is not None and x.requires_grad]
            found = iter(torch.autograd.grad(out, asked, _part(grad_out, half.out_rows, entry, rows)))
            for total, axis in zip(grads, half.rows, strict=True):
                if total is not None:
                    _part(total, axis, entry, rows).add_(next(found))
        return None, None, *(None if grad is None else grad.to(x.dtype) for grad, x in zip(grads, inputs, strict=True))


def _part(x: Tensor, axis: int | None, entry: int, rows: slice) -> Tensor:
    """The rows of one batch entry, a view; all of what has no axis of rows."""
    return x if axis is None else x[entry : entry + 1].narrow(axis, rows.start, rows.stop - rows.start)


def _tiles(channels: int, itemsize: int) -> dict[str, int]:
    """Pairs and output channels of a tile, found as those of attention are: see :mod:`evoattn.ops.triton.tiles`."""
    if itemsize == 4:
        return {"BLOCK_P": 16, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
    return {"BLOCK_P": 64 if channels <= 128 else 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}


def _kernel_projection(eps: tuple[float], z: Tensor, mask: Tensor | None, *weights: Tensor | None) -> Tensor:
    from evoattn.ops.triton import triangle_kernels

    batch, n, n2, c_z = z.shape
    norm_weight, norm_bias, proj_weight, proj_bias, gate_weight, gate_bias = map(launch.contiguous, weights)
    assert proj_weight is not None
    out = z.new_empty(batch, proj_weight.shape[0], n, n2)
    options = _tiles(launch.padded(c_z), z.element_size())
    with current_device_of(z):
        triangle_kernels.gated_projection[(batch * -(-n * n2 // options["BLOCK_P"]),)](
            z, None if mask is None else mask.view(torch.uint8), norm_weight, norm_bias, proj_weight, proj_bias, gate_weight, gate_bias,
            out, n * n2, out.shape[1], *eps, C=c_z, BLOCK_C=launch.padded(c_z), PRECISION=launch.precision(z.dtype), enable_fp_fusion=True,
            **options,
        )  # fmt: skip
    return out


def _plain_projection(
    eps: tuple[float], z: Tensor, mask: Tensor | None, norm_weight: Tensor | None, norm_bias: Tensor | None, *weights: Tensor | None
) -> Tensor:
    proj_weight, proj_bias, gate_weight, gate_bias = weights
    x = layer_norm(z, norm_weight, norm_bias, eps[0])
    value = gate(_linear(x, proj_weight, proj_bias), _linear(x, gate_weight, gate_bias))
    return (value if mask is None else value.masked_fill(~mask.unsqueeze(-1), 0.0)).movedim(-1, 1)


def _kernel_output(eps: tuple[float, float], product: Tensor, *inputs: Tensor | None) -> Tensor:
    from evoattn.ops.triton import triangle_kernels

    product_norm_weight, product_norm_bias, out_weight, out_bias, z, norm_weight, norm_bias, gate_weight, gate_bias = map(
        launch.contiguous, inputs
    )
    assert z is not None
    batch, n, n2, c_z = z.shape
    c_hidden, out = product.shape[1], torch.empty_like(z)
    options = _tiles(launch.padded(max(c_z, c_hidden)), z.element_size())
    with current_device_of(z):
        triangle_kernels.gated_output[(batch * -(-n * n2 // options["BLOCK_P"]),)](
            product, product_norm_weight, product_norm_bias, out_weight, out_bias, z, norm_weight, norm_bias, gate_weight, gate_bias, out,
            n * n2, *eps, C_HIDDEN=c_hidden, BLOCK_H=launch.padded(c_hidden), C=c_z, BLOCK_C=launch.padded(c_z),
            PRECISION=launch.precision(z.dtype), enable_fp_fusion=True, **options,
        )  # fmt: skip
    return out


def _plain_output(eps: tuple[float, float], product: Tensor, *inputs: Tensor | None) -> Tensor:
    product_norm_weight, product_norm_bias, out_weight, out_bias, z, norm_weight, norm_bias, gate_weight, gate_bias = inputs
    assert z is not None
    y = layer_norm(product.movedim(1, -1), product_norm_weight, product_norm_bias, eps[0]).to(z.dtype)
    return gate(_linear(y, out_weight, out_bias), _linear(layer_norm(z, norm_weight, norm_bias, eps[1]), gate_weight, gate_bias))


def _linear(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    assert weight is not None
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


_PROJECTION = _Half(_kernel_projection, _plain_projection, rows=(1, 1, *[None] * 6), out_rows=2)
_OUTPUT = _Half(_kernel_output, _plain_output, rows=(2, *[None] * 4, 1, *[None] * 4), out_rows=1)
