"""From an alignment to the MSA features that AlphaFold 3 and its descendants take."""

import math
from typing import Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from evoattn.config import PROFILES, Profile
from evoattn.errors import ConfigError
from evoattn.io.chains import chain_ids, expand_copies
from evoattn.io.features import one_hot
from evoattn.io.filters import subsample
from evoattn.io.msa import MSA
from evoattn.io.residue_tables import RESIDUE_TABLES

_ROWS_AT_ONCE: Final = 1024
_FACTOR: Final = {"2/pi atan(d/3)": 2 / math.pi, "pi/2 atan(d/3)": math.pi / 2}


def alphafold3_features(
    msa: MSA,
    *,
    profile: Profile = PROFILES["alphafold3"],
    max_seqs: int = 1024,
    seed: int = 0,
    recycle: int = 0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return the MSA features of AlphaFold 3 (Abramson et al. 2024, supplement, table 5) or one of its kin, without a batch axis.

    ==============  ======================  ===================================================================================
    name            shape                   content
    ==============  ======================  ===================================================================================
    restype         [N_res, c]              one-hot of the query; c is 32, Boltz's 33
    profile         [N_res, c]              frequencies of the classes in each column, over all rows
    deletion_mean   [N_res]                 mean number of insertions left of each column, over all rows
    msa             [N_seq, N_res, c]       one-hot of the rows
    has_deletion    [N_seq, N_res]          1 where something is inserted left of the column
    deletion_value  [N_seq, N_res]          2/pi atan(d / 3) of d inserted residues
    msa_mask        [N_seq, N_res]          True throughout, bool
    seq_mask        [N_res]                 True throughout, bool
    residue_index   [N_res]                 0, 1, ... in each chain, int64
    asym_id, ...    [N_res]                 asym_id, entity_id and sym_id of the chains, int64, from 1
    ==============  ======================  ===================================================================================

    `profile` decides the classes and their order (:mod:`evoattn.io.residue_tables`), and what is made of insertions: Boltz has
    pi/2 atan(d / 3), and as deletion_mean the mean of that; RosettaFold 3 the arc tangent of the mean.

    All copies of a chain have columns. Rows are drawn at random if there are more than ``max_seqs``, anew for each recycle;
    the query stays row 0 and file order stays, where AlphaFold 3 shuffles all rows and so may leave out the query.

    Args:
        msa: the alignment; row 0 is the query. Protein, RNA or DNA.
        profile: of AlphaFold 3 or one of its kin, e.g. ``evoattn.profile("boltz")``.
        max_seqs: rows at most, the query included; profile and deletion_mean are always of all rows.
        seed, recycle: the random choice follows from the two alone.
        dtype: of the floating-point features.

    Raises:
        ConfigError: a setting outside what is allowed, or the profile of a system that takes other features.
        MSAError: the alignment has hidden cells.
    """
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype is {dtype}; features need a floating-point type, such as torch.float32.")
    if profile.msa_op != "pair_weighted" or profile.deletions not in _FACTOR:
        raise ConfigError(
            f"alphafold3_features: the profile is {profile.name!r}, whose system takes other features; give one of AlphaFold 3 or its kin. "
            "make_features makes AlphaFold 2's, esm_tokens those of the MSA Transformer."
        )
    if recycle < 0 or seed < 0:
        raise ConfigError(f"alphafold3_features: seed is {seed} and recycle {recycle}; both are 0 or more.")
    msa = expand_copies(msa)
    own_seed = int(np.random.SeedSequence([seed, recycle]).generate_state(1)[0])
    drawn, table = subsample(msa, max_seqs, seed=own_seed), RESIDUE_TABLES[profile.residues]
    deletions = torch.from_numpy(drawn.deletions.astype(np.float32))
    floats = {
        "restype": one_hot(table.classes(msa, slice(1))[0], table.n_classes),
        **_averages(msa, profile),
        "msa": one_hot(table.classes(drawn), table.n_classes),
        "has_deletion": deletions.clamp(max=1),
        "deletion_value": _squashed(deletions, profile),
    }
    return {
        **{name: value.to(dtype) for name, value in floats.items()},
        "msa_mask": torch.ones(deletions.shape, dtype=torch.bool),
        "seq_mask": torch.ones(msa.n_res, dtype=torch.bool),
        **{name: torch.from_numpy(value) for name, value in vars(chain_ids(msa)).items()},
    }


def _averages(msa: MSA, profile: Profile) -> dict[str, Tensor]:
    """Of all rows, some at a time."""
    table = RESIDUE_TABLES[profile.residues]
    counts = torch.zeros(msa.n_res, table.n_classes)
    deletions = torch.zeros(msa.n_res)
    for start in range(0, msa.n_seq, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        classes, own = table.classes(msa, rows), torch.from_numpy(msa.deletions[rows].astype(np.float32))
        counts.scatter_add_(1, classes.T, torch.ones(classes.T.shape))
        deletions += (_squashed(own, profile) if profile.deletion_mean == "of values" else own).sum(dim=0)
    mean = deletions / msa.n_seq
    return {"profile": counts / msa.n_seq, "deletion_mean": _squashed(mean, profile) if profile.deletion_mean == "squashed" else mean}


def _squashed(deletions: Float[Tensor, "*shape"], profile: Profile) -> Float[Tensor, "*shape"]:
    return torch.atan(deletions / 3) * _FACTOR[profile.deletions]
