"""From an alignment to the MSA features that AlphaFold 3 and its descendants take."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from evoattn.errors import ConfigError
from evoattn.io.chains import chain_ids, expand_copies
from evoattn.io.clusters import codes_and_deletions
from evoattn.io.features import one_hot
from evoattn.io.filters import subsample
from evoattn.io.msa import MSA

N_CLASSES: Final = 32
ALPHAFOLD3_CLASSES: Final = tuple(range(31))
"""Class of each code of :mod:`evoattn.io.residues`: the 20 amino acids, unknown, gap, AGCU of RNA, AGCT of DNA, unknown nucleotide."""

_ROWS_AT_ONCE: Final = 1024


def alphafold3_features(
    msa: MSA,
    *,
    max_seqs: int = 1024,
    seed: int = 0,
    recycle: int = 0,
    classes: Sequence[int] = ALPHAFOLD3_CLASSES,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return the MSA features of AlphaFold 3 (Abramson et al. 2024, supplement, table 5), without a batch axis.

    ==============  ======================  ===================================================================================
    name            shape                   content
    ==============  ======================  ===================================================================================
    restype         [N_res, 32]             one-hot of the query
    profile         [N_res, 32]             frequencies of the classes in each column, over all rows
    deletion_mean   [N_res]                 mean number of insertions left of each column, over all rows; not squashed
    msa             [N_seq, N_res, 32]      one-hot of the rows
    has_deletion    [N_seq, N_res]          1 where something is inserted left of the column
    deletion_value  [N_seq, N_res]          2/pi atan(d / 3) of d inserted residues
    msa_mask        [N_seq, N_res]          True throughout, bool
    seq_mask        [N_res]                 True throughout, bool
    residue_index   [N_res]                 0, 1, ... in each chain, int64
    asym_id, ...    [N_res]                 asym_id, entity_id and sym_id of the chains, int64, from 1
    ==============  ======================  ===================================================================================

    All copies of a chain have columns. Rows are drawn at random if there are more than ``max_seqs``, anew for each recycle;
    the query stays row 0 and file order stays, where AlphaFold 3 shuffles all rows and so may leave out the query.

    Args:
        msa: the alignment; row 0 is the query. Protein, RNA or DNA.
        max_seqs: rows at most, the query included; profile and deletion_mean are always of all rows.
        seed, recycle: the random choice follows from the two alone.
        classes: for each code of :mod:`evoattn.io.residues`, 0 to 30, the class that it is given, 0 to 31. Other systems have
            the classes in another order.
        dtype: of the floating-point features.

    Raises:
        ConfigError: a setting outside what is allowed.
    """
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype is {dtype}; features need a floating-point type, such as torch.float32.")
    if len(classes) != 31 or not all(0 <= number < N_CLASSES for number in classes):
        raise ConfigError(f"alphafold3_features: classes has {len(classes)} entries; it gives each of 31 codes a class 0..{N_CLASSES - 1}.")
    if recycle < 0 or seed < 0:
        raise ConfigError(f"alphafold3_features: seed is {seed} and recycle {recycle}; both are 0 or more.")
    table = torch.tensor(classes)
    msa = expand_copies(msa)
    own_seed = int(np.random.SeedSequence([seed, recycle]).generate_state(1)[0])
    codes, deletions = codes_and_deletions(subsample(msa, max_seqs, seed=own_seed), np.arange(min(max_seqs, msa.n_seq)))
    floats = {
        "restype": one_hot(table[codes[0]], N_CLASSES),
        **_profile(msa, table),
        "msa": one_hot(table[codes], N_CLASSES),
        "has_deletion": deletions.clamp(max=1),
        "deletion_value": torch.atan(deletions / 3) * (2 / math.pi),
    }
    return {
        **{name: value.to(dtype) for name, value in floats.items()},
        "msa_mask": torch.ones(codes.shape, dtype=torch.bool),
        "seq_mask": torch.ones(msa.n_res, dtype=torch.bool),
        **{name: torch.from_numpy(value) for name, value in vars(chain_ids(msa)).items()},
    }


def _profile(msa: MSA, table: Int64[Tensor, " codes"]) -> dict[str, Tensor]:
    counts = torch.zeros(msa.n_res, N_CLASSES)
    deletions = torch.zeros(msa.n_res)
    for start in range(0, msa.n_seq, _ROWS_AT_ONCE):
        codes, own = codes_and_deletions(msa, np.arange(start, min(start + _ROWS_AT_ONCE, msa.n_seq)))
        counts.scatter_add_(1, table[codes].T, torch.ones(codes.T.shape))
        deletions += own.sum(dim=0)
    return {"profile": counts / msa.n_seq, "deletion_mean": deletions / msa.n_seq}
