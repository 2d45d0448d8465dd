"""The reference files of ESM's models, and how their blocks are run through ours."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from evoattn import ESMFoldConfig, MSATransformerConfig, load_weights
from evoattn.stacks import ESMFoldBlock, MSATransformerBlock

Arrays = dict[str, np.ndarray]

ESMFOLD = {"n_blocks": 1, "c_s": 40, "c_z": 24, "n_head_single": 5, "n_head_tri_start": 4, "n_head_tri_end": 4, "c_hidden_mul": 24}
MSA_TRANSFORMER = {"n_blocks": 1, "c_m": 32, "n_head": 4, "c_hidden_transition": 56, "c_row_position": 32}


def below(file: Arrays, prefix: str) -> Arrays:
    return {key.removeprefix(prefix): array for key, array in file.items() if key.startswith(prefix)}


def esmfold_block(file: Arrays, prefix: str = "param/", **changes: Any) -> ESMFoldBlock:
    """The block of the file, with the arrays below `prefix` as parameters; `changes` are of its config."""
    block = ESMFoldBlock(ESMFoldConfig(**{**ESMFOLD, **changes})).eval()
    load_weights(block, below(file, prefix), family="esmfold")
    return block


def esmfold_masks(file: Arrays, case: str) -> tuple[Tensor, Tensor]:
    """Of residues, and of pairs as ESMFold makes it."""
    mask = torch.from_numpy(file[f"{case}/mask"]).bool()
    return mask, mask.unsqueeze(-1) & mask.unsqueeze(-2)


def axial_block(file: Arrays, prefix: str = "param/", **changes: Any) -> MSATransformerBlock:
    block = MSATransformerBlock(MSATransformerConfig(**{**MSA_TRANSFORMER, **changes})).eval()
    load_weights(block, below(file, prefix), family="msa_transformer")
    return block


def batch_first(array: np.ndarray) -> np.ndarray:
    """ESM's [rows, columns, batch, channels] as ours."""
    return np.ascontiguousarray(array.transpose(2, 0, 1, 3))
