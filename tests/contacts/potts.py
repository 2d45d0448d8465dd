"""Families drawn from a Potts model, whose contacts are known."""

import numpy as np

from evoattn.io import MSA
from tests.io.alignments import alignment

LETTERS = np.array(list("ARNDCQEGHILKMFPSTWYV-"))
CONTACTS = [(0, 9), (1, 8), (2, 14), (3, 20), (4, 12), (5, 17), (6, 22), (7, 15), (10, 18), (11, 23), (13, 21), (16, 23)]
N_RES = 24


def planted_family(n_seq: int = 1500, seed: int = 0, permuted: bool = False) -> MSA:
    """Gibbs samples of couplings N(0, 2.5^2) on CONTACTS alone, 5 % of the residues gaps; `permuted` shuffles each column by itself."""
    rng = np.random.default_rng(seed)
    couplings = {pair: 2.5 * rng.standard_normal((20, 20)) for pair in CONTACTS}
    partners: dict[int, list[tuple[int, np.ndarray]]] = {i: [] for i in range(N_RES)}
    for (i, j), matrix in couplings.items():
        partners[i].append((j, matrix.T))
        partners[j].append((i, matrix))
    fields = 0.5 * rng.standard_normal((N_RES, 20))
    rows = rng.integers(0, 20, (n_seq, N_RES))
    for _ in range(15):
        for i in range(N_RES):
            energies = fields[i] + sum((matrix[rows[:, j]] for j, matrix in partners[i]), np.zeros((n_seq, 20)))
            rows[:, i] = (energies + rng.gumbel(size=energies.shape)).argmax(1)
    rows[1:][rng.random((n_seq - 1, N_RES)) < 0.05] = 20
    if permuted:
        rows[1:] = rng.permuted(rows[1:], axis=0)
    return alignment(["".join(row) for row in LETTERS[rows]])


def found(scores: np.ndarray) -> int:
    """How many of the planted contacts are among the best-scored pairs of all separations, as many as there are."""
    i, j = np.triu_indices(N_RES, 1)
    best = np.argsort(-scores[i, j], kind="stable")[: len(CONTACTS)]
    return len({(int(i[k]), int(j[k])) for k in best} & set(CONTACTS))
