"""The picture of a contact map: all scores, and the best pairs over the contacts of the structure."""

from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float64

from evoattn.runs.figure import BLUE, CONTACT_MAP, GREY, ORANGE, whole_residues
from evoattn.train.contacts import CUTOFF, RANGES, Precision, contact_map, ranked_pairs
from evoattn.train.structure import QueryStructure

PURPLE: Final = "#CC79A7"  # of Okabe and Ito, as the others
LIGHT: Final = "#C9C9C9"
SAND: Final = "#F2E9D8"
PANEL: Final = 6.2 * 72
"""Points across a panel, which the size of a residue follows from."""


def draw_contact_map(
    path: Path, scores: Float64[np.ndarray, "n n"], structure: QueryStructure | None, precision: list[Precision], title: str
) -> None:
    """Write the picture as a PNG. Needs matplotlib (the extra ``viz``)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left"}):
        figure = Figure(figsize=(15, 7.9), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=13, parse_math=False)
        left, right = figure.subplots(1, 2)
        _all_scores(figure, left, scores)
        _best_pairs(right, scores, structure, precision)
        figure.savefig(path, dpi=130, format="png")


def _all_scores(figure: Any, axes: Any, scores: Float64[np.ndarray, "n n"]) -> None:
    n = len(scores)
    near = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) < RANGES["all"][0]
    far = scores[~near]
    top = float(np.sort(far)[-max(1, min(2 * n, len(far)))])  # as many as the best pairs, both triangles: colours end there
    extent = (0.5, n + 0.5, n + 0.5, 0.5)
    shown = np.ma.masked_where(near, scores)
    image = axes.imshow(shown, cmap=CONTACT_MAP, vmin=0.0, vmax=max(top, 1e-12), interpolation="nearest", extent=extent)
    figure.colorbar(image, ax=axes, label="score (Frobenius norm of the coupling, APC)", extend="both", pad=0.02, fraction=0.046)
    axes.set_title(f"Scores of all pairs with |i − j| ≥ {RANGES['all'][0]}")
    _residue_axes(axes, n)


def _best_pairs(axes: Any, scores: Float64[np.ndarray, "n n"], structure: QueryStructure | None, precision: list[Precision]) -> None:
    """The best N_res pairs on both sides of the diagonal: by themselves, or over the contacts of the structure."""
    n = len(scores)
    axes.set_aspect("equal")
    axes.set_xlim(0.5, n + 0.5)
    axes.set_ylim(n + 0.5, 0.5)
    _residue_axes(axes, n)
    mark = (PANEL / n) ** 2  # the area in points of one residue by one residue
    resolved = None if structure is None else ~np.isnan(structure.distances)
    pairs = ranked_pairs(scores, RANGES["all"][0], allowed=resolved)[:n]
    if structure is None:
        axes.scatter(*_both(pairs), s=1.2 * mark, marker="s", color=BLUE, linewidths=0, label=f"the {len(pairs)} best-scored pairs (top L)")
        axes.set_title("Best-scored pairs")
    else:
        _over_structure(axes, structure, pairs, mark)
        axes.set_title(_precision_title(precision), fontsize=11)
    axes.plot([0.5, n + 0.5], [0.5, n + 0.5], color=GREY, linewidth=0.8)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, fontsize=10, frameon=False, markerscale=max(1.0, 6 / mark**0.5))


def _over_structure(axes: Any, structure: QueryStructure, pairs: np.ndarray, mark: float) -> None:
    true = contact_map(structure.distances)
    contact = true[pairs[:, 0], pairs[:, 1]]
    across = structure.distances_across[pairs[:, 0], pairs[:, 1]] <= CUTOFF
    where = np.argwhere(np.triu(true, RANGES["all"][0]))
    label = f"contact of chain {structure.account.chain} (C-beta ≤ {CUTOFF:g} Å): {len(where)}"
    axes.scatter(*_both(where), s=1.2 * mark, marker="s", color=LIGHT, linewidths=0, label=label)
    for number, residue in enumerate(np.flatnonzero(~structure.resolved) + 1):
        axes.axhspan(residue - 0.5, residue + 0.5, color=SAND, linewidth=0, zorder=0, label=None if number else "residue not resolved")
        axes.axvspan(residue - 0.5, residue + 0.5, color=SAND, linewidth=0, zorder=0)
    kinds = (
        ("found, and a contact", contact, BLUE),
        ("found, a contact with another chain only", ~contact & across, PURPLE),
        ("found, no contact", ~contact & ~across, ORANGE),
    )
    for label, chosen, colour in kinds:
        if chosen.any():
            counted = f"{label}: {int(chosen.sum())} of {len(pairs)}"
            axes.scatter(*_both(pairs[chosen]), s=2.0 * mark, marker="o", color=colour, linewidths=0, label=counted)


def _both(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The places of the pairs, from 1, on both sides of the diagonal."""
    return np.concatenate([pairs[:, 1], pairs[:, 0]]) + 1, np.concatenate([pairs[:, 0], pairs[:, 1]]) + 1


def _precision_title(precision: list[Precision]) -> str:
    of_all = {one.top: one.value for one in precision if one.range == "all"}
    values = ", ".join(f"{value:.2f} (top {top})" for top, value in of_all.items())
    return f"Best-scored pairs over the contacts of the structure\nprecision: {values}"


def _residue_axes(axes: Any, n: int) -> None:
    axes.set_xlabel("residue j of the query")
    axes.set_ylabel("residue i of the query")
    whole_residues(axes, n)
    whole_residues(axes, n, axis="y")
