"""The classes of residues that published systems read: each has its own letters, order, gap and mask.

An alignment in memory has the codes of :mod:`evoattn.io.residues`, and keeps apart the letters that AlphaFold reads as another
(:attr:`evoattn.io.MSA.unusual`), so that every system gets its own reading of them. ``Profile.residues`` names the table of a system.

==============  ==========  =======================================  ================================================================
table           classes     B, Z and U are                           order
==============  ==========  =======================================  ================================================================
alphafold2      23          D, E and C                               amino acids, X, gap, mask
alphafold3      32          D, E and C                               amino acids, X, gap, AGCU of RNA, AGCT of DNA, unknown nucleotide
protenix        32          D, E and C                               amino acids, X, AGCUN of RNA, AGCTN of DNA, gap
openfold3       32          unknown                                  as protenix
rosettafold3    32          unknown                                  amino acids, X, ACGUN of RNA, ACGTN of DNA, gap
boltz           33          unknown                                  padding, gap, amino acids, X, AGCUN of RNA, AGCTN of DNA
esm             33          classes of their own, and so is O        see :mod:`evoattn.io.esm_tokens`
==============  ==========  =======================================  ================================================================

J and ``*`` are unknown in all of them, and O but for ESM. T in RNA is read as U, and U in DNA as T, everywhere.

Sources: AlphaFold 2 ``residue_constants.py``; AlphaFold 3 ``msa_features.py``; Protenix 2.0.0 ``constants.py``; OpenFold3 0.5.0
``residues.py``; RosettaFold 3's AtomWorks 3.0.4 ``encoding_definitions.py`` and ``_msa_constants.py``; Boltz 2.2.1 ``const.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from evoattn.errors import MSAError
from evoattn.io.msa import MSA
from evoattn.io.residues import ALPHABETS, AMINO_ACIDS, MASKED

_NONE: Final = -1


@dataclass(frozen=True, eq=False)
class ResidueTable:
    """The class of each letter, for the kinds of molecule that a system reads.

    Attributes:
        name: as in ``Profile.residues``. n_classes: how many there are, those that no letter has included.
        letters: kind of molecule -> letter -> class, of every letter that a code of :mod:`evoattn.io.residues` prints as, ``-`` included.
        unusual: class of those letters of proteins that are not read as AlphaFold reads them.
        masked: class of a cell that is hidden, for a model to tell what was there; None where the system hides none.
    """

    name: str
    n_classes: int
    letters: Mapping[str, Mapping[str, int]]
    unusual: Mapping[str, int] = field(default_factory=dict)
    masked: int | None = None

    def classes(self, msa: MSA, rows: slice = slice(None)) -> Int64[Tensor, "s n"]:
        """The class of every cell of some rows of an alignment.

        Raises:
            MSAError: the system does not read this kind of molecule, or has no class for a hidden cell.
        """
        if msa.alphabet not in self.letters:
            raise MSAError(f"the alignment is of {msa.alphabet}; the residue table {self.name!r} is of {', '.join(self.letters)} alone.")
        residues = msa.residues[rows]
        if self.masked is None and msa.alphabet == "protein" and (residues == MASKED).any():
            raise MSAError(
                f"the alignment has hidden cells, '?', for which the residue table {self.name!r} has no class; fill them in first."
            )
        found = self._of_code(msa.alphabet)[residues]
        if self.unusual and msa.unusual is not None:
            odd = msa.unusual.take(np.arange(msa.n_seq)[rows])
            own = self._of_unusual[odd.letters]
            known = own != _NONE
            found[odd.rows[known], odd.columns[known]] = own[known]
        return torch.from_numpy(found)

    def _of_code(self, alphabet: str) -> Int64[np.ndarray, " codes"]:
        table = self.letters[alphabet]
        codes = [table.get(letter, _NONE) for letter in ALPHABETS[alphabet].letters]
        if alphabet == "protein" and self.masked is not None:
            codes[MASKED] = self.masked
        return np.array(codes, dtype=np.int64)

    @property
    def _of_unusual(self) -> Int64[np.ndarray, " bytes"]:
        table = np.full(256, _NONE, dtype=np.int64)
        for letter, number in self.unusual.items():
            table[ord(letter)] = number
        return table


def _numbered(first: int, letters: str, gap: int) -> dict[str, int]:
    return {"-": gap, **{letter: first + place for place, letter in enumerate(letters)}}


def _table(
    name: str, n_classes: int, *, gap: int, protein: int, rna: tuple[int, str], dna: tuple[int, str], unknown: str = ""
) -> ResidueTable:
    """A table of one of AlphaFold 3's kin: the first class of the amino acids, and of nucleotides with their order.

    The letters in `unknown` are X."""
    of_protein = _numbered(protein, f"{AMINO_ACIDS}X", gap)
    letters = {"protein": of_protein, "rna": _numbered(*rna, gap), "dna": _numbered(*dna, gap)}
    return ResidueTable(name, n_classes, letters, dict.fromkeys(unknown, of_protein["X"]))


_ALPHAFOLD3: Final = {
    "protein": _numbered(0, f"{AMINO_ACIDS}X", 21), "rna": _numbered(22, "AGCU", 21) | {"N": 30},
    "dna": _numbered(26, "AGCT", 21) | {"N": 30},
}  # fmt: skip

ESM_TOKENS: Final = (
    "<cls>", "<pad>", "<eos>", "<unk>", "L", "A", "G", "V", "S", "E", "R", "T", "I", "D", "P", "K", "Q", "N", "F", "Y", "M", "H", "W", "C",
    "X", "B", "U", "Z", "O", ".", "-", "<null_1>", "<mask>",
)  # fmt: skip
"""Every token at its number, as in ESM-1b, ESM-2 and the MSA Transformer (``Alphabet`` in ``esm/data.py``)."""

ESM_NUMBER: Final = {token: number for number, token in enumerate(ESM_TOKENS)}

RESIDUE_TABLES: Final = {
    table.name: table
    for table in (
        ResidueTable("alphafold2", 23, {"protein": _ALPHAFOLD3["protein"]}, masked=22),
        ResidueTable("alphafold3", 32, _ALPHAFOLD3),
        _table("protenix", 32, gap=31, protein=0, rna=(21, "AGCUN"), dna=(26, "AGCTN")),
        _table("openfold3", 32, gap=31, protein=0, rna=(21, "AGCUN"), dna=(26, "AGCTN"), unknown="BZU"),
        _table("rosettafold3", 32, gap=31, protein=0, rna=(21, "ACGUN"), dna=(26, "ACGTN"), unknown="BZU"),
        _table("boltz", 33, gap=1, protein=2, rna=(23, "AGCUN"), dna=(28, "AGCTN"), unknown="BZU"),
        ResidueTable(
            "esm", len(ESM_TOKENS), {"protein": {letter: ESM_NUMBER[letter] for letter in f"{AMINO_ACIDS}X-"}},
            {**{letter: ESM_NUMBER[letter] for letter in "BZUO"}, "J": ESM_NUMBER["<unk>"], "*": ESM_NUMBER["<unk>"]},
            masked=ESM_NUMBER["<mask>"],
        ),
    )
}  # fmt: skip
"""The tables by name."""
