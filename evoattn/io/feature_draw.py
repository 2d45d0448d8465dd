"""The random choices behind the features of an alignment, as a value: to be looked at, kept, and handed in again."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from evoattn.errors import ConfigError
from evoattn.io.feature_config import FeatureConfig, MSAMasking
from evoattn.io.msa import MSA
from evoattn.io.residues import MASKED, N_CODES

_N_AMINO_ACIDS = 20
# "np.random.Generator" in quotes: numpy loads numpy.random at first use, and an import of evoattn is none.


@dataclass(frozen=True, eq=False)
class FeatureDraw:
    """Which rows become what, and what stands in the hidden cells.

    Raises ConfigError if the parts do not fit each other.
    """

    centres: Int64[np.ndarray, " s"]
    """Rows of the alignment that are cluster centres, the query first."""
    extra: Int64[np.ndarray, " e"]
    """Rows of the alignment that are extra rows."""
    hidden: Bool[np.ndarray, "s n"]
    """Cells of the centres that are chosen to be hidden, also those that then stay the same."""
    tokens: UInt8[np.ndarray, "s n"]
    """What the centres hold after that: codes of :mod:`evoattn.io.residues`, 22 being the mask token."""

    def __post_init__(self) -> None:
        if self.hidden.shape != self.tokens.shape or self.hidden.shape[:1] != self.centres.shape:
            raise ConfigError(
                f"FeatureDraw: {len(self.centres)} centres, hidden of shape {self.hidden.shape} and tokens of shape {self.tokens.shape}; "
                "both need one row per centre and one column per residue."
            )
        if len(self.centres) == 0 or self.centres[0] != 0:
            raise ConfigError("FeatureDraw: the first of the centres is not row 0; the query is always centre 0.")
        rows = np.concatenate([self.centres, self.extra])
        if len(np.unique(rows)) < len(rows):
            raise ConfigError("FeatureDraw: a row occurs twice among centres and extra; each row has one place.")
        if self.tokens.max() >= N_CODES:
            raise ConfigError(f"FeatureDraw: tokens hold the code {self.tokens.max()}; allowed are 0..{N_CODES - 1}.")


def draw_rows(
    candidates: Int64[np.ndarray, " r"], config: FeatureConfig, rng: "np.random.Generator"
) -> tuple[Int64[np.ndarray, " s"], Int64[np.ndarray, " e"]]:
    """Return the rows that are centres and those that are extra rows; `candidates` holds the rows there are, the query first."""
    others = candidates[1:]
    if config.sampling == "random":
        others = rng.permutation(others)
    rows = np.concatenate([candidates[:1], others])
    return rows[: config.max_seqs], rows[config.max_seqs : config.max_seqs + config.max_extra]


def draw_masking(
    msa: MSA, candidates: Int64[np.ndarray, " r"], centres: Int64[np.ndarray, " s"], masking: MSAMasking | None, rng: "np.random.Generator"
) -> tuple[Bool[np.ndarray, "s n"], UInt8[np.ndarray, "s n"]]:
    """Return the cells that are hidden and the tokens that result; without `masking`, none and the residues as they are."""
    tokens = msa.residues[centres]
    if masking is None:
        return np.zeros(tokens.shape, dtype=bool), tokens
    hidden = rng.random(tokens.shape) < masking.fraction
    chosen, columns = tokens[hidden], np.nonzero(hidden)[1]
    shares = [masking.uniform, masking.profile, masking.same]
    fate = rng.choice(4, size=len(chosen), p=[*shares, 1 - sum(shares)])
    uniform = rng.integers(_N_AMINO_ACIDS, size=len(chosen))
    # A residue drawn from the profile of a column is the residue of a row drawn uniformly.
    from_profile = msa.residues[rng.choice(candidates, size=len(chosen)), columns]
    tokens[hidden] = np.select([fate == 0, fate == 1, fate == 2], [uniform, from_profile, chosen], default=MASKED)
    return hidden, tokens
