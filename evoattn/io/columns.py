"""From the text of rows to columns and inserted letters, and from those to codes, for a few rows at a time."""

from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from evoattn.io.residues import GAP, INVALID, PROTEIN, Alphabet

Text = UInt8[np.ndarray, " _"]
Table = UInt8[np.ndarray, "256"]
"""What each byte is."""

_COLUMN, _INSERTED, _NOTHING, _REFUSED = range(4)
_LOWER: Final = slice(ord("a"), ord("z") + 1)


def _kinds(*, case_matters: bool) -> Table:
    table = np.where(PROTEIN.code_of_byte == INVALID, _REFUSED, _COLUMN).astype(np.uint8)
    if case_matters:
        table[_LOWER] = _INSERTED
        table[ord(".")] = _NOTHING
    table.flags.writeable = False
    return table


EVERY_CHARACTER: Final = _kinds(case_matters=False)
"""What each byte is in a file where every character is a column."""

UPPER_CASE: Final = _kinds(case_matters=True)
"""What each byte is in a3m and a2m: lower case is an insertion, ``.`` is nothing."""


class Columns(NamedTuple):
    """Some rows: the characters of their columns, and the letters inserted between those, in the order of the text."""

    characters: UInt8[np.ndarray, "r w"]
    row: Int64[np.ndarray, " k"]
    """Of each inserted letter; never descending."""
    column: Int64[np.ndarray, " k"]
    """The one that it is left of; w after the last."""
    letter: UInt8[np.ndarray, " k"]


def n_columns(text: Text, lengths: Int64[np.ndarray, " r"], kinds: Table) -> Int64[np.ndarray, " r"]:
    """How many columns each of these rows, which follow each other in ``text``, has."""
    others = np.flatnonzero(kinds[text] != _COLUMN)
    return lengths - np.bincount(np.searchsorted(np.cumsum(lengths), others, side="right"), minlength=len(lengths))


def refused(text: Text, kinds: Table) -> bool:
    """Whether some character is neither a residue nor a gap."""
    return bool((kinds[text] == _REFUSED).any())


def split(text: Text, lengths: Int64[np.ndarray, " r"], kinds: Table, width: int) -> Columns | None:
    """Part rows, which follow each other in ``text``, into columns and insertions.

    None if a row has not ``width`` columns, or a character that is refused.
    """
    kind = kinds[text]
    special = np.flatnonzero(kind)
    nothing = np.zeros(0, np.int64)
    if not special.size:
        if (lengths != width).any():
            return None
        return Columns(text.reshape(len(lengths), width), nothing, nothing, nothing.astype(np.uint8))
    row = np.searchsorted(np.cumsum(lengths), special, side="right")
    if (lengths - np.bincount(row, minlength=len(lengths)) != width).any() or (kind[special] == _REFUSED).any():
        return None
    column = special - np.arange(len(special)) - row * width  # the columns before it, less those of the rows before
    inserted = kind[special] == _INSERTED
    letters = text[special[inserted]]
    return Columns(text[kind == _COLUMN].reshape(len(lengths), width), row[inserted], column[inserted], letters)


def keep(columns: Columns, kept: Bool[np.ndarray, " w"]) -> Columns:
    """Keep some columns; the letters in the others become insertions."""
    characters, row, column, letter = columns
    width = characters.shape[1]
    new_column = np.concatenate([[0], np.cumsum(kept)])
    lost_row, lost_column = np.nonzero((PROTEIN.code_of_byte[characters] != GAP) & ~kept)
    # A letter inserted left of a column stands before the one that was in the column.
    place = np.concatenate([row * (2 * width + 2) + 2 * column, lost_row * (2 * width + 2) + 2 * lost_column + 1])
    order = np.argsort(place, kind="stable")
    return Columns(
        characters[:, kept],
        np.concatenate([row, lost_row])[order],
        new_column[np.concatenate([column, lost_column])[order]],
        np.concatenate([letter, characters[lost_row, lost_column]])[order],
    )


def is_residue(characters: UInt8[np.ndarray, "*shape"]) -> Bool[np.ndarray, "*shape"]:
    return PROTEIN.code_of_byte[characters] < GAP


def unusual_letters(alphabet: Alphabet) -> Bool[np.ndarray, "256"]:
    """Which bytes are read as another letter."""
    table = np.zeros(256, dtype=bool)
    for letter in alphabet.read_as:
        table[ord(letter)] = table[ord(letter.lower())] = True
    return table


def upper(letters: Text) -> Text:
    table = np.arange(256, dtype=np.uint8)
    table[_LOWER] -= 32
    return table[letters]


def insert_columns(characters: UInt8[np.ndarray, "r w"]) -> tuple[Bool[np.ndarray, " w"], Bool[np.ndarray, " w"]]:
    """Which columns have a capital letter or '-', and which a small letter or '.' (a2m writes one kind per column)."""
    kind = UPPER_CASE[characters]
    return (kind == _COLUMN).any(axis=0), ((kind == _INSERTED) | (kind == _NOTHING)).any(axis=0)
