"""Features of a given size: padded with zeros that the masks declare to be nothing."""

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from evoattn.errors import ShapeError

_AXES: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("target_feat", "aatype", "residue_index", "seq_mask", "asym_id", "entity_id", "sym_id"), ("n_res",)),
    **dict.fromkeys(("restype", "profile", "deletion_mean"), ("n_res",)),
    **dict.fromkeys(("pseudo_beta", "pseudo_beta_mask"), ("n_res",)),
    **dict.fromkeys(("msa_feat", "msa_mask", "true_msa", "bert_mask"), ("n_seq", "n_res")),
    **dict.fromkeys(("msa", "has_deletion", "deletion_value"), ("n_seq", "n_res")),
    **dict.fromkeys(("extra_msa_feat", "extra_msa_mask"), ("n_extra", "n_res")),
}


def pad_features(
    features: Mapping[str, Tensor], *, n_res: int | None = None, n_seq: int | None = None, n_extra: int | None = None
) -> dict[str, Tensor]:
    """Pad features to the given sizes: with zeros, and False in the masks. An axis without a size stays as it is.

    Every block takes the masks, so what it returns where they are True does not depend on the padding (but for rounding).
    Chain ids count from 1, so that 0 is padding there too.

    Args:
        features: of :func:`evoattn.io.make_features` or :func:`evoattn.io.alphafold3_features`, without batch axes; also pseudo_beta
            and pseudo_beta_mask, the positions that training takes.
        n_res, n_seq, n_extra: residues, rows of the MSA features (cluster centres), and extra rows.

    Raises:
        ShapeError: a feature is larger than the size asked for, or of another name.
    """
    sizes = {"n_res": n_res, "n_seq": n_seq, "n_extra": n_extra}
    padded = {}
    for name, feature in features.items():
        if name not in _AXES:
            raise ShapeError(f"pad_features: there is no feature {name!r}; those there are: {', '.join(sorted(_AXES))}.")
        widths: list[int] = []
        for axis, length in zip(_AXES[name], feature.shape, strict=False):
            size = sizes[axis]
            if size is not None and size < length:
                raise ShapeError(f"pad_features: {name} has {axis} = {length}, more than the {size} asked for. Ask for at least {length}.")
            widths = [0, 0 if size is None else size - length, *widths]  # the last axis comes first
        trailing = [0, 0] * (feature.dim() - len(_AXES[name]))
        padded[name] = torch.nn.functional.pad(feature, [*trailing, *widths])
    return padded
