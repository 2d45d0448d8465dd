"""Contacts of a structure, and how many of the best-scored pairs are contacts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int64

from evoattn.errors import ConfigError, ShapeError

CUTOFF: Final = 8.0
"""Distance in Angstrom of C-beta atoms (C-alpha of glycine) up to which two residues are in contact, as in CASP."""

RANGES: Final[dict[str, tuple[int, int | None]]] = {"all": (6, None), "short": (6, 11), "medium": (12, 23), "long": (24, None)}
"""Least and largest separation \\|i - j\\| of each range of pairs, as in CASP; None is no limit."""

TOP: Final = {"L": 1, "L/2": 2, "L/5": 5}
"""How many pairs count, as a part of the length of the query."""


@dataclass(frozen=True)
class Precision:
    """Of the best-scored pairs of a range."""

    range: str
    """A name of :data:`RANGES`."""
    top: str
    """A name of :data:`TOP`."""
    pairs: int
    """How many were taken: fewer than asked for where the range has no more resolved pairs."""
    correct: int

    @property
    def value(self) -> float:
        """Contacts over pairs; NaN where there are no pairs."""
        return self.correct / self.pairs if self.pairs else float("nan")


def contact_map(distances: Float[np.ndarray, "n n"], cutoff: float = CUTOFF) -> Bool[np.ndarray, "n n"]:
    """Where a distance in Angstrom is at most `cutoff`; False where it is NaN (not resolved)."""
    return distances <= cutoff


def ranked_pairs(
    scores: Float[np.ndarray, "n n"],
    least: int = 6,
    most: int | None = None,
    allowed: Bool[np.ndarray, "n n"] | None = None,
) -> Int64[np.ndarray, "p 2"]:
    """The pairs i < j of a separation from `least` to `most`, best score first; at a tie by i, then j.

    Args:
        scores: symmetric; only i < j is looked at. allowed: pairs that may be ranked (both residues resolved); None allows all.

    Raises:
        ShapeError: the scores are no square matrix, or `allowed` is of another shape. ConfigError: a score that counts is NaN.
    """
    n = len(scores)
    if scores.shape != (n, n) or (allowed is not None and allowed.shape != (n, n)):
        raise ShapeError(f"scores {scores.shape} and allowed {None if allowed is None else allowed.shape}: both are [N_res, N_res].")
    i, j = np.triu_indices(n, least)
    keep = np.ones(len(i), bool) if most is None else j - i <= most
    keep &= True if allowed is None else allowed[i, j]
    i, j = i[keep], j[keep]
    if np.isnan(scores[i, j]).any():
        raise ConfigError("a score is NaN, so the pairs have no order; scores are finite numbers, larger for likelier contacts.")
    order = np.argsort(-scores[i, j], kind="stable")
    return np.stack([i[order], j[order]], axis=1).astype(np.int64)


def contact_precision(
    scores: Float[np.ndarray, "n n"],
    distances: Float[np.ndarray, "n n"],
    *,
    ranges: Sequence[str] = ("all", "medium", "long"),
    top: Sequence[str] = ("L", "L/2", "L/5"),
    cutoff: float = CUTOFF,
) -> list[Precision]:
    """The fraction of contacts among the L, L/2 and L/5 best-scored pairs of each range, L being the length of the query.

    Pairs whose distance is NaN (not resolved) are left out of the ranking. Parts of L are rounded down, and at least 1.

    Args:
        scores: [N_res, N_res], larger for likelier contacts. distances: in Angstrom, NaN where not resolved.
        ranges: names of :data:`RANGES`. top: names of :data:`TOP`. cutoff: of a contact, in Angstrom.

    Raises:
        ConfigError: an unknown name. ShapeError: the two are not of one square shape.
    """
    for what, asked, known in (("ranges", ranges, RANGES), ("top", top, TOP)):
        if unknown := [name for name in asked if name not in known]:
            raise ConfigError(f"contact_precision: {what} has {unknown[0]!r}; allowed are {', '.join(known)}.")
    found = []
    for name in ranges:
        pairs = ranked_pairs(scores, *RANGES[name], allowed=~np.isnan(distances))
        hits = contact_map(distances, cutoff)[pairs[:, 0], pairs[:, 1]]
        for part in top:
            taken = hits[: max(1, len(scores) // TOP[part])]
            found.append(Precision(name, part, len(taken), int(taken.sum())))
    return found
