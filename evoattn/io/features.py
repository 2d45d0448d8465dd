"""From an alignment to the features that AlphaFold 2 takes."""

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from evoattn.errors import ConfigError, MSAError
from evoattn.io.chains import chain_ids, chain_slices, expand_copies
from evoattn.io.clusters import cluster_averages, codes_and_deletions
from evoattn.io.feature_config import FeatureConfig
from evoattn.io.feature_draw import FeatureDraw, draw_masking, draw_rows
from evoattn.io.filters import first_occurrences
from evoattn.io.msa import MSA
from evoattn.io.residues import GAP, N_CODES

_PLAIN = FeatureConfig()


def make_features(
    msa: MSA,
    config: FeatureConfig = _PLAIN,
    *,
    max_seqs: int | None = None,
    max_extra: int | None = None,
    seed: int = 0,
    recycle: int = 0,
    draw: FeatureDraw | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return the features of AlphaFold 2 (supplement 1.2.7 and 1.2.9, Table 1), without a batch axis.

    ==============  ====================  =====================================================================================
    name            shape                 content
    ==============  ====================  =====================================================================================
    target_feat     [N_res, 22]           0 (no break between segments), one-hot of the query (21); AlphaFold-Multimer: 21 wide
    aatype          [N_res]               codes of the query, int64
    residue_index   [N_res]               0, 1, ..., int64; 200 more from chain to chain of a complex
    msa_feat        [N_clust, N_res, 49]  one-hot (23), has_deletion, deletion_value, cluster_profile (23), deletion_mean_value
    extra_msa_feat  [N_extra, N_res, 25]  one-hot (23), has_deletion, deletion_value
    msa_mask        [N_clust, N_res]      True throughout, bool: a gap is a token like any other
    extra_msa_mask  [N_extra, N_res]      True throughout, bool
    seq_mask        [N_res]               True throughout, bool
    true_msa        [N_clust, N_res]      with masking: codes of the centres before it, int64, what a model learns to tell
    bert_mask       [N_clust, N_res]      with masking: cells that were hidden and are to be told, bool
    asym_id, ...    [N_res]               with chains="ids": asym_id, entity_id and sym_id, int64, from 1
    ==============  ====================  =====================================================================================

    A deletion value of d inserted residues left of a column is 2/pi atan(d / 3). Every row that is no cluster centre
    belongs to the centre with which it shares the most residues; gaps and hidden cells count for nothing.
    cluster_profile and the mean deletion are averages over the members of a cluster, its centre included, the mean taken
    before the arc tangent. Rows beyond ``max_extra`` count in them too.

    The default is deterministic: centres and extra rows in file order, nothing hidden. ``FeatureConfig.alphafold2()`` and
    ``FeatureConfig.alphafold2_multimer()`` do what AlphaFold 2 does at inference: they draw both at random, and hide 15 %
    of the cells of the centres. Of AlphaFold-Multimer's bert_mask cells are left out in which a row has no residue of that
    chain, as those off the diagonal of unpaired rows; AlphaFold-Multimer leaves those in paired rows in.

    Args:
        msa: the alignment, of proteins; row 0 is the query.
        config: what is made.
        max_seqs, max_extra: instead of the config's. N_extra is 0 if there are no more than ``max_seqs`` rows.
        seed, recycle: the random choices follow from the two, and from nothing else: the same give the same features, and
            AlphaFold 2 draws anew for each recycle (0, 1, ...).
        draw: random choices to be used in place of those, from :func:`draw_features` or made by hand.
        dtype: of the floating-point features, which are computed in float32.

    Raises:
        ConfigError: a setting outside what is allowed, a ``draw`` that does not fit the alignment, or a ``dtype`` that is
            not floating point.
        MSAError: row 0 has a gap, as it may after :meth:`evoattn.io.MSA.take` has put another row first; or the
            alignment is of RNA or DNA.
    """
    if not dtype.is_floating_point:
        raise ConfigError(f"dtype is {dtype}; features need a floating-point type, such as torch.float32.")
    msa, config, rows = _prepared(msa, config, max_seqs, max_extra)
    if draw is None:
        draw = _drawn(msa, config, rows, seed, recycle)
    elif draw.tokens.shape[1] != msa.n_res or max(draw.centres.max(), draw.extra.max(initial=0)) >= msa.n_seq:
        raise ConfigError(f"make_features: draw is of another alignment; this one has {msa.n_seq} rows and {msa.n_res} columns.")
    others = rows[~np.isin(rows, draw.centres)]
    codes = torch.from_numpy(draw.tokens.astype(np.int64))
    true_msa, deletions = codes_and_deletions(msa, draw.centres)
    profile, mean_deletions = cluster_averages(msa, others, codes, deletions, config)
    cluster_feat = torch.cat([profile, _squashed(mean_deletions, config)[..., None]], dim=-1)
    msa_feat = torch.cat([_row_features(codes, deletions, config), cluster_feat], dim=-1)
    extra_msa_feat = _row_features(*codes_and_deletions(msa, draw.extra), config)
    aatype = torch.from_numpy(msa.residues[0].astype(np.int64))
    features = {
        "target_feat": _target_feat(aatype, config).to(dtype),
        "aatype": aatype,
        **_positions(msa, config),
        "msa_feat": msa_feat.to(dtype),
        "extra_msa_feat": extra_msa_feat.to(dtype),
        "msa_mask": torch.ones(msa_feat.shape[:2], dtype=torch.bool),
        "extra_msa_mask": torch.ones(extra_msa_feat.shape[:2], dtype=torch.bool),
        "seq_mask": torch.ones(msa.n_res, dtype=torch.bool),
    }
    if config.masking is not None:
        features |= {"true_msa": true_msa, "bert_mask": torch.from_numpy(draw.hidden & _to_be_told(msa, draw, config))}
    return features


def draw_features(
    msa: MSA,
    config: FeatureConfig = _PLAIN,
    *,
    max_seqs: int | None = None,
    max_extra: int | None = None,
    seed: int = 0,
    recycle: int = 0,
) -> FeatureDraw:
    """The random choices that :func:`make_features` makes for the same arguments, without the features."""
    msa, config, rows = _prepared(msa, config, max_seqs, max_extra)
    return _drawn(msa, config, rows, seed, recycle)


def _prepared(
    msa: MSA, config: FeatureConfig, max_seqs: int | None, max_extra: int | None
) -> tuple[MSA, FeatureConfig, Int64[np.ndarray, " r"]]:
    """The alignment that is featurised, the config with what was given instead, and the rows there are."""
    if max_seqs is not None:
        config = replace(config, max_seqs=max_seqs)
    if max_extra is not None:
        config = replace(config, max_extra=max_extra)
    if msa.alphabet != "protein":
        raise MSAError(f"the alignment is of {msa.alphabet}; AlphaFold 2's features are of proteins. alphafold3_features takes the others.")
    if (odd := np.flatnonzero(msa.residues[0] >= GAP)).size:
        raise MSAError(
            f"the query, row 0 ({msa.names[0]!r}), has no residue in {odd.size} of {msa.n_res} columns, the first of them "
            f"{odd[0]}. Features need one in each: put the row that the columns belong to first."
        )
    rows = np.flatnonzero(first_occurrences(msa.residues)) if config.drop_repeats else np.arange(msa.n_seq)
    return expand_copies(msa) if config.copies == "all" else msa, config, rows


def _drawn(msa: MSA, config: FeatureConfig, rows: Int64[np.ndarray, " r"], seed: int, recycle: int) -> FeatureDraw:
    if seed < 0 or recycle < 0:
        raise ConfigError(f"make_features: seed is {seed} and recycle {recycle}; both are 0 or more.")
    rng = np.random.default_rng([seed, recycle])
    centres, extra = draw_rows(rows, config, rng)
    return FeatureDraw(centres, extra, *draw_masking(msa, rows, centres, config.masking, rng))


def _row_features(codes: Int64[Tensor, "s n"], deletions: Float[Tensor, "s n"], config: FeatureConfig) -> Float[Tensor, "s n 25"]:
    has_deletion = deletions.clamp(max=1)
    return torch.cat([one_hot(codes, N_CODES), has_deletion[..., None], _squashed(deletions, config)[..., None]], dim=-1)


def _squashed(deletions: Float[Tensor, "*shape"], config: FeatureConfig) -> Float[Tensor, "*shape"]:
    return torch.atan(deletions / config.deletion_scale) * (2 / math.pi)


def _target_feat(aatype: Int64[Tensor, " n"], config: FeatureConfig) -> Float[Tensor, "n c"]:
    feat = one_hot(aatype, 21)
    return torch.nn.functional.pad(feat, (1, 0)) if config.break_channel else feat


def _positions(msa: MSA, config: FeatureConfig) -> dict[str, Int64[Tensor, " n"]]:
    ids = {name: torch.from_numpy(value) for name, value in vars(chain_ids(msa)).items()}
    if config.chains == "ids":
        return ids
    return {"residue_index": torch.arange(msa.n_res) + config.chain_jump * (ids["asym_id"] - 1)}


def _to_be_told(msa: MSA, draw: FeatureDraw, config: FeatureConfig) -> Bool[np.ndarray, "s n"]:
    told = np.ones(draw.hidden.shape, dtype=bool)
    if config.chains == "ids":
        for columns in chain_slices(msa):
            told[:, columns] = (msa.residues[draw.centres][:, columns] != GAP).any(axis=1, keepdims=True)
    return told


def one_hot(codes: Int64[Tensor, "*shape"], n: int) -> Float[Tensor, "*shape n"]:
    """float32 of the codes, each below `n`."""
    # torch's one_hot makes int64 first, twice the size of the result.
    return torch.zeros(*codes.shape, n).scatter_(-1, codes[..., None], 1.0)
