"""The residue tables: which letter gets which code, for proteins, RNA and DNA.

======  =========================================================================================
code    protein
======  =========================================================================================
0..19   the amino acids in AlphaFold 2's order, ``ARNDCQEGHILKMFPSTWYV``
20      ``X``, an unknown residue
21      a gap, ``-`` or ``.``
22      the masked-MSA token of training; no letter of a file reads as it, and it prints as ``?``
======  =========================================================================================

======  =========================================================================================
code    RNA and DNA, in AlphaFold 3's order (``_RNA_TO_ID`` and ``_DNA_TO_ID`` of its ``msa_features.py``)
======  =========================================================================================
21      a gap, ``-`` or ``.``
22..25  ``AGCU`` of RNA
26..29  ``AGCT`` of DNA
30      ``N``, an unknown nucleotide
======  =========================================================================================

Letters without a code of their own are read as another letter, and counted. In a protein ``B`` (Asp or Asn) is read as
``D``, ``Z`` (Glu or Gln) as ``E``, ``U`` (selenocysteine) as ``C``, ``J`` (Leu or Ile) and ``O`` (pyrrolysine) as ``X``:
AlphaFold 2's own table (``HHBLITS_AA_TO_ID`` of its ``residue_constants.py``); and ``*`` as ``X``. In RNA ``T`` is read
as ``U``, in DNA ``U`` as ``T``, since databases write either, and every other letter (``R``, ``Y``, ...) as ``N``;
AlphaFold 3 reads those ``T`` and ``U`` as unknown too. Letter case does not matter here; what it means for a column is
a matter of the file format. Every character but letters, ``-``, ``.`` and ``*`` is refused.
"""

from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final

import numpy as np
import numpy.typing as npt

from evoattn.errors import MSAError

AMINO_ACIDS: Final = "ARNDCQEGHILKMFPSTWYV"
UNKNOWN: Final = 20
GAP: Final = 21
"""The code of a gap, the same in every alphabet."""
MASKED: Final = 22
N_CODES: Final = 23

INVALID: Final = 255
"""What the tables give for a byte that is no residue and no gap."""

_VALID: Final = (ascii_uppercase + "-.*").encode()


@dataclass(frozen=True, repr=False, eq=False)
class Alphabet:
    """The codes of one kind of molecule."""

    name: str
    letters: str
    """The letter that each code prints as, ``?`` where the alphabet has no such code."""
    read_as: dict[str, str]
    """Letters that are read as another one."""
    code_of_byte: npt.NDArray[np.uint8]
    """uint8 [256]: the code of each ASCII byte; :data:`INVALID` where there is none."""

    def __repr__(self) -> str:
        return f"Alphabet({self.name!r})"


def _alphabet(name: str, letters: str, read_as: dict[str, str]) -> Alphabet:
    table = np.full(256, INVALID, dtype=np.uint8)
    for code, letter in enumerate(letters):
        if letter != "?":
            table[ord(letter)] = table[ord(letter.lower())] = code
    for letter, target in read_as.items():
        table[ord(letter)] = table[ord(letter.lower())] = table[ord(target)]
    table[ord(".")] = GAP
    table.flags.writeable = False
    return Alphabet(name, letters, read_as, table)


def _nucleic(name: str, letters: str, read_as: dict[str, str]) -> Alphabet:
    others = [letter for letter in ascii_uppercase + "*" if letter not in letters and letter not in read_as]
    return _alphabet(name, letters, {**read_as, **dict.fromkeys(others, "N")})


PROTEIN: Final = _alphabet("protein", AMINO_ACIDS + "X-?", {"B": "D", "Z": "E", "U": "C", "J": "X", "O": "X", "*": "X"})
RNA: Final = _nucleic("rna", "?" * 21 + "-AGCU????N", {"T": "U"})
DNA: Final = _nucleic("dna", "?" * 21 + "-????AGCTN", {"U": "T"})
ALPHABETS: Final = {alphabet.name: alphabet for alphabet in (PROTEIN, RNA, DNA)}

LETTERS: Final = PROTEIN.letters
"""The letter that each code of a protein prints as."""

READ_AS: Final = PROTEIN.read_as
"""Letters of a protein that are read as another one."""

CODE_OF_BYTE: Final = PROTEIN.code_of_byte
"""uint8 [256]: the code of each ASCII byte in a protein; :data:`INVALID` where there is none."""


def encode(text: str, alphabet: str = "protein") -> npt.NDArray[np.uint8]:
    """Return the codes, uint8 [N_res], of ``text``.

    Raises MSAError if a character is not in the table.
    """
    refuse_invalid(text.encode())
    return ALPHABETS[alphabet].code_of_byte[np.frombuffer(text.encode(), dtype=np.uint8)]


def decode(codes: npt.NDArray[np.integer], alphabet: str = "protein") -> str:
    """Return the letters of ``codes`` [N_res], codes of that alphabet."""
    letters = ALPHABETS[alphabet].letters
    return "".join(letters[code] for code in codes)


def refuse_invalid(text: bytes) -> None:
    """Raise MSAError naming the first character of ``text`` that no table has."""
    if not text.translate(None, _VALID + _VALID.lower()):
        return
    allowed = (_VALID + _VALID.lower()).decode()
    # Decoded first, so that a letter of more than one byte is named as the user sees it.
    position, character = next((i, c) for i, c in enumerate(text.decode("utf-8", "replace"), 1) if c not in allowed)
    raise MSAError(
        f"character {character!r} at position {position} is neither a residue nor a gap. Allowed are the letters A-Z, "
        f"'-' and '.' for gaps, and '*'." + _HINTS.get(character, "")
    )


_HINTS: Final = {
    ":": " A ':' joins the chains of a complex: give each chain in a file of its own.",
    ">": " A record starts with '>' in the first column of a line.",
}
