"""From an alignment to the features that AlphaFold 2 takes."""

import math
from typing import Final

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from evoattn.errors import ConfigError, MSAError
from evoattn.io.msa import MSA, select_rows
from evoattn.io.residues import GAP, N_CODES

CHAIN_JUMP: Final = 200
"""Added to ``residue_index`` between chains: beyond the 32 residues that relative positions tell apart."""

_POSITIONS_AT_ONCE: Final = 4_000_000  # alignment positions whose temporaries (some 16 bytes each) are held together


def make_features(msa: MSA, *, max_seqs: int = 128, max_extra: int = 1024, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return the features of AlphaFold 2 (supplement 1.2.7 and 1.2.9, Table 1), without a batch axis.

    ==============  ====================  =====================================================================================
    name            shape                 content
    ==============  ====================  =====================================================================================
    target_feat     [N_res, 22]           0 (no break between segments), one-hot of the query (21)
    aatype          [N_res]               codes of the query, int64
    residue_index   [N_res]               0, 1, ..., int64; 200 more from chain to chain of a complex
    msa_feat        [N_clust, N_res, 49]  one-hot (23), has_deletion, deletion_value, cluster_profile (23), deletion_mean_value
    extra_msa_feat  [N_extra, N_res, 25]  one-hot (23), has_deletion, deletion_value
    msa_mask        [N_clust, N_res]      True throughout, bool
    extra_msa_mask  [N_extra, N_res]      True throughout, bool
    seq_mask        [N_res]               True throughout, bool
    ==============  ====================  =====================================================================================

    A deletion value of d inserted residues left of a column is 2/pi atan(d / 3). Every row that is no cluster centre
    belongs to the centre with which it shares the most residues; gaps count for nothing, and the first of equals wins.
    cluster_profile and the mean deletion are averages over the members of a cluster, its centre included.

    It differs from AlphaFold 2 in this: the centres are the first ``max_seqs`` rows (:func:`evoattn.io.select_rows`)
    and the extra rows the next ``max_extra``, both in file order, where AlphaFold 2 draws them at random; no position
    is masked or replaced (its BERT-style masking is for training); the average is exact, where AlphaFold 2 adds 1e-6 to
    the size of a cluster. As there, rows beyond ``max_extra`` still count in the cluster averages. The jump between
    chains is ColabFold's way to give a complex to a model of one chain (Mirdita et al. 2022); chains that occur several
    times are featurised once.

    Args:
        msa: the alignment; row 0 is the query.
        max_seqs: cluster centres at most, N_clust.
        max_extra: extra rows at most, N_extra. It may be 0, and is 0 if there are no more than ``max_seqs`` rows.
        dtype: of the floating-point features, which are computed in float32.

    Raises:
        ConfigError: ``max_seqs`` below 1, ``max_extra`` below 0, or a ``dtype`` that is not floating point.
        MSAError: row 0 has a gap, as it may after :meth:`evoattn.io.MSA.take` has put another row first.
    """
    if max_extra < 0:
        raise ConfigError(f"max_extra is {max_extra}; it is 0 or more.")
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype is {dtype}; features need a floating-point type, such as torch.float32.")
    if (odd := np.flatnonzero(msa.residues[0] >= GAP)).size:
        raise MSAError(
            f"the query, row 0 ({msa.names[0]!r}), has no residue in {odd.size} of {msa.n_res} columns, the first of them "
            f"{odd[0]}. Features need one in each: put the row that the columns belong to first."
        )
    n_clust = select_rows(msa, max_seqs).n_seq
    codes, deletions = _tensors(msa, slice(n_clust + max_extra))
    clusters, cluster_deletions = _cluster_averages(msa, n_clust)
    cluster_feat = torch.cat([clusters, _squashed(cluster_deletions)[..., None]], dim=-1)
    msa_feat = torch.cat([_row_features(codes[:n_clust], deletions[:n_clust]), cluster_feat], dim=-1)
    extra_msa_feat = _row_features(codes[n_clust:], deletions[n_clust:])
    aatype = codes[0]
    no_break = torch.zeros(msa.n_res, 1)
    return {
        "target_feat": torch.cat([no_break, _one_hot(aatype, 21)], dim=-1).to(dtype),
        "aatype": aatype.clone(),
        "residue_index": _residue_index(msa),
        "msa_feat": msa_feat.to(dtype),
        "extra_msa_feat": extra_msa_feat.to(dtype),
        "msa_mask": torch.ones(msa_feat.shape[:2], dtype=torch.bool),
        "extra_msa_mask": torch.ones(extra_msa_feat.shape[:2], dtype=torch.bool),
        "seq_mask": torch.ones(msa.n_res, dtype=torch.bool),
    }


def nearest_centres(rows: Int64[Tensor, "r n"], centres: Int64[Tensor, "s n"]) -> Int64[Tensor, " r"]:
    """Return, for each row, the centre with the most equal residues; gaps (and masked positions) count for nothing.

    AlphaFold 2, ``nearest_neighbor_clusters`` with its gap_agreement_weight of 0. Of equals the first wins.
    """
    # One product per residue type sums over the columns, and never holds a one-hot alignment.
    agreement = torch.zeros(len(rows), len(centres))
    for code in range(GAP):
        agreement += (rows == code).float() @ (centres == code).float().T
    return agreement.argmax(dim=1)


def _cluster_averages(msa: MSA, n_clust: int) -> tuple[Float[Tensor, "s n 23"], Float[Tensor, "s n"]]:
    """Return the residue frequencies and the mean deletion count of each cluster, its centre included."""
    centres, deletions = _tensors(msa, slice(n_clust))
    counts = _one_hot(centres, N_CODES).flatten()
    sizes = torch.ones(n_clust)
    step = max(1, _POSITIONS_AT_ONCE // msa.n_res)
    for start in range(n_clust, msa.n_seq, step):
        codes, row_deletions = _tensors(msa, slice(start, start + step))
        cluster = nearest_centres(codes, centres)
        cell = (cluster[:, None] * msa.n_res + torch.arange(msa.n_res)) * N_CODES + codes
        counts.index_add_(0, cell.flatten(), torch.ones(cell.numel()))
        deletions.index_add_(0, cluster, row_deletions)
        sizes.index_add_(0, cluster, torch.ones(len(cluster)))
    return counts.view(n_clust, msa.n_res, N_CODES) / sizes[:, None, None], deletions / sizes[:, None]


def _tensors(msa: MSA, rows: slice) -> tuple[Int64[Tensor, "r n"], Float[Tensor, "r n"]]:
    """Copies of the codes and deletion counts of some rows."""
    return (
        torch.from_numpy(msa.residues[rows].astype(np.int64)),
        torch.from_numpy(msa.deletions[rows].astype(np.float32)),
    )


def _row_features(codes: Int64[Tensor, "s n"], deletions: Float[Tensor, "s n"]) -> Float[Tensor, "s n 25"]:
    has_deletion = deletions.clamp(max=1)
    return torch.cat([_one_hot(codes, N_CODES), has_deletion[..., None], _squashed(deletions)[..., None]], dim=-1)


def _squashed(deletions: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    return torch.atan(deletions / 3) * (2 / math.pi)


def _one_hot(codes: Int64[Tensor, "*shape"], n: int) -> Float[Tensor, "*shape n"]:
    # torch's one_hot makes int64 first, twice the size of the result.
    return torch.zeros(*codes.shape, n).scatter_(-1, codes[..., None], 1.0)


def _residue_index(msa: MSA) -> Int64[Tensor, " n"]:
    index = torch.arange(msa.n_res)
    for start in np.cumsum(msa.chain_lengths[:-1], dtype=np.int64).tolist():
        index[start:] += CHAIN_JUMP
    return index
