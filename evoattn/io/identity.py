"""Comparing rows of an alignment: 64 columns at a time, by the bits of their codes."""

from typing import Final, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from evoattn.errors import ConfigError

Columns = Literal["shared", "all"]
"""Over which columns the identity of two rows is taken; see :meth:`PackedRows.identity`."""

_BITS: Final = 5  # enough for 32 codes
_WORDS_AT_ONCE: Final = 50_000  # bounds the temporary arrays to what a processor's cache holds


class PackedRows:
    """The rows of an alignment, packed into 64-bit words: a cell takes 6 bits, and a comparison reads 64 cells at once.

    Args:
        codes: of the residues, each below 32.
        counted: the cells that are compared; a column counts for two rows where it counts in both.
    """

    def __init__(self, codes: UInt8[np.ndarray, "s n"], counted: Bool[np.ndarray, "s n"]) -> None:
        self.n_rows, self.n_columns = codes.shape
        # [bit, word, row]: one row against many others is then a run through memory without a jump.
        self._bits = np.stack([_packed((codes >> bit) & 1) for bit in range(_BITS)])
        self._counted = _packed(counted)

    @classmethod
    def of(cls, codes: UInt8[np.ndarray, "s n"], gap: int, columns: Columns) -> "PackedRows":
        """The rows for :meth:`identity` over `columns`; `gap` is the code of a gap.

        Raises ConfigError if `columns` is neither "shared" nor "all".
        """
        if columns not in ("shared", "all"):
            raise ConfigError(f"columns is {columns!r}; allowed are 'shared' (no gap in either row) and 'all'.")
        return cls(codes, np.ones(codes.shape, dtype=bool) if columns == "all" else codes != gap)

    def compare(self, row: int, start: int = 0) -> tuple[Int64[np.ndarray, " r"], Int64[np.ndarray, " r"]]:
        """For the rows from `start` on: the columns in which they equal `row`, and those that count in both."""
        equal = np.empty(self.n_rows - start, dtype=np.int64)
        both = np.empty_like(equal)
        step = max(1, _WORDS_AT_ONCE // len(self._counted))
        for first in range(start, self.n_rows, step):
            rows = slice(first, first + step)
            here = slice(first - start, first - start + step)
            counted = self._counted[:, rows] & self._counted[:, row, None]
            differ = np.bitwise_or.reduce(self._bits[:, :, rows] ^ self._bits[:, :, row, None], axis=0)
            both[here] = np.bitwise_count(counted).sum(axis=0, dtype=np.int64)
            equal[here] = np.bitwise_count(counted & ~differ).sum(axis=0, dtype=np.int64)
        return equal, both

    def identity(self, row: int, start: int = 0) -> Float64[np.ndarray, " r"]:
        """Equal columns / counted columns of `row` and each row from `start` on; 0 where no column counts in both.

        "shared": columns in which neither row has a gap. "all": all columns; two gaps are equal, a gap and a residue
        are not. ``X``, the unknown residue, equals itself.
        """
        equal, both = self.compare(row, start)
        return equal / np.maximum(both, 1)


def _packed(bits: Bool[np.ndarray, "s n"] | UInt8[np.ndarray, "s n"]) -> np.ndarray:  # uint64 [word, row]
    packed = np.packbits(bits, axis=1)
    words = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    words[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(words.view(np.uint64).T)
