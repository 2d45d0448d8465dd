"""Alignments in, features out: :func:`read_msa`, :func:`make_features`; on the way searches, statistics, filters, complexes."""

from evoattn.io.align import align_sequences
from evoattn.io.chains import ChainIds, chain_ids, expand_copies, split_chains
from evoattn.io.esm_tokens import esm_tokens
from evoattn.io.feature_config import FEATURE_PRESETS, FeatureConfig, MSAMasking, feature_preset
from evoattn.io.feature_draw import FeatureDraw
from evoattn.io.feature_padding import pad_features
from evoattn.io.features import draw_features, make_features
from evoattn.io.features_af3 import alphafold3_features
from evoattn.io.filters import drop_repeats, filter_rows, subsample
from evoattn.io.msa import MSA, Annotation, MSAAccount, SparseLetters, select_rows
from evoattn.io.pairing import join_chains, pair_rows, species_of
from evoattn.io.reader import SequenceSet, read_msa, read_sequences
from evoattn.io.search import search_database
from evoattn.io.statistics import MSAStatistics, msa_statistics, neff, row_weights
from evoattn.io.writer import write_msa

__all__ = [
    "FEATURE_PRESETS",
    "MSA",
    "Annotation",
    "ChainIds",
    "FeatureConfig",
    "FeatureDraw",
    "MSAAccount",
    "MSAMasking",
    "MSAStatistics",
    "SequenceSet",
    "SparseLetters",
    "align_sequences",
    "alphafold3_features",
    "chain_ids",
    "draw_features",
    "drop_repeats",
    "esm_tokens",
    "expand_copies",
    "feature_preset",
    "filter_rows",
    "join_chains",
    "make_features",
    "msa_statistics",
    "neff",
    "pad_features",
    "pair_rows",
    "read_msa",
    "read_sequences",
    "row_weights",
    "search_database",
    "select_rows",
    "species_of",
    "split_chains",
    "subsample",
    "write_msa",
]
