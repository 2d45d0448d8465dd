"""Working through a representation slice by slice, so that temporaries stay small whatever its length."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evoattn.ops.tiles import spans
from evoattn.updates import take_part

AT_ONCE = 2**21  # entries of a slice of an input (8 MiB in float32) that by_rows hands to its function


def by_rows(function: Callable[[Tensor, slice], Tensor], x: Tensor, out_axis: int = -3) -> Tensor:
    """function(x, rows), computed for some rows (axis -3) of `x` at a time; its rows are the axis `out_axis` of the result.

    `function` gets the rows and which they are. Where gradients are recorded it is called once more in the backward pass.
    """
    n_rows = x.shape[-3]
    parts = list(spans(n_rows, max(1, AT_ONCE // max(1, x[..., :1, :, :].numel()))))
    if torch.is_grad_enabled():
        again = partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False)
        cut = x.split([rows.stop - rows.start for rows in parts], -3)  # and not slice by slice, whose gradients would each be whole
        pieces = [again(piece, rows) for piece, rows in zip(cut, parts, strict=True)]
        return torch.cat(pieces, out_axis) if pieces else function(x, slice(0, 0))
    out = None
    for rows in parts:
        piece = function(take_part(x, rows, -3), rows)
        if len(parts) == 1:
            return piece
        if out is None:
            shape = list(piece.shape)
            shape[out_axis] = n_rows
            out = piece.new_empty(shape)
        take_part(out, rows, out_axis).copy_(piece)
    return function(x, slice(0, 0)) if out is None else out
