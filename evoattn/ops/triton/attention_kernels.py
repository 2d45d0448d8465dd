"""The Triton kernels of fused attention. This file needs triton: it is imported inside functions alone.

Tensors are [g0, g1, heads, length, width], with unit stride along the width: two batch axes, given by their strides, so that a bias or
mask that is shared along one of them (stride 0) is never expanded. A program owns one block of queries, or of keys, of one head of one
batch entry. Programs are numbered along the first axis of the grid alone, the only one that may pass 65,535.

Arguments that go together are tuples: `operands` (q, k, v) and `terms` (bias per key, bias per query and key, mask; None where there is
none), with their strides, and `sizes` (g1, heads, queries, keys). The strides of a term end with the number of keys that may be read:
more than there are where the term was padded, so that reads are aligned. Offsets that can pass 2^31 are 64 bits wide. Logits and
log-sum-exp are in base 2, in which the hardware has its exponential.

FlashAttention (Dao et al. 2022, Dao 2023): attention in tiles, recomputed from the log-sum-exp in the backward pass. The gradient of a
bias that several batch entries or heads share is summed by the program that owns its tile, one after the other: without atomic additions,
so that every run gives the same bits.
"""

from typing import no_type_check  # kernels take pointers and compile-time constants, to which annotations do not apply

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def split_program(n_blocks, n_heads, n_inner):
    """The block that this program owns, and head, inner and outer batch entry that it lies in."""
    program = tl.program_id(0)
    place = program // n_blocks
    return program % n_blocks, place % n_heads, place // n_heads % n_inner, place // n_heads // n_inner


@triton.jit
@no_type_check
def at(x, stride, outer, inner, head):
    """Pointer to one head of one batch entry."""
    return x + outer.to(tl.int64) * stride[0] + inner.to(tl.int64) * stride[1] + head.to(tl.int64) * stride[2]


@triton.jit
@no_type_check
def all_at(tensors, strides, outer, inner, head):
    a, b, c = tensors
    if a is not None:
        a = at(a, strides[0], outer, inner, head)
    if b is not None:
        b = at(b, strides[1], outer, inner, head)
    if c is not None:
        c = at(c, strides[2], outer, inner, head)
    return a, b, c


@triton.jit
@no_type_check
def load_rows(x, stride, rows, kept, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """[rows, BLOCK]; 0 in rows that are not `kept` (beyond the last, or hidden), and beyond WIDTH."""
    columns = tl.arange(0, BLOCK)
    inside = kept[:, None]
    if WIDTH < BLOCK:
        inside = inside & (columns < WIDTH)[None, :]
    return tl.load(x + rows.to(tl.int64)[:, None] * stride[3] + columns[None, :], mask=inside, other=0.0)


@triton.jit
@no_type_check
def store_rows(x, stride, values, rows, n_rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = (rows < n_rows)[:, None] & (columns < WIDTH)[None, :]
    tl.store(x + rows.to(tl.int64)[:, None] * stride[3] + columns[None, :], values.to(x.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def may_attend(terms, strides, keys, n_keys, MASK_PER_QUERY: tl.constexpr):
    """Whether any query may attend each key, as far as one can see without looking at the queries."""
    _, _, mask = terms
    allowed = keys < n_keys
    if mask is not None and not MASK_PER_QUERY:
        allowed = allowed & (tl.load(mask + keys.to(tl.int64) * strides[2][4], mask=keys < strides[2][5], other=0) != 0)
    return allowed


@triton.jit
@no_type_check
def load_key_terms(terms, strides, keys, n_keys, MASK_PER_QUERY: tl.constexpr):
    """What is added to all logits of each key (None if there is no such bias), and whether the key may be attended."""
    added, _, _ = terms
    allowed = may_attend(terms, strides, keys, n_keys, MASK_PER_QUERY)
    if added is not None:
        added = tl.load(added + keys.to(tl.int64) * strides[0][4], mask=keys < strides[0][5], other=0.0).to(tl.float32) * LOG2_E
    return added, allowed


@triton.jit
@no_type_check
def finish_logits(products, scale, key_terms, terms, strides, rows, keys, n_rows, MASK_PER_QUERY: tl.constexpr):
    """Base-2 logits of a tile of q k^T: scaled, biases added, -inf where masked or beyond the last key.

    `rows` and `keys` have two axes, [BLOCK_M, 1] and [1, BLOCK_N] or the other way round: the tile may lie either way.
    """
    added, allowed = key_terms
    _, pair_bias, mask = terms
    logits = products * (scale * LOG2_E)
    if added is not None:
        logits += added
    if pair_bias is not None:
        entries = pair_bias + rows.to(tl.int64) * strides[1][3] + keys.to(tl.int64) * strides[1][4]
        logits += tl.load(entries, mask=(rows < n_rows) & (keys < strides[1][5]), other=0.0).to(tl.float32) * LOG2_E
    if mask is not None and MASK_PER_QUERY:
        entries = mask + rows.to(tl.int64) * strides[2][3] + keys.to(tl.int64) * strides[2][4]
        allowed = allowed & (tl.load(entries, mask=(rows < n_rows) & (keys < strides[2][5]), other=0) != 0)
    return tl.where(allowed, logits, float("-inf"))


@triton.jit
@no_type_check
def load_lse(lse, rows, n_rows):
    """Log-sum-exp to subtract. 0 for a row with no allowed key: exp(-inf - 0) = 0; inf beyond the last row, to the same end."""
    value = tl.load(lse + rows, mask=rows < n_rows, other=float("inf"))
    return tl.where(value == float("-inf"), 0.0, value)


@triton.jit
@no_type_check
def gradient_of_logits(weights, grad_weights, correction):
    """By selection: where nothing is attended, what stands there (NaN for all we know) and its gradient reach nothing."""
    return tl.where(weights == 0.0, 0.0, weights * (grad_weights - correction))


@triton.jit
@no_type_check
def forward(
    operands, strides, terms, term_strides, out, out_stride, lse, sizes, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK_PER_QUERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and log-sum-exp of one block of queries. The log-sum-exp is [g0, g1, heads, q], contiguous, in base 2."""
    n_inner, heads, n_rows, n_keys = sizes
    block, head, inner, outer = split_program(tl.cdiv(n_rows, BLOCK_M), heads, n_inner)
    q, k, v = all_at(operands, strides, outer, inner, head)
    terms = all_at(terms, term_strides, outer, inner, head)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)

    queries = load_rows(q, strides[0], rows, rows < n_rows, D, BLOCK_D)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mean = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    for start in range(0, n_keys, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        products = tl.dot(queries, tl.trans(load_rows(k, strides[1], keys, keys < n_keys, D, BLOCK_D)), input_precision=PRECISION)
        key_terms = load_key_terms(terms, term_strides, keys[None, :], n_keys, MASK_PER_QUERY)
        logits = finish_logits(products, scale, key_terms, terms, term_strides, rows[:, None], keys[None, :], n_rows, MASK_PER_QUERY)
        new_top = tl.maximum(top, tl.max(logits, 1))
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing allowed so far: exp(-inf - 0) = 0
        weights = tl.exp2(logits - finite_top[:, None])
        kept = tl.exp2(top - finite_top)  # what the blocks before are worth under the new maximum
        total = total * kept + tl.sum(weights, 1)
        attended = may_attend(terms, term_strides, keys, n_keys, MASK_PER_QUERY)
        values = load_rows(v, strides[2], keys, attended, DV, BLOCK_DV)  # 0 * NaN is NaN: what is hidden is not read
        mean = tl.dot(weights.to(values.dtype), values, mean * kept[:, None], input_precision=PRECISION)
        top = new_top
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    store_rows(at(out, out_stride, outer, inner, head), out_stride, mean / total[:, None], rows, n_rows, DV, BLOCK_DV)
    to_rows = ((outer.to(tl.int64) * n_inner + inner) * heads + head) * n_rows
    tl.store(lse + to_rows + rows, tl.where(empty, float("-inf"), tl.log2(total) + top), mask=rows < n_rows)


@triton.jit
@no_type_check
def backward_queries(
    operands, strides, terms, term_strides, out, out_stride, lse, grad_out, grad_out_stride, grad_lse, delta, grad_q, grad_q_stride,
    sizes, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK_PER_QUERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries, and delta = rowsum(out * grad_out) - grad_lse, which the other two kernels read."""
    n_inner, heads, n_rows, n_keys = sizes
    block, head, inner, outer = split_program(tl.cdiv(n_rows, BLOCK_M), heads, n_inner)
    q, k, v = all_at(operands, strides, outer, inner, head)
    terms = all_at(terms, term_strides, outer, inner, head)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    to_rows = ((outer.to(tl.int64) * n_inner + inner) * heads + head) * n_rows

    grads = load_rows(at(grad_out, grad_out_stride, outer, inner, head), grad_out_stride, rows, rows < n_rows, DV, BLOCK_DV)
    outputs = load_rows(at(out, out_stride, outer, inner, head), out_stride, rows, rows < n_rows, DV, BLOCK_DV)
    correction = tl.sum(outputs.to(tl.float32) * grads.to(tl.float32), 1)
    if grad_lse is not None:
        correction -= tl.load(grad_lse + to_rows + rows, mask=rows < n_rows, other=0.0)
    tl.store(delta + to_rows + rows, correction, mask=rows < n_rows)

    if grad_q is not None:
        queries = load_rows(q, strides[0], rows, rows < n_rows, D, BLOCK_D)
        row_lse = load_lse(lse + to_rows, rows, n_rows)
        result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        for start in range(0, n_keys, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            attended = may_attend(terms, term_strides, keys, n_keys, MASK_PER_QUERY)
            key_tile = load_rows(k, strides[1], keys, attended, D, BLOCK_D)
            products = tl.dot(queries, tl.trans(key_tile), input_precision=PRECISION)
            key_terms = load_key_terms(terms, term_strides, keys[None, :], n_keys, MASK_PER_QUERY)
            logits = finish_logits(products, scale, key_terms, terms, term_strides, rows[:, None], keys[None, :], n_rows, MASK_PER_QUERY)
            weights = tl.exp2(logits - row_lse[:, None])
            values = load_rows(v, strides[2], keys, keys < n_keys, DV, BLOCK_DV)
            grad_weights = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
            grad_logits = gradient_of_logits(weights, grad_weights, correction[:, None])
            result = tl.dot(grad_logits.to(key_tile.dtype), key_tile, result, input_precision=PRECISION)
        store_rows(at(grad_q, grad_q_stride, outer, inner, head), grad_q_stride, result * scale, rows, n_rows, D, BLOCK_D)


@triton.jit
@no_type_check
def backward_keys(
    operands, strides, terms, term_strides, lse, grad_out, grad_out_stride, delta, grad_k, grad_k_stride, grad_v, grad_v_stride,
    grad_key_bias, sizes, group, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK_PER_QUERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys and values, summed over the `group` of heads that share them, and of the bias per key.

    The last is [g0, g1, heads, k], contiguous, float32, with as many keys as the bias has. Tiles lie [keys, queries], as the products with
    their results take them.
    """
    n_inner, heads, n_rows, n_keys = sizes
    block, key_head, inner, outer = split_program(tl.cdiv(n_keys, BLOCK_N), heads // group, n_inner)
    keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
    _, k, v = all_at(operands, strides, outer, inner, key_head * group)
    key_tile = load_rows(k, strides[1], keys, keys < n_keys, D, BLOCK_D)
    values = load_rows(v, strides[2], keys, keys < n_keys, DV, BLOCK_DV)

    result_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    result_v = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
    attended = keys[:, None] < 0  # by the queries of no head so far
    for member in range(group):
        head = key_head * group + member
        to_head = (outer.to(tl.int64) * n_inner + inner) * heads + head
        head_queries = at(operands[0], strides[0], outer, inner, head)
        head_terms = all_at(terms, term_strides, outer, inner, head)
        key_terms = load_key_terms(head_terms, term_strides, keys[:, None], n_keys, MASK_PER_QUERY)
        attended = attended | key_terms[1]
        head_grads = at(grad_out, grad_out_stride, outer, inner, head)
        result_bias = tl.zeros([BLOCK_N], tl.float32)
        for start in range(0, n_rows, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            queries = load_rows(head_queries, strides[0], rows, rows < n_rows, D, BLOCK_D)
            products = tl.dot(key_tile, tl.trans(queries), input_precision=PRECISION)
            across = rows[None, :]
            logits = finish_logits(products, scale, key_terms, head_terms, term_strides, across, keys[:, None], n_rows, MASK_PER_QUERY)
            weights = tl.exp2(logits - load_lse(lse + to_head * n_rows, rows, n_rows)[None, :])
            grads = load_rows(head_grads, grad_out_stride, rows, rows < n_rows, DV, BLOCK_DV)
            result_v = tl.dot(weights.to(grads.dtype), grads, result_v, input_precision=PRECISION)
            correction = tl.load(delta + to_head * n_rows + rows, mask=rows < n_rows, other=0.0)
            grad_weights = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
            grad_logits = gradient_of_logits(weights, grad_weights, correction[None, :])
            result_k = tl.dot(grad_logits.to(queries.dtype), queries, result_k, input_precision=PRECISION)
            if grad_key_bias is not None:
                result_bias += tl.sum(grad_logits, 1)
        if grad_key_bias is not None:
            tl.store(grad_key_bias + to_head * term_strides[0][5] + keys, result_bias, mask=keys < term_strides[0][5])
    result_k = tl.where(attended, result_k * scale, 0.0)  # queries and incoming gradients may be NaN where all keys are hidden
    result_v = tl.where(attended, result_v, 0.0)
    store_rows(at(grad_k, grad_k_stride, outer, inner, key_head), grad_k_stride, result_k, keys, n_keys, D, BLOCK_D)
    store_rows(at(grad_v, grad_v_stride, outer, inner, key_head), grad_v_stride, result_v, keys, n_keys, DV, BLOCK_DV)


@triton.jit
@no_type_check
def backward_pair_bias(
    operands, strides, terms, term_strides, lse, grad_out, grad_out_stride, delta, grad_pair_bias, sizes, own, shared, per_split, scale,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK_PER_QUERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of the gradient of the bias [*own, q, k], summed over `per_split` of the batch entries and heads that share it.

    `own` and `shared` are (g0, g1, heads): along each of the three the bias has either every entry of its own or one for all. The result
    is [splits, *own, q, k], contiguous, with as many keys as the bias has.
    """
    n_inner, heads, n_rows, n_keys = sizes
    key_blocks = tl.cdiv(n_keys, BLOCK_N)
    n_blocks = tl.cdiv(n_rows, BLOCK_M) * key_blocks
    block, own_head, own_inner, place = split_program(n_blocks, own[2], own[1])
    own_outer, split = place % own[0], place // own[0]
    rows = block // key_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    keys = block % key_blocks * BLOCK_N + tl.arange(0, BLOCK_N)

    result = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for member in range(split * per_split, tl.minimum((split + 1) * per_split, shared[0] * shared[1] * shared[2])):
        head = own_head + member % shared[2]
        inner = own_inner + member // shared[2] % shared[1]
        outer = own_outer + member // shared[2] // shared[1]
        to_rows = ((outer.to(tl.int64) * n_inner + inner) * heads + head) * n_rows
        q, k, v = all_at(operands, strides, outer, inner, head)
        own_terms = all_at(terms, term_strides, outer, inner, head)
        queries = load_rows(q, strides[0], rows, rows < n_rows, D, BLOCK_D)
        key_tile = load_rows(k, strides[1], keys, keys < n_keys, D, BLOCK_D)
        products = tl.dot(queries, tl.trans(key_tile), input_precision=PRECISION)
        key_terms = load_key_terms(own_terms, term_strides, keys[None, :], n_keys, MASK_PER_QUERY)
        logits = finish_logits(products, scale, key_terms, own_terms, term_strides, rows[:, None], keys[None, :], n_rows, MASK_PER_QUERY)
        weights = tl.exp2(logits - load_lse(lse + to_rows, rows, n_rows)[:, None])
        grads = load_rows(at(grad_out, grad_out_stride, outer, inner, head), grad_out_stride, rows, rows < n_rows, DV, BLOCK_DV)
        values = load_rows(v, strides[2], keys, keys < n_keys, DV, BLOCK_DV)
        correction = tl.load(delta + to_rows + rows, mask=rows < n_rows, other=0.0)
        grad_weights = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
        result += gradient_of_logits(weights, grad_weights, correction[:, None])
    width = term_strides[1][5]
    tile = grad_pair_bias + (tl.program_id(0) // n_blocks).to(tl.int64) * n_rows * width
    inside = (rows < n_rows)[:, None] & (keys < width)[None, :]
    tl.store(tile + rows.to(tl.int64)[:, None] * width + keys[None, :], result.to(tile.dtype.element_ty), mask=inside)
