"""Turning the masks people come with into the boolean form, and hiding what stands at masked positions."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.shapes import check_boolean

HIDDEN_BELOW = -9984.0  # the weakest additive mask in use, -1e4, as bfloat16 rounds it; others write -3e4, -6e4, -1e9 or -inf


def mask_from_additive(additive: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    """The boolean mask that an additive mask stands for: True where it is 0, False where it is -1e4 or less (-1e9, -inf).

    Raises:
        ShapeError: some entry is neither; then the tensor is a bias, and belongs in ``biases=``.
    """
    allowed, hidden = additive == 0, additive <= HIDDEN_BELOW
    odd = additive[~(allowed | hidden)]
    if odd.numel():
        raise ShapeError(
            f"mask_from_additive: {odd.numel()} of {additive.numel()} entries are neither 0 (allowed) nor -1e4 or less (masked), the first "
            f"is {odd[0].item():g}. If this tensor is a bias, pass it in biases=[...]; if it is a 0/1 mask, pass mask.bool()."
        )
    return allowed


def causal_mask(q: Float[Tensor, "*batch q h d"], k: Float[Tensor, "*batch k kv d"]) -> Bool[Tensor, "*ones q k"]:
    """Mask for :func:`evoattn.attention` by which query i attends keys 0 to i, with the rank that the op asks for.

    Queries and keys end together: with fewer queries than keys the last query attends all keys, as when decoding against a cache; with
    more, the first queries attend nothing.
    """
    q_len, k_len = q.shape[-3], k.shape[-3]
    mask = torch.ones(q_len, k_len, dtype=torch.bool, device=q.device).tril(k_len - q_len)
    return mask.reshape(*[1] * (q.dim() - 2), q_len, k_len)


def hide_nonfinite(x: Float[Tensor, "*axes c"], mask: Bool[Tensor, "*axes"] | None) -> Float[Tensor, "*axes c"]:
    """`x` with NaN, inf and what would overflow in a norm (from 1e18 in float32) replaced by 0 at masked positions.

    Other values stay, since published systems use them as queries.

    By selection, so that neither the values nor their gradients get through.

    Raises:
        ShapeError: the mask is not boolean.
    """
    mask = drop_trivial_mask(mask)
    return x if mask is None else x.masked_fill(_bad(x, mask), 0.0)


def hide_nonfinite_(x: Float[Tensor, "*axes c"], mask: Bool[Tensor, "*axes"] | None) -> Float[Tensor, "*axes c"]:
    """:func:`hide_nonfinite` in place; returns `x`."""
    mask = drop_trivial_mask(mask)
    return x if mask is None else x.masked_fill_(_bad(x, mask), 0.0)


def _bad(x: Tensor, mask: Tensor) -> Tensor:
    check_boolean("hide_nonfinite", "mask", mask)
    overflows = torch.finfo(torch.promote_types(x.dtype, torch.float32)).max ** 0.5 / 16  # its square, summed over the channels by a norm
    return ~(mask.unsqueeze(-1) | (x.abs() < overflows))  # NaN is not smaller than anything


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


def nothing_allowed(mask: Tensor) -> Tensor:
    """[*#batch, #q, #h, 1], True for queries with no allowed key."""
    return ~mask.any(-1, keepdim=True).transpose(-2, -3)


def drop_trivial_mask(mask: Tensor | None) -> Tensor | None:
    """None for a mask that hides nothing, where looking is free (on a GPU it would wait for the device)."""
    if mask is None or mask.device.type != "cpu" or mask.dtype != torch.bool or torch.compiler.is_compiling():
        return mask
    return None if bool(mask.all()) else mask
