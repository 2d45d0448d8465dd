"""What is known of one attention call without looking at a number: the checks at its door, and the metadata that backends judge by."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.ops import kept
from evoattn.ops.devices import architecture, on_side_stream
from evoattn.shapes import check_boolean


@dataclass(frozen=True)
class AttentionSpec:
    """Metadata of one call, all that a backend's rules may look at.

    Attributes:
        batch: leading axes of q. q_len, k_len, heads, kv_heads, d, dv: the other sizes.
        dtype, device: of q, k and v; the device as its type ("cpu", "cuda", ...).
        arch: of the device, "sm_90" or "gfx942"; None on a CPU, and where it is not known.
        bias_shapes, bias_dtypes, mask_shape: as they were passed.
        needs_grad: some input wants a gradient. bias_needs_grad: one of the biases does.
        return_lse: the caller wants the log-sum-exp too. side_stream: the device's work goes to another stream than its default one.
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
    arch: str | None = None
    side_stream: bool = False

    def __str__(self) -> str:
        size = f"batch {list(self.batch)}, q {self.q_len}, k {self.k_len}, {self.heads} heads of {self.d}"
        size += f" (values {self.dv})" if self.dv != self.d else ""
        size += f", {self.kv_heads} shared key head" if self.kv_heads != self.heads else ""
        biases = f"biases {', '.join(str(list(shape)) for shape in self.bias_shapes)}" if self.bias_shapes else "no bias"
        mask = f"mask {list(self.mask_shape)}" if self.mask_shape is not None else "no mask"
        grad = "gradients incl. biases" if self.bias_needs_grad else "gradients" if self.needs_grad else "no gradients"
        device = f"{self.device} ({self.arch})" if self.arch else self.device
        return f"{size}, {biases}, {mask}, {str(self.dtype).removeprefix('torch.')} on {device}, {grad}"


def check_inputs(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None) -> None:
    """Check the tensors of one attention against each other.

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


def describe(
    q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, return_lse: bool = False
) -> AttentionSpec:
    """What the tensors of one attention are; they have passed :func:`check_inputs`."""
    *batch, q_len, heads, d = q.shape
    now, later = torch.is_grad_enabled(), kept.recording()
    bias_needs_grad = (later and bool(biases)) or (now and any(bias.requires_grad for bias in biases))
    return AttentionSpec(
        batch=tuple(batch), q_len=q_len, k_len=k.shape[-3], heads=heads, kv_heads=k.shape[-2], d=d, dv=v.shape[-1], dtype=q.dtype,
        device=q.device.type, bias_shapes=tuple(tuple(bias.shape) for bias in biases), bias_dtypes=tuple(bias.dtype for bias in biases),
        mask_shape=None if mask is None else tuple(mask.shape), bias_needs_grad=bias_needs_grad,
        needs_grad=later or bias_needs_grad or (now and any(x.requires_grad for x in (q, k, v))), return_lse=return_lse,
        arch=architecture(q.device), side_stream=on_side_stream(q.device),
    )  # fmt: skip


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
