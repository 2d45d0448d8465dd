"""The one attention: every attention of the field is this call with its axes arranged.

MSA rows and columns, both triangle nodes, single attention with pair bias, global column attention: only the axes differ. The pair
representation enters as an additive bias that keeps its own broadcast shape and gets its own gradient.

What a mask means, in every backend:

* A query with no allowed key gives 0, with log-sum-exp -inf and zero gradients.
* What stands behind a mask never reaches an unmasked output or gradient, be it NaN or inf. "Behind" is: a key that no query of its batch
  entry and head may attend; a query with no allowed key; a bias entry at a masked place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.ops import reference
from evoattn.ops.masks import drop_trivial_mask
from evoattn.ops.reference import REFERENCE
from evoattn.ops.registry import Backend, Explanation, Registry
from evoattn.ops.sdpa import SDPA
from evoattn.ops.streaming import STREAMING
from evoattn.shapes import check_boolean

ATTENTION = Registry("attention", [SDPA, STREAMING, REFERENCE])


@dataclass(frozen=True)
class AttentionSpec:
    """Metadata of one call, all that a backend's rules may look at.

    Attributes:
        batch: leading axes of q. q_len, k_len, heads, kv_heads, d, dv: the other sizes.
        dtype, device: of q, k and v; the device as its type ("cpu", "cuda", ...).
        bias_shapes, bias_dtypes, mask_shape: as they were passed.
        needs_grad: some input wants a gradient. bias_needs_grad: one of the biases does.
        return_lse: the caller wants the log-sum-exp too.
    """

    batch: tuple[int, ...]
    q_len: int
    k_len: int
    heads: int
    kv_heads: int
    d: int
    dv: int
    dtype: torch.dtype
    device: str
    bias_shapes: tuple[tuple[int, ...], ...] = ()
    bias_dtypes: tuple[torch.dtype, ...] = ()
    mask_shape: tuple[int, ...] | None = None
    needs_grad: bool = False
    bias_needs_grad: bool = False
    return_lse: bool = False

    def __str__(self) -> str:
        size = f"batch {list(self.batch)}, q {self.q_len}, k {self.k_len}, {self.heads} heads of {self.d}"
        size += f" (values {self.dv})" if self.dv != self.d else ""
        size += f", {self.kv_heads} shared key head" if self.kv_heads != self.heads else ""
        biases = f"biases {', '.join(str(list(shape)) for shape in self.bias_shapes)}" if self.bias_shapes else "no bias"
        mask = f"mask {list(self.mask_shape)}" if self.mask_shape is not None else "no mask"
        grad = "gradients incl. biases" if self.bias_needs_grad else "gradients" if self.needs_grad else "no gradients"
        return f"{size}, {biases}, {mask}, {str(self.dtype).removeprefix('torch.')} on {self.device}, {grad}"


Query = Float[Tensor, "*batch q h d"]
Key = Float[Tensor, "*batch k #h d"]
Value = Float[Tensor, "*batch k #h dv"]
Bias = Float[Tensor, "*#batch #h #q #k"]
Mask = Bool[Tensor, "*#batch #h #q #k"]
Out = Float[Tensor, "*batch q h dv"]
LSE = Float[Tensor, "*batch q h"]


@overload
def attention(
    q: Query, k: Key, v: Value, *, biases: Sequence[Bias] = (), mask: Mask | None = None, scale: float | None = None,
    backend: str | Backend = "auto", return_lse: Literal[False] = False,
) -> Out: ...
@overload
def attention(
    q: Query, k: Key, v: Value, *, biases: Sequence[Bias] = (), mask: Mask | None = None, scale: float | None = None,
    backend: str | Backend = "auto", return_lse: Literal[True],
) -> tuple[Out, LSE]: ...
def attention(
    q: Float[Tensor, "*batch q h d"],
    k: Float[Tensor, "*batch k #h d"],
    v: Float[Tensor, "*batch k #h dv"],
    *,
    biases: Sequence[Float[Tensor, "*#batch #h #q #k"]] = (),
    mask: Bool[Tensor, "*#batch #h #q #k"] | None = None,
    scale: float | None = None,
    backend: str | Backend = "auto",
    return_lse: bool = False,
) -> Float[Tensor, "*batch q h dv"] | tuple[Float[Tensor, "*batch q h dv"], Float[Tensor, "*batch q h"]]:
    """softmax(scale * q k^T + sum(biases)) v under the mask. A row with no allowed key gives 0 and zero gradients.

    Args:
        q: queries. The length comes before the heads, as ``rearrange(x, "... l (h d) -> ... l h d")`` gives it.
        k: keys; one head that all query heads share, or as many as q.
        v: values, with the heads of k; their width dv may differ from d.
        biases: added to the logits. Each keeps its own broadcast shape: rank as the logits [*batch, h, q, k], size 1 where it is shared.
            Each gets its gradient, summed over the shared axes.
        mask: True where the query may attend the key; rank as the logits, size 1 where shared. See the module's docstring.
        scale: of the dot products; ``d ** -0.5`` by default. With d = 0 the logits are the biases alone.
        backend: ``"auto"`` for the first backend that can run the call, the name of one, or a :class:`Backend` of your own.
        return_lse: also return the log-sum-exp of the masked logits, differentiable, in float32 or wider.

    Raises:
        ShapeError: a tensor does not fit the others in rank, size, dtype or device.
        BackendError: the backend asked for cannot run this call; the message lists every reason.
    """
    spec = describe(q, k, v, biases=biases, mask=mask, return_lse=return_lse)
    mask = drop_trivial_mask(mask)
    chosen = ATTENTION.select(spec if mask is not None else replace(spec, mask_shape=None), backend)
    if scale is None:
        scale = default_scale(spec.d)
    if spec.k_len == 0 or prod(spec.batch) * spec.q_len * spec.heads == 0:
        out, lse = nothing_to_attend(q, k, v, *biases)
    else:
        if mask is not None:
            q, k, v, biases = hide_masked(q, k, v, biases, mask)
        with torch.autocast(spec.device, enabled=False):  # a backend computes in the dtype it was given
            out, lse = chosen.run(q, k, v, tuple(biases), mask, scale)
        if mask is not None:  # also stops the incoming gradient of such rows
            out = out.masked_fill(nothing_allowed(mask), 0.0)
            lse = lse.masked_fill(nothing_allowed(mask).squeeze(-1), -torch.inf) if return_lse else lse
    return (out, lse) if return_lse else out


def explain(
    q: Query, k: Key, v: Value, *, biases: Sequence[Bias] = (), mask: Mask | None = None, return_lse: bool = False,
    device: str | None = None,
) -> Explanation:  # fmt: skip
    """Which backend :func:`attention` takes for these tensors, and every reason against every other; print it.

    Only metadata is looked at: tensors on ``device="meta"`` cost no memory, and `device` ("cpu", "cuda") asks as if they were there. (A
    mask that is all True is dropped before the choice, as :func:`attention` does; a meta mask counts as a mask.)
    """
    spec = describe(q, k, v, biases=biases, mask=mask, return_lse=return_lse)
    spec = spec if drop_trivial_mask(mask) is not None else replace(spec, mask_shape=None)
    return ATTENTION.explain(replace(spec, device=device) if device else spec)


def attention_weights(
    q: Float[Tensor, "*batch q h d"],
    k: Float[Tensor, "*batch k #h d"],
    *,
    biases: Sequence[Float[Tensor, "*#batch #h #q #k"]] = (),
    mask: Bool[Tensor, "*#batch #h #q #k"] | None = None,
    scale: float | None = None,
    heads: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
) -> Float[Tensor, "*batch heads rows k"]:
    """The probabilities that :func:`attention` averages with, for the chosen heads and query rows; the rest is not computed.

    Differentiable in q, k and the biases; float32 or wider. All heads, and all rows, by default.

    Raises:
        ShapeError: the tensors do not fit each other, or a head or row is out of range.
    """
    spec = describe(q, k, k, biases=biases, mask=mask)
    chosen_heads = _indices("heads", heads, spec.heads, q.device)
    chosen_rows = _indices("rows", rows, spec.q_len, q.device)

    def pick(x: Tensor) -> Tensor:
        x = x if x.shape[-3] == 1 else x.index_select(-3, chosen_heads)
        return x if x.shape[-2] == 1 else x.index_select(-2, chosen_rows)

    q = q.index_select(-2, chosen_heads).index_select(-3, chosen_rows)
    k = k if spec.kv_heads == 1 else k.index_select(-2, chosen_heads)
    biases = [pick(bias) for bias in biases]
    if mask is not None:
        mask = pick(mask)
        q, k, _, biases = hide_masked(q, k, k, biases, mask)
    with torch.autocast(spec.device, enabled=False):
        weights, _ = reference.probabilities(q, k, biases, mask, default_scale(spec.d) if scale is None else scale)
    return weights


def describe(
    q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, return_lse: bool = False
) -> AttentionSpec:
    """Check the tensors against each other at the door, and return what they are.

    Equal rank is demanded: broadcasting would let a forgotten axis through whenever two sizes happen to agree.

    Raises:
        ShapeError: saying which tensor does not fit, what was got and what is expected.
    """
    if q.dim() < 3:
        raise ShapeError(
            f"attention: q has shape {tuple(q.shape)}; expected [*batch, q, h, d]. For a single head add its axis: q[..., None, :]."
        )
    *batch, q_len, heads, d = q.shape
    dv = v.shape[-1] if v.dim() else 0
    k_len, kv_heads = (k.shape[-3], k.shape[-2]) if k.dim() == q.dim() else (-1, -1)
    for name, x, width, layout in (("k", k, d, "[*batch, k, h or 1, d]"), ("v", v, dv, "[*batch, k, h or 1, dv]")):
        expected = (*batch, k_len, kv_heads, width)
        if x.dim() != q.dim() or tuple(x.shape) != expected or kv_heads not in (1, heads):
            raise ShapeError(
                f"attention: {name} has shape {tuple(x.shape)}, which does not fit q {tuple(q.shape)} = [*batch, q, h, d]"
                f"{f' and k {tuple(k.shape)}' if name == 'v' else ''}; expected {layout}, with the batch axes of q, and "
                f"{'the length and heads of k' if name == 'v' else 'h heads or one shared head'}."
            )
        _check_kin(name, x, q)
    logits = (*batch, heads, q_len, k_len)
    if isinstance(biases, Tensor):
        raise ShapeError("attention: biases is a tensor; it must be a sequence of tensors: biases=[bias].")
    for index, bias in enumerate(biases):
        _check_broadcast(f"biases[{index}]", bias, logits)
        if not bias.is_floating_point():
            raise ShapeError(f"attention: biases[{index}] has dtype {bias.dtype}; biases are floating point. A boolean mask goes to mask=.")
        _check_device(f"biases[{index}]", bias, q)
    if mask is not None:
        _check_broadcast("mask", mask, logits)
        check_boolean("attention", "mask", mask)
        _check_device("mask", mask, q)
    recording = torch.is_grad_enabled()
    bias_needs_grad = recording and any(bias.requires_grad for bias in biases)
    return AttentionSpec(
        batch=tuple(batch), q_len=q_len, k_len=k_len, heads=heads, kv_heads=kv_heads, d=d, dv=dv, dtype=q.dtype, device=q.device.type,
        bias_shapes=tuple(tuple(bias.shape) for bias in biases), bias_dtypes=tuple(bias.dtype for bias in biases),
        mask_shape=None if mask is None else tuple(mask.shape), bias_needs_grad=bias_needs_grad,
        needs_grad=bias_needs_grad or (recording and any(x.requires_grad for x in (q, k, v))), return_lse=return_lse,
    )  # fmt: skip


def hide_masked(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Put 0 wherever the mask hides everything: keys nobody may attend, queries that may attend nothing, bias entries at masked places.

    By selection, never by a product, so that NaN and inf vanish, in gradients too. No bias grows: where it is shared, its entry goes only
    if it is masked everywhere.
    """
    q = q.masked_fill(nothing_allowed(mask), 0.0)
    attended = mask.any(-2, keepdim=True)
    if k.shape[-2] == 1:
        attended = attended.any(-3, keepdim=True)
    unattended = ~attended.transpose(-1, -2).transpose(-2, -3)  # [*#batch, #h, 1, #k] -> [*#batch, #k, #h, 1]
    k, v = k.masked_fill(unattended, 0.0), v.masked_fill(unattended, 0.0)
    return q, k, v, [bias.masked_fill(~reduce_mask(mask, bias.shape), 0.0) for bias in biases]


def reduce_mask(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """True where the mask lets something through, over the axes along which a tensor of `shape` is shared."""
    shared = [axis for axis, (mine, theirs) in enumerate(zip(mask.shape, shape, strict=True)) if theirs == 1 and mine != 1]
    return mask.any(shared, keepdim=True) if shared else mask


def default_scale(d: int) -> float:
    """d^-0.5, or 1 for queries and keys of width 0, whose logits are the biases alone."""
    return d**-0.5 if d else 1.0


def nothing_allowed(mask: Tensor) -> Tensor:
    """[*#batch, #q, #h, 1], True for queries with no allowed key."""
    return ~mask.any(-1, keepdim=True).transpose(-2, -3)


def nothing_to_attend(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros and -inf of the right shape, connected to the inputs: there is no query, or no key."""
    connected = q[..., :0].sum(-1) + sum(x[..., :0].sum().to(q.dtype) for x in (k, v, *more))
    lse = connected.to(torch.promote_types(q.dtype, torch.float32)) - torch.inf
    return connected.unsqueeze(-1).expand(*q.shape[:-1], v.shape[-1]), lse


def _indices(name: str, chosen: Sequence[int] | None, size: int, device: torch.device) -> Tensor:
    wanted = range(size) if chosen is None else chosen
    bad = [index for index in wanted if not -size <= index < size]
    if bad:
        raise ShapeError(f"attention_weights: {name} {bad} are out of range; there are {size}, numbered 0 to {size - 1}.")
    return torch.tensor([index % size for index in wanted], dtype=torch.long, device=device)


def _check_kin(name: str, x: Tensor, q: Tensor) -> None:
    if x.dtype != q.dtype or not q.is_floating_point():
        raise ShapeError(f"attention: {name} has dtype {x.dtype} and q {q.dtype}; all of q, k and v must share one floating dtype.")
    _check_device(name, x, q)


def _check_device(name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ShapeError(f"attention: {name} is on {x.device} and q on {q.device}; move one of them, e.g. with .to({str(q.device)!r}).")


def _check_broadcast(name: str, x: Tensor, logits: tuple[int, ...]) -> None:
    if x.dim() != len(logits) or any(size not in (1, full) for size, full in zip(x.shape, logits, strict=True)):
        raise ShapeError(
            f"attention: {name} has shape {tuple(x.shape)}; expected the rank of the logits, {len(logits)}, and in each axis size 1 or "
            f"that of [*batch, h, q, k] = {logits}. Add the missing axes with None (e.g. bias[:, None]); none is guessed."
        )
