"""An alignment as the tokens of ESM's models."""

import torch
from jaxtyping import Int64
from torch import Tensor

from evoattn.errors import MSAError
from evoattn.io.msa import MSA, select_rows
from evoattn.io.residue_tables import ESM_NUMBER, RESIDUE_TABLES


def esm_tokens(msa: MSA, max_seqs: int | None = 1024) -> Int64[Tensor, "s n_plus_1"]:
    """The tokens [N_seq, 1 + N_res] of an alignment for :class:`evoattn.MSATransformer`, <cls> in front of each row.

    Letters that AlphaFold reads as others (B, Z, U, O) have tokens of their own; J and ``*`` are unknown. Insertions are left out, and a
    gap is ``-`` however the file wrote it.

    Args:
        max_seqs: keep the query and the next rows of the file, so many in all; None for all. The MSA Transformer takes 1024 at most.

    Raises:
        MSAError: the alignment is not one of proteins. ConfigError: max_seqs is below 1.
    """
    if msa.alphabet != "protein":
        raise MSAError(f"the alignment is of {msa.alphabet}; ESM's models know proteins alone.")
    if max_seqs is not None:
        msa = select_rows(msa, max_seqs)
    tokens = torch.full((msa.n_seq, 1 + msa.n_res), ESM_NUMBER["<cls>"])
    tokens[:, 1:] = RESIDUE_TABLES["esm"].classes(msa)
    return tokens
