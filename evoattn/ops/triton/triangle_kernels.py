"""The Triton kernels of the triangle multiplicative update. This file needs triton: it is imported inside functions alone.

z is [batch, pairs, c_z], contiguous; operands and product have their channels first, [batch, c, pairs], contiguous, as the batched matrix
product between the two kernels reads and writes them. A program owns a block of pairs of one batch entry, reads it once, and walks over
the output channels. Norms are computed in float32; products of tiles add up in float32.
"""

from typing import no_type_check  # kernels take pointers and compile-time constants, to which annotations do not apply

import triton
import triton.language as tl


@triton.jit
@no_type_check
def load_vector(x, places, size, default):
    """[BLOCK] in float32; `default` where x is None."""
    if x is None:
        return tl.full(places.shape, default, tl.float32)
    return tl.load(x + places, mask=places < size, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def normed(tile, weight, bias, eps, C: tl.constexpr, BLOCK_C: tl.constexpr):
    """Layer norm of [pairs, BLOCK_C] over its C channels, float32. 0 beyond them."""
    channels = tl.arange(0, BLOCK_C)
    inside = (channels < C)[None, :]
    tile = tile.to(tl.float32)
    centred = tl.where(inside, tile - (tl.sum(tile, 1) / C)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / C + eps)
    return centred * scale[:, None] * load_vector(weight, channels, C, 1.0)[None, :] + load_vector(bias, channels, C, 0.0)[None, :]


@triton.jit
@no_type_check
def linear(x, weight, bias, outputs, n_outputs, C: tl.constexpr, BLOCK_C: tl.constexpr, PRECISION: tl.constexpr):
    """x W^T + bias for the channels `outputs` of a layer [n_outputs, C], float32."""
    channels = tl.arange(0, BLOCK_C)
    inside = (channels < C)[:, None] & (outputs < n_outputs)[None, :]
    weights = tl.load(weight + outputs[None, :] * C + channels[:, None], mask=inside, other=0.0)
    return tl.dot(x, weights.to(x.dtype), input_precision=PRECISION) + load_vector(bias, outputs, n_outputs, 0.0)[None, :]


@triton.jit
@no_type_check
def gated_projection(
    z, mask, norm_weight, norm_bias, proj_weight, proj_bias, gate_weight, gate_bias, out, n_pairs, n_outputs, eps,
    C: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """mask * sigmoid(gate(norm(z))) * proj(norm(z)), channels first, for one block of pairs."""
    blocks = tl.cdiv(n_pairs, BLOCK_P)
    pairs = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    entry = (tl.program_id(0) // blocks).to(tl.int64)
    inside = pairs < n_pairs
    channels = tl.arange(0, BLOCK_C)
    to_pairs = (entry * n_pairs + pairs)[:, None] * C
    tile = tl.load(z + to_pairs + channels[None, :], mask=inside[:, None] & (channels < C)[None, :], other=0.0)
    x = normed(tile, norm_weight, norm_bias, eps, C, BLOCK_C).to(z.dtype.element_ty)
    kept = inside
    if mask is not None:
        kept = tl.load(mask + entry * n_pairs + pairs, mask=inside, other=0) != 0
    for start in range(0, n_outputs, BLOCK_N):
        outputs = start + tl.arange(0, BLOCK_N)
        value = linear(x, proj_weight, proj_bias, outputs, n_outputs, C, BLOCK_C, PRECISION)
        gate = linear(x, gate_weight, gate_bias, outputs, n_outputs, C, BLOCK_C, PRECISION)
        value = tl.where(kept[:, None], value * tl.sigmoid(gate), 0.0)  # by selection: what is NaN at a masked pair vanishes, too
        places = out + (entry * n_outputs + outputs)[None, :] * n_pairs + pairs[:, None]
        tl.store(places, value.to(out.dtype.element_ty), mask=inside[:, None] & (outputs < n_outputs)[None, :])


@triton.jit
@no_type_check
def gated_output(
    product, product_norm_weight, product_norm_bias, out_weight, out_bias, z, norm_weight, norm_bias, gate_weight, gate_bias, out,
    n_pairs, product_eps, eps,
    C_HIDDEN: tl.constexpr, BLOCK_H: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sigmoid(gate(norm(z))) * linear(norm(product)) for one block of pairs; `out` is laid out as z."""
    blocks = tl.cdiv(n_pairs, BLOCK_P)
    pairs = tl.program_id(0) % blocks * BLOCK_P + tl.arange(0, BLOCK_P)
    entry = (tl.program_id(0) // blocks).to(tl.int64)
    inside = (pairs < n_pairs)[:, None]
    channels, hidden = tl.arange(0, BLOCK_C), tl.arange(0, BLOCK_H)
    to_pairs = (entry * n_pairs + pairs)[:, None] * C
    tile = tl.load(z + to_pairs + channels[None, :], mask=inside & (channels < C)[None, :], other=0.0)
    x = normed(tile, norm_weight, norm_bias, eps, C, BLOCK_C).to(z.dtype.element_ty)
    places = product + (entry * C_HIDDEN + hidden)[None, :] * n_pairs + pairs[:, None]
    tile = tl.load(places, mask=inside & (hidden < C_HIDDEN)[None, :], other=0.0)
    y = normed(tile, product_norm_weight, product_norm_bias, product_eps, C_HIDDEN, BLOCK_H).to(z.dtype.element_ty)
    for start in range(0, C, BLOCK_N):
        outputs = start + tl.arange(0, BLOCK_N)
        value = linear(y, out_weight, out_bias, outputs, C, C_HIDDEN, BLOCK_H, PRECISION)
        gate = linear(x, gate_weight, gate_bias, outputs, C, C, BLOCK_C, PRECISION)
        result = (value * tl.sigmoid(gate)).to(out.dtype.element_ty)
        tl.store(out + to_pairs + outputs[None, :], result, mask=inside & (outputs < C)[None, :])
