"""The residue table: which letter gets which code.

======  =========================================================================================
code    meaning
======  =========================================================================================
0..19   the amino acids in AlphaFold 2's order, ``ARNDCQEGHILKMFPSTWYV``
20      ``X``, an unknown residue
21      a gap, ``-`` or ``.``
22      the masked-MSA token of training; no letter of a file reads as it, and it prints as ``?``
======  =========================================================================================

Letters that stand for no single amino acid of the twenty are read as one of them, or as unknown, and counted: ``B``
(Asp or Asn) as ``D``, ``Z`` (Glu or Gln) as ``E``, ``U`` (selenocysteine) as ``C``, ``J`` (Leu or Ile) and ``O``
(pyrrolysine) as ``X``, and ``*`` as ``X``. For the letters this is AlphaFold 2's own table (``HHBLITS_AA_TO_ID`` of its
``residue_constants.py``). Letter case does not matter here; what it means for a column is a matter of the file format.
Every other character is refused.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from evoattn.errors import MSAError

AMINO_ACIDS: Final = "ARNDCQEGHILKMFPSTWYV"
UNKNOWN: Final = 20
GAP: Final = 21
MASKED: Final = 22
N_CODES: Final = 23

LETTERS: Final = AMINO_ACIDS + "X-?"
"""The letter that each code prints as."""

READ_AS: Final = {"B": "D", "Z": "E", "U": "C", "J": "X", "O": "X", "*": "X"}
"""Letters that are read as another one."""

INVALID: Final = 255
"""What :data:`CODE_OF_BYTE` gives for a byte that is no residue and no gap."""


def _code_of_byte() -> npt.NDArray[np.uint8]:
    table = np.full(256, INVALID, dtype=np.uint8)
    for code, letter in enumerate(LETTERS[:MASKED]):
        table[ord(letter)] = table[ord(letter.lower())] = code
    for letter, target in READ_AS.items():
        table[ord(letter)] = table[ord(letter.lower())] = table[ord(target)]
    table[ord(".")] = GAP
    table.flags.writeable = False
    return table


CODE_OF_BYTE: Final = _code_of_byte()
"""uint8 [256]: the code of each ASCII byte; :data:`INVALID` where there is none."""

VALID_BYTES: Final = bytes(np.flatnonzero(CODE_OF_BYTE != INVALID).astype(np.uint8))
"""Every byte that may stand in a sequence."""


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Return the codes, uint8 [N_res], of ``text``.

    Raises MSAError if a character is not in the table.
    """
    refuse_invalid(text.encode())
    return CODE_OF_BYTE[np.frombuffer(text.encode(), dtype=np.uint8)]


def decode(codes: npt.NDArray[np.integer]) -> str:
    """Return the letters of ``codes`` [N_res], each in 0..22."""
    return "".join(LETTERS[code] for code in codes)


def refuse_invalid(text: bytes) -> None:
    """Raise MSAError naming the first character of ``text`` that the table does not have."""
    if not text.translate(None, VALID_BYTES):
        return
    allowed = VALID_BYTES.decode()
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
