"""From a checked attention call to the backend that runs it; for ``torch.compile``, all of that behind one operator.

A compiler cannot look into the choice of a backend (it tries imports, and may read a mask) nor into most kernels. Under ``torch.compile``
a call is therefore the operator ``evoattn::attention``, whose body, run outside of the compiled code, chooses and runs as always. What
surrounds it stays visible to the compiler. In eager mode the operator is not used: it would cost more than many a small call.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from evoattn.errors import BackendError
from evoattn.ops.cuequivariance import CUEQUIVARIANCE
from evoattn.ops.deepspeed import DEEPSPEED
from evoattn.ops.flash_attn import FLASH_ATTN
from evoattn.ops.flex import FLEX
from evoattn.ops.kept import Results, keeping, taking
from evoattn.ops.masks import hide_masked, nothing_allowed
from evoattn.ops.reference import REFERENCE
from evoattn.ops.registry import Backend, Registry
from evoattn.ops.sdpa import SDPA
from evoattn.ops.spec import AttentionSpec, describe
from evoattn.ops.streaming import STREAMING
from evoattn.ops.tiles import heads_first
from evoattn.ops.triton import TRITON

ATTENTION = Registry("attention", [SDPA, TRITON, CUEQUIVARIANCE, DEEPSPEED, FLASH_ATTN, STREAMING, FLEX, REFERENCE])


def run_backend(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float, backend: str | Backend, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Choose a backend and run it: attention [*batch, q, h, dv] and, if it gives one, log-sum-exp [*batch, q, h].

    Raises:
        BackendError: the backend asked for cannot run this call.
    """
    return _run(describe(q, k, v, biases=biases, mask=mask, return_lse=return_lse), q, k, v, biases, mask, scale, backend)


def run_opaque(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float, backend: str | Backend, return_lse: bool
) -> tuple[Tensor, Tensor]:
    """:func:`run_backend` as one operator, for a backend of the list or "auto"."""
    recording = torch.is_grad_enabled()
    bias_needs_grad = recording and any(bias.requires_grad for bias in biases)
    needs_grad = bias_needs_grad or (recording and any(x.requires_grad for x in (q, k, v)))
    name = backend if isinstance(backend, str) else backend.name
    out, lse, _ = torch.ops.evoattn.attention(q, k, v, biases, mask, scale, name, needs_grad, bias_needs_grad, return_lse)
    return out, lse


def nothing_to_attend(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
    """Zeros and -inf of the right shape, connected to the inputs: there is no query, or no key."""
    connected = q[..., :0].sum(-1) + sum(x[..., :0].sum().to(q.dtype) for x in (k, v, *more))
    lse = connected.to(torch.promote_types(q.dtype, torch.float32)) - torch.inf
    return connected.unsqueeze(-1).expand(*q.shape[:-1], v.shape[-1]), lse


def _run(
    spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float,
    backend: str | Backend,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    chosen = ATTENTION.select(spec, backend)
    if spec.k_len == 0 or prod(spec.batch) * spec.q_len * spec.heads == 0:
        return nothing_to_attend(q, k, v, *biases)
    hide = None if mask is None or chosen.hides(spec) else mask
    if hide is not None:
        q, k, v, biases = hide_masked(q, k, v, biases, hide)
    with torch.autocast(spec.device, enabled=False):  # a backend computes in the dtype it was given
        out, lse = chosen.run(q, k, v, tuple(biases), mask, scale)
    if hide is not None:  # also stops the incoming gradient of such rows
        out = out.masked_fill(nothing_allowed(hide), 0.0)
        lse = None if lse is None else lse.masked_fill(nothing_allowed(hide).squeeze(-1), -torch.inf)
    if spec.return_lse and lse is None:
        raise BackendError(
            f"attention: backend {chosen.name!r} returned no log-sum-exp, which was asked for; its why_not has to refuse such calls "
            "(spec.return_lse). Use another backend, or leave return_lse out."
        )
    return out, lse


FORWARD = (
    "(Tensor q, Tensor k, Tensor v, Tensor[] biases, Tensor? mask, float scale, str backend, bool needs_grad, bool bias_needs_grad, "
    "bool return_lse) -> (Tensor, Tensor, Tensor)"
)
BACKWARD = (
    "(Tensor? grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor[] biases, Tensor? mask, Tensor out, Tensor kept, "
    "float scale, str backend, bool[] wanted, bool return_lse) -> Tensor[]"
)


@torch.library.custom_op("evoattn::attention", mutates_args=(), schema=FORWARD)
def _attention(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float, backend: str, needs_grad: bool,
    bias_needs_grad: bool, return_lse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output, log-sum-exp (empty if not asked for), and the log-sum-exp that a backend's own backward pass takes, [*batch, h, q]."""
    results: list[Results] = []
    with torch.no_grad():
        spec = describe(q, k, v, biases=biases, mask=mask, return_lse=return_lse)
        spec = replace(spec, needs_grad=needs_grad, bias_needs_grad=bias_needs_grad)
        with keeping(results):
            out, lse = _run(spec, q, k, v, biases, mask, scale, backend)
    kept = _empty_kept(q, needs_grad)
    if results and needs_grad:  # none of a backend that lets autograd, or a package, keep what it needs
        kept.copy_(results[0][1].view_as(kept))  # type: ignore[union-attr]
    if lse is None or not return_lse:
        return out.contiguous(), _empty_lse(q, return_lse), kept
    return out.contiguous(), lse.clone(memory_format=torch.contiguous_format), kept


@_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float, backend: str, needs_grad: bool,
    bias_needs_grad: bool, return_lse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(*q.shape[:-1], v.shape[-1]), _empty_lse(q, return_lse), _empty_kept(q, needs_grad)


def _empty_lse(q: Tensor, wanted: bool) -> Tensor:
    return q.new_empty(q.shape[:-1] if wanted else 0, dtype=torch.promote_types(q.dtype, torch.float32))


def _empty_kept(q: Tensor, wanted: bool) -> Tensor:
    return q.new_empty(heads_first(q).shape[:-1] if wanted else 0, dtype=torch.promote_types(q.dtype, torch.float32))


# Defined as below, not by custom_op: the body of such an operator may record gradients of its own, as a foreign kernel's needs.
torch.library.define("evoattn::attention_backward", BACKWARD)


@torch.library.impl("evoattn::attention_backward", "CompositeExplicitAutograd")
def _attention_backward(
    grad_out: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None,
    out: Tensor, kept: Tensor, scale: float, backend: str, wanted: Sequence[bool], return_lse: bool,
) -> list[Tensor]:  # fmt: skip
    """Gradients of q, k, v and the biases; empty where not wanted.

    The backend runs again, to record what it differentiates. One with a backward pass of its own takes over the results instead.
    """
    inputs = [q, k, v, *biases]
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_(want) for x, want in zip(inputs, wanted, strict=True)]
        own_q, own_k, own_v, *own_biases = leaves
        spec = describe(own_q, own_k, own_v, biases=own_biases, mask=mask, return_lse=return_lse)  # as it was in the forward pass
        with taking([(heads_first(out), kept)]):
            again, again_lse = _run(spec, own_q, own_k, own_v, own_biases, mask, scale, backend)
        outputs = [(again, grad_out), (again_lse, grad_lse)]
        known = [(x, grad) for x, grad in outputs if x is not None and grad is not None and x.requires_grad]
        targets = [x for x in leaves if x.requires_grad]
        found = iter(torch.autograd.grad([x for x, _ in known], targets, [grad for _, grad in known], allow_unused=True))
    grads = [next(found) if want else x.new_empty(0) for x, want in zip(inputs, wanted, strict=True)]
    return [torch.zeros_like(x) if grad is None else grad.contiguous() for x, grad in zip(inputs, grads, strict=True)]


@torch.library.register_fake("evoattn::attention_backward")
def _(
    grad_out: Tensor | None, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None,
    out: Tensor, kept: Tensor, scale: float, backend: str, wanted: Sequence[bool], return_lse: bool,
) -> list[Tensor]:  # fmt: skip
    return [x.new_empty(x.shape if want else 0) for x, want in zip([q, k, v, *biases], wanted, strict=True)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, biases, mask, ctx.scale, ctx.backend, _, _, ctx.return_lse = inputs
    out, _, kept = output
    ctx.mark_non_differentiable(kept)
    ctx.save_for_backward(q, k, v, mask, out, kept, *biases)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, _: None) -> tuple[Any, ...]:
    q, k, v, mask, out, kept, *biases = ctx.saved_tensors
    wanted = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[3]]
    grads = torch.ops.evoattn.attention_backward(
        grad_out, grad_lse if ctx.return_lse else None, q, k, v, biases, mask, out, kept, ctx.scale, ctx.backend, wanted, ctx.return_lse
    )
    dq, dk, dv, *dbiases = (grad if want else None for grad, want in zip(grads, wanted, strict=True))
    return dq, dk, dv, dbiases, *[None] * 6


_attention.register_autograd(_differentiate, setup_context=_keep)
