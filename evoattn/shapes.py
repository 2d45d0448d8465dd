"""The letters that stand for axes everywhere in evoattn, and the shapes built from them.

Signatures use these letters through jaxtyping. The checks are switched on by the test suite and cost nothing in production, where the
public functions check what they are given themselves (:class:`evoattn.errors.ShapeError`).

======== ==========================================================================================
letter   meaning
======== ==========================================================================================
*batch   any number of leading axes, also none
s        N_seq: rows of the alignment, the query sequence first
n        N_res: residues of the query sequence, columns of the alignment
c_m      channels of the MSA representation
c_z      channels of the pair representation
c_s      channels of the single representation
h        attention heads
q, k     length of the query axis and of the key axis of one attention
d, dv    width of one head: of queries and keys, and of values
#x       the axis has the size of x, or 1 and is shared (broadcast)
======== ==========================================================================================

Pair representations are indexed ``z[..., i, j, :]``: i is the first residue, j the second.
Masks are boolean and True where there is something (``mask[..., k]`` True = key k may be attended).
"""

from collections.abc import Sequence

from jaxtyping import Bool, Float
from torch import Tensor
from torch import bool as dtype_bool

from evoattn.errors import ShapeError

MSA = Float[Tensor, "*batch s n c_m"]
MSAMask = Bool[Tensor, "*batch s n"]
Pair = Float[Tensor, "*batch n n c_z"]
PairMask = Bool[Tensor, "*batch n n"]
Single = Float[Tensor, "*batch n c_s"]
SingleMask = Bool[Tensor, "*batch n"]


def check_features(owner: str, name: str, x: Tensor, axes: Sequence[str], width: int) -> None:
    """Refuse `x` unless it is floating point with at least the axes `axes`, the last of them `width` wide.

    Raises:
        ShapeError: naming the owner, what was got and what is expected.
    """
    layout = f"[*batch, {', '.join(axes)}] with {axes[-1]} = {width}"
    if not x.is_floating_point():
        raise ShapeError(f"{owner}: {name} has dtype {x.dtype}; it must be floating point {layout}. Convert it, e.g. with .float().")
    if x.dim() < len(axes) or x.shape[-1] != width:
        raise ShapeError(
            f"{owner}: {name} has shape {tuple(x.shape)}; expected {layout}. "
            "Check the order of the axes, and that the input has the width this module was built with."
        )
    if list(axes[:2]) == ["N_res", "N_res"] and x.shape[-2] != x.shape[-3]:
        raise ShapeError(f"{owner}: {name} has shape {tuple(x.shape)}; its two residue axes must have equal length: {layout}.")


def check_mask(owner: str, name: str, mask: Tensor | None, shape: Sequence[int], axes: Sequence[str]) -> None:
    """Refuse `mask` unless it is None, or boolean and of exactly `shape` = [*batch, *axes].

    Raises:
        ShapeError: naming the owner, what was got and what is expected.
    """
    if mask is None:
        return
    layout = f"[*batch, {', '.join(axes)}] = {tuple(shape)}"
    if tuple(mask.shape) != tuple(shape):
        raise ShapeError(f"{owner}: {name} has shape {tuple(mask.shape)}; expected {layout}, one entry per position, batch axes included.")
    check_boolean(owner, name, mask)


def check_boolean(owner: str, name: str, mask: Tensor) -> None:
    """Refuse a mask that is not boolean: 0/1 and additive masks look alike and mean the opposite."""
    if mask.dtype != dtype_bool:
        raise ShapeError(
            f"{owner}: {name} has dtype {mask.dtype}; masks are torch.bool, True where there is something. "
            "For a 0/1 mask pass mask.bool(); for an additive mask (0 / -inf or 0 / -1e9) pass mask_from_additive(mask)."
        )
