"""Rows that are no cluster centre join one: the profile and the mean deletion count of each cluster."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from evoattn.io.feature_config import FeatureConfig
from evoattn.io.msa import MSA
from evoattn.io.residues import GAP, N_CODES

_POSITIONS_AT_ONCE: Final = 4_000_000  # alignment positions whose temporaries (some 16 bytes each) are held together


def cluster_averages(
    msa: MSA,
    rows: Int64[np.ndarray, " r"],
    centres: Int64[Tensor, "s n"],
    centre_deletions: Float[Tensor, "s n"],
    config: FeatureConfig,
) -> tuple[Float[Tensor, "s n 23"], Float[Tensor, "s n"]]:
    """Return the residue frequencies and the mean deletion count of each cluster, its centre included.

    AlphaFold 2, ``nearest_neighbor_clusters`` and ``summarize_clusters``; AlphaFold-Multimer, ``nearest_neighbor_clusters``.

    Args:
        rows: the rows of `msa` that are no centre.
        centres: codes of the centres, after masking.
        centre_deletions: their deletion counts.
    """
    n_clust, n_res = centres.shape
    counts = torch.zeros(n_clust * n_res * N_CODES)
    deletions = centre_deletions.clone()
    sizes = torch.ones(n_clust)
    columns = torch.arange(n_res)
    counts[((torch.arange(n_clust)[:, None] * n_res + columns) * N_CODES + centres).flatten()] = 1
    for codes, row_deletions in _chunks(msa, rows):
        for member, cluster, weight in _memberships(codes, centres, config.clusters == "shared"):
            cell = (cluster[:, None] * n_res + columns) * N_CODES + codes[member]
            counts.index_add_(0, cell.flatten(), weight[:, None].expand_as(cell).flatten())
            deletions.index_add_(0, cluster, weight[:, None] * row_deletions[member])
            sizes.index_add_(0, cluster, weight)
    sizes += config.cluster_epsilon
    return counts.view(n_clust, n_res, N_CODES) / sizes[:, None, None], deletions / sizes[:, None]


def agreement(rows: Int64[Tensor, "r n"], centres: Int64[Tensor, "s n"]) -> Float[Tensor, "r s"]:
    """Return in how many columns each row has the residue of each centre; gaps and the mask token count for nothing."""
    # One product per residue type sums over the columns, and never holds a one-hot alignment.
    total = torch.zeros(len(rows), len(centres))
    for code in range(GAP):
        total += (rows == code).float() @ (centres == code).float().T
    return total


def _chunks(msa: MSA, rows: Int64[np.ndarray, " r"]) -> Iterator[tuple[Int64[Tensor, "c n"], Float[Tensor, "c n"]]]:
    step = max(1, _POSITIONS_AT_ONCE // msa.n_res)
    for start in range(0, len(rows), step):
        yield codes_and_deletions(msa, rows[start : start + step])


def _memberships(
    rows: Int64[Tensor, "r n"], centres: Int64[Tensor, "s n"], shared: bool
) -> Iterator[tuple[Int64[Tensor, " m"], Int64[Tensor, " m"], Float[Tensor, " m"]]]:
    """Yield, in parts, (row, centre, weight): each row with the centre it agrees most with, the first of equals or all in equal parts."""
    agreed = agreement(rows, centres)
    if not shared:
        yield torch.arange(len(rows)), agreed.argmax(dim=1), torch.ones(len(rows))
        return
    # The softmax of 1000 x a whole number: in float32 it is 1 / (number of equals) for the highest, and exactly 0 for others.
    highest = agreed == agreed.amax(dim=1, keepdim=True)
    weight = 1 / highest.sum(dim=1)
    member, cluster = highest.nonzero(as_tuple=True)
    step = max(1, _POSITIONS_AT_ONCE // rows.shape[1])
    for start in range(0, len(member), step):
        part = slice(start, start + step)
        yield member[part], cluster[part], weight[member[part]]


def codes_and_deletions(msa: MSA, rows: Int64[np.ndarray, " r"]) -> tuple[Int64[Tensor, "r n"], Float[Tensor, "r n"]]:
    """Copies of the codes and deletion counts of some rows."""
    return torch.from_numpy(msa.residues[rows].astype(np.int64)), torch.from_numpy(msa.deletions[rows].astype(np.float32))
