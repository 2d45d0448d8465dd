"""AlphaFold 2's features once more, slowly: loops over rows and columns, written from its supplement (1.2.7, 1.2.9, table 1).

Nothing here comes from evoattn: the file is read, the letters are numbered and the averages are taken again, in float64.
"""

import gzip
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

LETTERS = "ARNDCQEGHILKMFPSTWYVX-"
NUMBER = {**{letter: i for i, letter in enumerate(LETTERS)}, "B": 3, "Z": 6, "U": 4, "J": 20, "O": 20}
UNKNOWN, GAP, MASK = 20, 21, 22


@cache
def read_a3m(path: Path) -> tuple[list[list[int]], list[list[int]]]:
    """The codes of each row, and the numbers of lower-case letters left of each column."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    codes, deletions = [], []
    for record in text.split(">")[1:]:
        row, counts, inserted = [], [], 0
        for letter in "".join(record.split("\n")[1:]):
            if letter.islower():
                inserted += 1
            else:
                row.append(NUMBER[letter])
                counts.append(inserted)
                inserted = 0
        codes.append(row)
        deletions.append(counts)
    return codes, deletions


def squash(d: float) -> float:
    return 2 / math.pi * math.atan(d / 3)


def clusters(rows: Sequence[Sequence[int]], centres: Sequence[Sequence[int]], multimer: bool) -> list[list[tuple[int, float]]]:
    """For each row, the centres it belongs to and how much."""
    as_sets = [{(n, code) for n, code in enumerate(centre) if code not in (GAP, MASK)} for centre in centres]
    result = []
    for row in rows:
        own = {(n, code) for n, code in enumerate(row) if code not in (GAP, MASK)}
        agreement = [len(own & centre) for centre in as_sets]
        best = max(agreement)
        if not multimer:
            result.append([(agreement.index(best), 1.0)])
            continue
        exponentials = [math.exp(1000.0 * (value - best)) for value in agreement]
        total = sum(exponentials)
        result.append([(s, value / total) for s, value in enumerate(exponentials) if value > 0])
    return result


def one_hot(code: int, size: int) -> list[float]:
    return [float(code == i) for i in range(size)]


def row_features(codes: Sequence[Sequence[int]], deletions: Sequence[Sequence[int]]) -> np.ndarray:
    """[rows, N_res, 25]"""
    cells = [
        [[*one_hot(code, 23), float(d > 0), squash(d)] for code, d in zip(row, own, strict=True)]
        for row, own in zip(codes, deletions, strict=True)
    ]
    return np.array(cells)


def msa_feat(
    codes: Sequence[Sequence[int]],
    deletions: Sequence[Sequence[int]],
    centres: Sequence[int],
    others: Sequence[int],
    tokens: Sequence[Sequence[int]],
    *,
    multimer: bool = False,
    epsilon: float = 0.0,
) -> np.ndarray:
    """[N_clust, N_res, 49] of the centres, which hold `tokens` after masking; `others` are all rows that are no centre."""
    sizes = [1.0] * len(centres)
    counts = [[one_hot(code, 23) for code in row] for row in tokens]
    total = [[float(d) for d in deletions[row]] for row in centres]
    for row, memberships in zip(others, clusters([codes[row] for row in others], tokens, multimer), strict=True):
        for s, weight in memberships:
            sizes[s] += weight
            for n, code in enumerate(codes[row]):
                counts[s][n][code] += weight
                total[s][n] += weight * deletions[row][n]
    cluster_features = [
        [[*(count / (size + epsilon) for count in own), squash(d / (size + epsilon))] for own, d in zip(counts[s], total[s], strict=True)]
        for s, size in enumerate(sizes)
    ]
    return np.concatenate([row_features(tokens, [deletions[row] for row in centres]), np.array(cluster_features)], axis=-1)


def target_feat(query: Sequence[int], multimer: bool) -> np.ndarray:
    first = 0 if multimer else 1
    out = np.zeros((len(query), first + 21))
    for n, code in enumerate(query):
        out[n, first + code] = 1
    return out


def first_of_equals(codes: Sequence[Sequence[int]]) -> list[int]:
    seen = set()
    rows = []
    for i, row in enumerate(codes):
        if tuple(row) not in seen:
            seen.add(tuple(row))
            rows.append(i)
    return rows
