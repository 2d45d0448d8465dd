"""The table and the arrays of a contact map."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from evoattn.train.contacts import CUTOFF, RANGES, ranked_pairs
from evoattn.train.structure import QueryStructure

COLUMNS = ("rank", "i", "j", "letter_i", "letter_j", "separation", "score")
OF_STRUCTURE = ("number_i", "number_j", "distance", "contact", "distance_across_chains", "contact_across_chains")


def write_table(path: Path, query: str, scores: Float64[np.ndarray, "n n"], structure: QueryStructure | None) -> None:
    """Write every pair with \\|i - j\\| >= 6, best score first; residues from 1, distances in Angstrom, "" for what is not known."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS if structure is None else COLUMNS + OF_STRUCTURE)
        for rank, (i, j) in enumerate(ranked_pairs(scores, RANGES["all"][0]).tolist(), 1):
            row = [rank, i + 1, j + 1, query[i], query[j], j - i, f"{scores[i, j]:.6g}"]
            writer.writerow(row if structure is None else row + _of_structure(structure, i, j))


def write_arrays(path: Path, query: str, scores: Float64[np.ndarray, "n n"], structure: QueryStructure | None) -> None:
    """Write ``scores`` [N_res, N_res] and ``query``; with a structure also its distances in Angstrom and the author's residue numbers."""
    arrays: dict[str, Any] = {"scores": scores, "query": np.array(query)}
    if structure is not None:
        arrays |= {"distances": structure.distances, "distances_across_chains": structure.distances_across}
        arrays["residue_numbers"] = np.array(structure.numbers)
    np.savez(path, **arrays)


def _of_structure(structure: QueryStructure, i: int, j: int) -> list[str]:
    numbers = [structure.numbers[i], structure.numbers[j]]
    within, across = structure.distances[i, j], structure.distances_across[i, j]
    return [*numbers, *_distance(float(within)), *_distance(float(across))]


def _distance(distance: float) -> list[str]:
    """The distance and whether it is a contact; nothing where it is not resolved, or there is no other chain."""
    return [f"{distance:.2f}", str(int(distance <= CUTOFF))] if np.isfinite(distance) else ["", ""]
