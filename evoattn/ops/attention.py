"""The one attention: every attention of the field is this call with its axes arranged.

MSA rows and columns, both triangle nodes, single attention with pair bias, global column attention: only the axes differ. The pair
representation enters as an additive bias that keeps its own broadcast shape and gets its own gradient.

What a mask means, in every backend:

* A query with no allowed key gives 0, with log-sum-exp -inf and zero gradients.
* What stands behind a mask never reaches an unmasked output or gradient, be it NaN or inf. "Behind" is: a key that no query of its batch
  entry and head may attend; a query with no allowed key; a bias entry at a masked place.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, overload

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.ops import reference
from evoattn.ops.devices import architecture
from evoattn.ops.dispatch import ATTENTION, run_backend, run_opaque
from evoattn.ops.masks import drop_trivial_mask, hide_masked
from evoattn.ops.registry import Backend, Explanation
from evoattn.ops.spec import check_inputs, describe

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
    check_inputs(q, k, v, biases, mask)
    mask = drop_trivial_mask(mask)
    if scale is None:
        scale = default_scale(q.shape[-1])
    run = run_opaque if torch.compiler.is_compiling() and ATTENTION.has(backend) else run_backend
    out, lse = run(q, k, v, tuple(biases), mask, scale, backend, return_lse)
    if not return_lse:
        return out
    assert lse is not None  # run_backend sees to it
    return out, lse


def explain(
    q: Query, k: Key, v: Value, *, biases: Sequence[Bias] = (), mask: Mask | None = None, return_lse: bool = False,
    device: str | None = None, arch: str | None = None,
) -> Explanation:  # fmt: skip
    """Which backend :func:`attention` takes for these tensors, and every reason against every other; print it.

    Only metadata is looked at: tensors on ``device="meta"`` cost no memory, and `device` ("cpu", "cuda") asks as if they were there, on a
    card of the architecture `arch` ("sm_90", "gfx942"; by default that of the card here, if there is one). (A mask that is all True is
    dropped before the choice, as :func:`attention` does; a meta mask counts as a mask.)
    """
    check_inputs(q, k, v, biases, mask)
    spec = describe(q, k, v, biases=biases, mask=drop_trivial_mask(mask), return_lse=return_lse)
    if device is not None:
        here = architecture(torch.device(device)) if device == "cuda" and torch.cuda.is_available() else None
        spec = replace(spec, device=device, arch=arch or here)
    return ATTENTION.explain(spec)


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
    check_inputs(q, k, k, biases, mask)
    chosen_heads = _indices("heads", heads, q.shape[-2], q.device)
    chosen_rows = _indices("rows", rows, q.shape[-3], q.device)

    def pick(x: Tensor) -> Tensor:
        x = x if x.shape[-3] == 1 else x.index_select(-3, chosen_heads)
        return x if x.shape[-2] == 1 else x.index_select(-2, chosen_rows)

    q = q.index_select(-2, chosen_heads).index_select(-3, chosen_rows)
    k = k if k.shape[-2] == 1 else k.index_select(-2, chosen_heads)
    biases = [pick(bias) for bias in biases]
    if mask is not None:
        mask = pick(mask)
        q, k, _, biases = hide_masked(q, k, k, biases, mask)
    with torch.autocast(q.device.type, enabled=False):
        weights, _ = reference.probabilities(q, k, biases, mask, default_scale(q.shape[-1]) if scale is None else scale)
    return weights


def default_scale(d: int) -> float:
    """d^-0.5, or 1 for queries and keys of width 0, whose logits are the biases alone."""
    return d**-0.5 if d else 1.0


def _indices(name: str, chosen: Sequence[int] | None, size: int, device: torch.device) -> Tensor:
    wanted = range(size) if chosen is None else chosen
    bad = [index for index in wanted if not -size <= index < size]
    if bad:
        raise ShapeError(f"attention_weights: {name} {bad} are out of range; there are {size}, numbered 0 to {size - 1}.")
    return torch.tensor([index % size for index in wanted], dtype=torch.long, device=device)
