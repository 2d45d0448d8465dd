"""Whether the inputs of a stack or block fit its widths and each other."""

from torch import Tensor

from evoattn.errors import ShapeError
from evoattn.shapes import check_features, check_mask


def check_msa_inputs(owner: str, c_m: int, c_z: int, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> None:
    """Refuse inputs that do not fit these widths or each other.

    Raises:
        ShapeError: naming the owner, what was got and what is expected.
    """
    check_features(owner, "m", m, ["N_seq", "N_res", "c_m"], c_m)
    check_features(owner, "z", z, ["N_res", "N_res", "c_z"], c_z)
    *batch, _, n_res, _ = m.shape
    if z.shape[:-1] != (*batch, n_res, n_res):
        raise ShapeError(
            f"{owner}: z has shape {tuple(z.shape)}, which does not fit m {tuple(m.shape)} = [*batch, N_seq, N_res, c_m]; "
            f"expected {(*batch, n_res, n_res, c_z)} = [*batch, N_res, N_res, c_z], the batch axes included."
        )
    check_mask(owner, "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
    check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])


def check_single_inputs(owner: str, c_s: int, c_z: int, s: Tensor, z: Tensor, mask: Tensor | None, pair_mask: Tensor | None) -> None:
    """Refuse inputs that do not fit these widths or each other.

    Raises:
        ShapeError: naming the owner, what was got and what is expected.
    """
    check_features(owner, "s", s, ["N_res", "c_s"], c_s)
    check_features(owner, "z", z, ["N_res", "N_res", "c_z"], c_z)
    *batch, n_res, _ = s.shape
    if z.shape[:-1] != (*batch, n_res, n_res):
        raise ShapeError(
            f"{owner}: z has shape {tuple(z.shape)}, which does not fit s {tuple(s.shape)} = [*batch, N_res, c_s]; "
            f"expected {(*batch, n_res, n_res, c_z)} = [*batch, N_res, N_res, c_z], the batch axes included."
        )
    check_mask(owner, "mask", mask, s.shape[:-1], ["N_res"])
    check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
