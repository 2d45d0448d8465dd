"""Alignments in, features out: :func:`read_msa`, :func:`select_rows`, :func:`make_features`."""

from evoattn.io.features import make_features
from evoattn.io.msa import MSA, Annotation, MSAAccount, SparseLetters, select_rows
from evoattn.io.reader import read_msa

__all__ = ["MSA", "Annotation", "MSAAccount", "SparseLetters", "make_features", "read_msa", "select_rows"]
