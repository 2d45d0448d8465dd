"""The tokens of ESM's models, which have an alphabet of their own: other than AlphaFold's it has B, Z, U and O."""

from typing import Final

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from evoattn.errors import MSAError
from evoattn.io.msa import MSA, select_rows
from evoattn.io.residues import PROTEIN

TOKENS: Final = (
    "<cls>", "<pad>", "<eos>", "<unk>", "L", "A", "G", "V", "S", "E", "R", "T", "I", "D", "P", "K", "Q", "N", "F", "Y", "M", "H", "W", "C",
    "X", "B", "U", "Z", "O", ".", "-", "<null_1>", "<mask>",
)  # fmt: skip
"""Every token at its number, as in ESM-1b, ESM-2 and the MSA Transformer (``Alphabet`` in ``esm/data.py``)."""

NUMBER: Final = {token: number for number, token in enumerate(TOKENS)}


def _of_bytes() -> np.ndarray:
    """The number of each ASCII byte; <unk> where there is no token of that letter (J, *)."""
    table = np.full(256, NUMBER["<unk>"], dtype=np.int64)
    for token, number in NUMBER.items():
        if len(token) == 1:
            table[ord(token)] = number
    table[ord("?")] = NUMBER["<mask>"]  # as a masked residue prints
    return table


OF_BYTE: Final = _of_bytes()
OF_CODE: Final = OF_BYTE[np.frombuffer(PROTEIN.letters.encode(), dtype=np.uint8)]
"""The number of each code of :mod:`evoattn.io.residues`."""


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
    tokens = np.full((msa.n_seq, 1 + msa.n_res), NUMBER["<cls>"], dtype=np.int64)
    tokens[:, 1:] = OF_CODE[msa.residues]
    if msa.unusual is not None:
        tokens[msa.unusual.rows, 1 + msa.unusual.columns] = OF_BYTE[msa.unusual.letters]
    return torch.from_numpy(tokens)
