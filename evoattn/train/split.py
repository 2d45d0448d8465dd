"""Which rows of one alignment are held out: none of them like a row that is trained on."""

import numpy as np
from jaxtyping import Int64

from evoattn.errors import ConfigError
from evoattn.io import MSA
from evoattn.io.identity import PackedRows
from evoattn.io.residues import GAP


def hold_out_rows(
    msa: MSA, *, fraction: float = 0.05, identity: float = 0.62, seed: int = 0
) -> tuple[Int64[np.ndarray, " t"], Int64[np.ndarray, " h"]]:
    """Split an alignment into rows to train on, the query among them, and held-out rows that are all below `identity` to each of those.

    Rows alike are everywhere in an alignment, so that a random split tests memory. Here rows are drawn among those unlike the query until
    `fraction` of all is held out; then every other row that is too like one of them is left out of both parts. Identity is over the
    columns in which neither row has a gap.

    Returns:
        The numbers of the rows to train on, and of those held out, for :meth:`evoattn.MSA.take`.

    Raises:
        ConfigError: `fraction` or `identity` is not between 0 and 1; or no row is unlike the query.
    """
    for name, value in (("fraction", fraction), ("identity", identity)):
        if not 0 < value < 1:
            raise ConfigError(f"hold_out_rows: {name} is {value}; it must be between 0 and 1.")
    rows = PackedRows.of(msa.residues, GAP, "shared")
    candidates = np.flatnonzero(rows.identity(0) < identity)
    if not len(candidates):
        raise ConfigError(
            f"hold_out_rows: each of the {msa.n_seq} rows has an identity of {identity:g} or more to the query, which is always trained "
            "on. Raise the identity, or take a more diverse alignment."
        )
    drawn = np.random.default_rng(seed).permutation(candidates)
    held = np.sort(drawn[: max(1, round(fraction * msa.n_seq))])
    unlike = np.ones(msa.n_seq, dtype=bool)
    for row in held.tolist():
        unlike &= rows.identity(row) < identity
    return np.flatnonzero(unlike), held
