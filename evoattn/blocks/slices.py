"""Working through a representation slice by slice, so that temporaries stay small whatever its length."""

from collections.abc import Callable

from torch import Tensor

from evoattn.ops.tiles import spans

AT_ONCE = 2**21  # entries of a slice of an input (8 MiB in float32) that by_rows hands to its function


def take_part(x: Tensor, part: slice, axis: int) -> Tensor:
    """The slice `part` of `x` along `axis`, a view."""
    return x.narrow(axis, part.start, part.stop - part.start)


def by_rows(function: Callable[[Tensor, slice], Tensor], x: Tensor, out_axis: int = -3) -> Tensor:
    """function(x, rows), computed for some rows (axis -3) of `x` at a time; its rows are the axis `out_axis` of the result.

    `function` gets the rows and which they are.
    """
    n_rows = x.shape[-3]
    out = None
    for rows in spans(n_rows, max(1, AT_ONCE // max(1, x[..., :1, :, :].numel()))):
        piece = function(take_part(x, rows, -3), rows)
        if rows.stop == n_rows and rows.start == 0:
            return piece
        if out is None:
            shape = list(piece.shape)
            shape[out_axis] = n_rows
            out = piece.new_empty(shape)
        take_part(out, rows, out_axis).copy_(piece)
    return function(x, slice(0, n_rows)) if out is None else out
