"""The chains of a complex in one alignment: where they stand, which are alike, one by one, and all copies side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int64, Shaped, UInt8

from evoattn.errors import MSAError
from evoattn.io.msa import MSA, Annotation, SparseLetters
from evoattn.io.residues import GAP


@dataclass(frozen=True, eq=False)
class ChainIds:
    """For each column, which chain it is in, as AlphaFold-Multimer tells it (Evans et al. 2021); all count from 1."""

    asym_id: Int64[np.ndarray, " n"]
    """The chain."""
    entity_id: Int64[np.ndarray, " n"]
    """The sequence: equal for chains with equal query residues."""
    sym_id: Int64[np.ndarray, " n"]
    """The chain among those of its entity."""
    residue_index: Int64[np.ndarray, " n"]
    """The residue within its chain, from 0."""


def chain_slices(msa: MSA) -> list[slice]:
    """The columns of each chain; one slice of all columns where the alignment names no chains."""
    ends = np.cumsum(msa.chain_lengths or (msa.n_res,)).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def chain_ids(msa: MSA) -> ChainIds:
    """The chain of each column. Copies count only where they have columns of their own (:func:`expand_copies`)."""
    numbers: dict[bytes, int] = {}
    seen: dict[int, int] = {}
    asym, entity, sym, index = [], [], [], []
    for number, columns in enumerate(chain_slices(msa), 1):
        length = columns.stop - columns.start
        own = numbers.setdefault(msa.residues[0, columns].tobytes(), len(numbers) + 1)
        seen[own] = seen.get(own, 0) + 1
        asym.append(np.full(length, number))
        entity.append(np.full(length, own))
        sym.append(np.full(length, seen[own]))
        index.append(np.arange(length))
    return ChainIds(*(np.concatenate(parts).astype(np.int64) for parts in (asym, entity, sym, index)))


def expand_copies(msa: MSA) -> MSA:
    """Give every copy of a chain columns of its own, copies next to each other; each row has the same residues in all copies.

    So AlphaFold-Multimer treats equal chains. An alignment whose chains occur once comes back as it is. Insertions after the
    last column stay after the last copy only; mark-up of columns is dropped.
    """
    if not any(copies > 1 for copies in msa.chain_copies):
        return msa
    repeated = [columns for columns, copies in zip(chain_slices(msa), msa.chain_copies, strict=True) for _ in range(copies)]
    return replace(
        _arranged(msa, repeated),
        chain_lengths=tuple(columns.stop - columns.start for columns in repeated),
        chain_copies=(1,) * len(repeated),
    )


def split_chains(msa: MSA, *, drop_empty: bool = True) -> list[MSA]:
    """One alignment per chain, in which rows without a residue in it are left out, unless `drop_empty` is False.

    Insertions between two chains go to the second. Mark-up of columns is dropped. With ``drop_empty=False`` row i of each
    alignment is row i of `msa`, and ``join_chains(chains, pairs=pair_rows(chains, by="row"))`` undoes the split.

    Raises:
        MSAError: the query has no residue in a chain.
    """
    lengths, copies = msa.chain_lengths or (msa.n_res,), msa.chain_copies or (1,)
    chains = []
    for number, (columns, length, copied) in enumerate(zip(chain_slices(msa), lengths, copies, strict=True), 1):
        chain = replace(_arranged(msa, [columns]), chain_lengths=(length,), chain_copies=(copied,))
        present = (chain.residues != GAP).any(axis=1)
        if not present[0]:
            where = f"chain {number}, columns {columns.start}..{columns.stop - 1}"
            raise MSAError(f"the query, row 0 ({msa.names[0]!r}), has no residue in {where}.")
        chains.append(chain if present.all() or not drop_empty else chain.take(present, reason="no residue in this chain"))
    return chains


def crop_columns(msa: MSA, columns: slice) -> MSA:
    """The same rows in a stretch of columns, also those rows that have only gaps there. Mark-up of columns is dropped.

    Raises:
        MSAError: there is no such stretch.
    """
    if not 0 <= columns.start < columns.stop <= msa.n_res:
        raise MSAError(f"columns {columns.start}..{columns.stop - 1} were asked for; the alignment has columns 0..{msa.n_res - 1}.")
    return _arranged(msa, [columns])


Letters = tuple[Int64[np.ndarray, "_"], Shaped[np.ndarray, "_"], UInt8[np.ndarray, "_"]]
"""Row, column and letter of each of some letters."""


def letters_at(n_seq: int, parts: Sequence[Letters]) -> SparseLetters:
    """Put (row, column, letter) triples, in any order of the parts, into one store; within a place the order stays."""
    rows, columns, letters = (np.concatenate([part[i] for part in parts]) for i in range(3))
    order = np.lexsort((columns, rows))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n_seq))]).astype(np.int64)
    return SparseLetters(offsets, columns[order].astype(np.int32), letters[order])


def letters_within(letters: SparseLetters, columns: slice, *, end: bool) -> Letters:
    """The letters at the given columns and, with `end`, at the one after them; their columns are counted from the start of the slice."""
    inside = (letters.columns >= columns.start) & (letters.columns < columns.stop + end)
    return letters.rows[inside], letters.columns[inside] - columns.start, letters.letters[inside]


def _arranged(msa: MSA, segments: Sequence[slice]) -> MSA:
    """The alignment of some stretches of columns, one after the other; only the last column of all has trailing insertions."""
    starts = np.cumsum([0, *(columns.stop - columns.start for columns in segments)])
    inserted: list[Letters] = []
    unusual: list[Letters] = []
    for number, (columns, start) in enumerate(zip(segments, starts, strict=False), 1):
        trailing = number == len(segments) and columns.stop == msa.n_res
        for source, target, end in ((msa.insertions, inserted, trailing), (msa.unusual, unusual, False)):
            if source is not None:
                row, column, letter = letters_within(source, columns, end=end)
                target.append((row, column + start, letter))
    return replace(
        msa,
        residues=np.concatenate([msa.residues[:, columns] for columns in segments], axis=1),
        insertions=letters_at(msa.n_seq, inserted),
        unusual=letters_at(msa.n_seq, unusual) if unusual else None,
        annotation=replace(msa.annotation, gc={}, gr={}) if msa.annotation != Annotation() else msa.annotation,
        chain_lengths=(),
        chain_copies=(),
    )
