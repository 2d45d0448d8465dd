"""Fewer rows, on request: filters with hhfilter's meanings, random and diverse subsets. The query stays row 0, file order stays.

Every function returns a new alignment whose account says how many rows went and why.
"""

from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from evoattn.errors import ConfigError
from evoattn.io.identity import PackedRows
from evoattn.io.msa import MSA
from evoattn.io.residues import GAP, UNKNOWN

_UNKNOWN_NUCLEOTIDE = 30
_SLACK = 1e-4  # hhfilter's: an identity counts as above a bound only if it is so by more than rounding
_HALF_WINDOW = 25  # columns to either side in which hhfilter's -diff looks for enough rows
_DIFF_START = 20  # percent: the identity bound at which hhfilter's -diff starts


def filter_rows(
    msa: MSA,
    *,
    min_coverage: float | None = None,
    min_query_identity: float | None = None,
    max_gaps: float | None = None,
    max_identity: float | None = None,
    diff: int | None = None,
    max_rows: int | None = None,
) -> MSA:
    """Keep the rows that pass every bound that is given. All bounds but `diff` and `max_rows` are fractions.

    The meanings are those of HH-suite's ``hhfilter``, whose options take percent. As there, ``X`` is no residue.

    Args:
        min_coverage: ``-cov``. Residues of the row / N_res is at least this.
        min_query_identity: ``-qid``. Residues of the row that equal the query's / residues of the row is above this.
        max_gaps: gaps of the row / N_res is at most this; here ``X`` is no gap.
        max_identity: ``-id``. No two rows have an identity above this, taken over the columns in which both have a
            residue. Rows are taken by their number of residues, longest first, in file order among equals; each is kept
            unless a row kept before is too similar. The query comes first of all.
        diff: ``-diff``. Rather than at `max_identity` the filter above starts at 0.2, and is loosened, up to `max_identity`
            (1 if that is None), until so many rows stand within 25 columns of every column. Where there are enough diverse
            rows, similar ones are left out.
        max_rows: of those left, the query and the next ones in file order.

    hhfilter takes rows of equal length in an order of its sorting algorithm; hence its choice among them may differ.

    Raises:
        ConfigError: a bound outside what is allowed.
    """
    _check_bounds(min_coverage, min_query_identity, max_gaps, max_identity, diff, max_rows)
    n_rows = msa.n_seq  # of the whole alignment: hhfilter ignores a diff that is no smaller
    if min_coverage is not None:
        kept = _is_residue(msa).sum(axis=1) >= min_coverage * msa.n_res
        msa = _keep(msa, kept, f"residues / N_res below {min_coverage:g} (min_coverage)")
    if min_query_identity is not None:
        reason = f"identity to the query not above {min_query_identity:g} (min_query_identity)"
        msa = _keep(msa, _above_query_identity(msa, min_query_identity), reason)
    if max_gaps is not None:
        kept = (msa.residues == GAP).sum(axis=1) <= max_gaps * msa.n_res
        msa = _keep(msa, kept, f"gaps / N_res above {max_gaps:g} (max_gaps)")
    if diff is not None and diff < n_rows:
        bound = 1.0 if max_identity is None else max_identity
        reason = f"similar rows, {diff} diverse ones at every column kept (diff, max_identity {bound:g})"
        msa = _keep(msa, _most_different(msa, diff, bound), reason)
    elif max_identity is not None:
        msa = _keep(msa, _representatives(msa, max_identity), f"identity above {max_identity:g} to a row kept (max_identity)")
    if max_rows is not None:
        msa = _keep(msa, np.arange(msa.n_seq) < max_rows, f"after the first {max_rows} in file order (max_rows)")
    return msa


def drop_repeats(msa: MSA) -> MSA:
    """Keep the first of rows that are equal in every column, insertions aside, as AlphaFold 2's data pipeline does."""
    return _keep(msa, first_occurrences(msa.residues), "repeats an earlier row, insertions aside (drop_repeats)")


def subsample(msa: MSA, n_rows: int, *, method: Literal["random", "diverse"] = "random", seed: int = 0) -> MSA:
    """Keep `n_rows` rows, the query among them; all of them if there are no more.

    Args:
        method: "random" draws the others without replacement, each equally likely. "diverse" starts from the query and
            adds, one by one, the row with the highest mean Hamming distance (over all columns, a gap being a symbol like
            any other) to those already taken, the first of equals (Rao et al., MSA Transformer, 2021); nothing is random.
        seed: of the random draw; the same seed gives the same rows.

    Raises:
        ConfigError: `n_rows` is below 1, `seed` is negative, or there is no such method.
    """
    if n_rows < 1:
        raise ConfigError(f"subsample: n_rows is {n_rows}; at least 1 row, the query, is kept.")
    if method not in ("random", "diverse"):
        raise ConfigError(f"subsample: method is {method!r}; allowed are 'random' and 'diverse'.")
    if seed < 0:
        raise ConfigError(f"subsample: seed is {seed}; it is 0 or more.")
    if n_rows >= msa.n_seq:
        return msa
    if method == "random":
        chosen = np.random.default_rng(seed).permutation(np.arange(1, msa.n_seq))[: n_rows - 1].tolist()
        reason = f"not among {n_rows} rows drawn at random (seed {seed})"
    else:
        chosen = _most_distant(msa, n_rows)
        reason = f"not among the {n_rows} most diverse rows"
    kept = np.zeros(msa.n_seq, dtype=bool)
    kept[[0, *chosen]] = True
    return _keep(msa, kept, reason)


def first_occurrences(residues: UInt8[np.ndarray, "s n"]) -> Bool[np.ndarray, " s"]:
    """True for each row that equals no earlier one."""
    first = {row.tobytes(): i for i, row in reversed(list(enumerate(residues)))}
    is_first = np.zeros(len(residues), dtype=bool)
    is_first[list(first.values())] = True
    return is_first


def _check_bounds(
    min_coverage: float | None,
    min_query_identity: float | None,
    max_gaps: float | None,
    max_identity: float | None,
    diff: int | None,
    max_rows: int | None,
) -> None:
    fractions = {"min_coverage": min_coverage, "min_query_identity": min_query_identity, "max_gaps": max_gaps, "max_identity": max_identity}
    for name, value in fractions.items():
        if value is not None and not 0 <= value <= 1:
            raise ConfigError(f"filter_rows: {name} is {value}; it is a fraction between 0 and 1, e.g. 0.9 for 90 %.")
    for name, number in {"diff": diff, "max_rows": max_rows}.items():
        if number is not None and number < 1:
            raise ConfigError(f"filter_rows: {name} is {number}; it is a number of rows, at least 1, or None for no such bound.")
    if diff is not None and max_identity is not None and 100 * max_identity < _DIFF_START:
        raise ConfigError(
            f"filter_rows: max_identity is {max_identity}; with diff it is at least {_DIFF_START / 100}, where the search starts."
        )


def _keep(msa: MSA, kept: Bool[np.ndarray, " s"], reason: str) -> MSA:
    kept[0] = True  # whatever the bound says of the query
    return msa if kept.all() else msa.take(kept, reason=reason)


def _is_residue(msa: MSA) -> Bool[np.ndarray, "s n"]:
    """Neither a gap nor unknown (``X`` of a protein, ``N`` of a nucleic acid)."""
    return ~np.isin(msa.residues, [GAP, UNKNOWN, _UNKNOWN_NUCLEOTIDE])


def _above_query_identity(msa: MSA, bound: float) -> Bool[np.ndarray, " s"]:
    is_residue = _is_residue(msa)
    different = (is_residue & (msa.residues != msa.residues[0])).sum(axis=1)
    return different < (1 - _SLACK - bound) * is_residue.sum(axis=1)


def _representatives(msa: MSA, max_identity: float) -> Bool[np.ndarray, " s"]:
    order = _longest_first(msa)
    rows = PackedRows(msa.residues[order], _is_residue(msa)[order])
    kept = np.zeros(msa.n_seq, dtype=bool)
    blocked = np.zeros(len(order), dtype=bool)
    for position, row in enumerate(order):
        if not blocked[position]:
            kept[row] = True
            blocked[position:] |= rows.identity(position, position) >= max_identity + _SLACK
    return kept


def _most_different(msa: MSA, diff: int, max_identity: float) -> Bool[np.ndarray, " s"]:
    """The filter above under a bound that differs from column to column, and rises where rows are too few."""
    order = _longest_first(msa)
    is_residue = _is_residue(msa)[order]
    rows = PackedRows(msa.residues[order], is_residue)
    first, last = is_residue.argmax(axis=1), msa.n_res - 1 - is_residue[:, ::-1].argmax(axis=1)
    closest = np.zeros(len(order))  # highest identity to a kept row that is longer
    kept = np.zeros(len(order), dtype=bool)
    depth = np.zeros(msa.n_res, dtype=np.int64)  # kept rows that span each column
    deepest = np.zeros(msa.n_res, dtype=np.int64)  # and the most of those within a window
    bound = np.full(msa.n_res, _DIFF_START)  # percent

    def keep(position: int) -> None:
        kept[position] = True
        depth[first[position] : last[position] + 1] += 1
        closest[position:] = np.maximum(closest[position:], rows.identity(position, position))

    keep(0)
    percent, step, missing = _DIFF_START, 0, diff
    while percent <= round(100 * max_identity):
        deepest = np.maximum(deepest, _window_maximum(depth))
        if (deepest >= diff).all():
            break
        bound[deepest < diff] = percent
        for position in np.flatnonzero(~kept).tolist():
            own = bound[first[position] : last[position] + 1].max()
            if percent >= 100 or closest[position] < own / 100 + _SLACK:
                keep(position)
        before, missing = missing, diff - int(deepest.min())
        step = max(1, min(5, missing // (before - missing + 1) * step // 2))  # smaller as the goal comes near
        percent += step
    result = np.zeros(msa.n_seq, dtype=bool)
    result[order[kept]] = True
    return result


def _longest_first(msa: MSA) -> Int64[np.ndarray, " r"]:
    """The query, then the other rows that have a residue, by falling number of them and in file order among equals."""
    lengths = _is_residue(msa).sum(axis=1)
    lengths[0] = msa.n_res + 1
    order = np.argsort(-lengths, kind="stable")
    return order[lengths[order] > 0]


def _window_maximum(depth: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"]:
    """The maximum within 25 columns of each; near an end, within the first or the last 50 columns."""
    n_res = len(depth)
    windows = [
        slice(max(0, min(n_res - 2 * _HALF_WINDOW, i - _HALF_WINDOW)), min(n_res, max(2 * _HALF_WINDOW, i + _HALF_WINDOW + 1)))
        for i in range(n_res)
    ]
    return np.array([depth[window].max() for window in windows])


def _most_distant(msa: MSA, n_rows: int) -> list[int]:
    rows = PackedRows.of(msa.residues, GAP, "all")
    total = np.zeros(msa.n_seq, dtype=np.int64)
    chosen = [0]
    while len(chosen) < n_rows:
        total += msa.n_res - rows.compare(chosen[-1])[0]
        total[chosen] = -1
        chosen.append(int(total.argmax()))
    return chosen
