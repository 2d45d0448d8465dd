"""The picture of an alignment: every row over the residues, coloured by its identity to the query, and the identities by themselves."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from evoattn.io import MSA, MSAStatistics
from evoattn.io.residues import GAP
from evoattn.runs.figure import BLUE, GREY, PAIR_MAP, whole_residues

ROWS_SHOWN: Final = 2000
"""More would be thinner than a dot of the picture: so many are drawn, evenly out of all."""


def draw_alignment(path: Path, msa: MSA, found: MSAStatistics) -> None:
    """Write the picture as a PNG. Needs matplotlib (the extra ``viz``)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left"}):
        figure = Figure(figsize=(14, 6.5), layout="constrained")
        name = msa.names[0] if len(msa.names[0]) <= 40 else msa.names[0][:37] + "..."
        name = name or "without a name"
        title = f"{Path(msa.source).name}, query {name}: {msa.n_seq:,} rows × {msa.n_res:,} columns, "
        figure.suptitle(title + f"Neff {found.neff:,.0f}, Neff/L {found.neff_per_residue:.2f}", x=0.01, ha="left", parse_math=False)
        rows, identities = figure.subplots(1, 2, width_ratios=[3, 1])
        image = _rows(rows, msa, found)
        figure.colorbar(image, ax=rows, label="identity to the query", pad=0.02, fraction=0.04)
        _identities(identities, found)
        figure.savefig(path, dpi=150, format="png")


def _rows(axes: Any, msa: MSA, found: MSAStatistics) -> Any:
    """Rows by falling identity, white where they have gaps; over them the number of rows with a residue in each column."""
    order = np.argsort(-found.query_identity, kind="stable")
    shown = order[np.linspace(0, msa.n_seq - 1, min(msa.n_seq, ROWS_SHOWN)).round().astype(int)]
    colours = np.where(msa.residues[shown] == GAP, np.nan, found.query_identity[shown, None])
    extent = (0.5, msa.n_res + 0.5, msa.n_seq, 0)
    image = axes.imshow(colours, aspect="auto", cmap=PAIR_MAP, vmin=0, vmax=1, interpolation="nearest", extent=extent)
    columns = np.arange(1, msa.n_res + 1)
    axes.step(columns, found.coverage * msa.n_seq, where="mid", color="white", linewidth=3)
    axes.step(columns, found.coverage * msa.n_seq, where="mid", color="black", linewidth=1.3)
    for end in np.cumsum(msa.chain_lengths)[:-1]:
        axes.axvline(end + 0.5, color=GREY, linestyle="--", linewidth=1)
    axes.set_ylim(0, msa.n_seq * 1.02)
    axes.set_title("Rows by identity to the query (colour; white: gaps), and coverage (line)")
    axes.set_xlabel("column (residue of the query)")
    axes.set_ylabel("rows")
    whole_residues(axes, msa.n_res)
    coverage = axes.secondary_yaxis("right", functions=(lambda x: x / msa.n_seq, lambda x: x * msa.n_seq))
    coverage.set_ylabel("coverage (fraction of the rows)")
    return image


def _identities(axes: Any, found: MSAStatistics) -> None:
    axes.hist(found.query_identity[1:], bins=np.linspace(0, 1, 41), color=BLUE)
    if len(found.query_identity) > 1:
        median = float(np.median(found.query_identity[1:]))
        axes.axvline(median, color="black", linestyle="--", linewidth=1.3, label=f"median {100 * median:.0f} %")
        axes.legend(fontsize=9)
    axes.set_title("Identity to the query")
    axes.set_xlabel("equal residues / residues of the row")
    axes.set_ylabel("rows")
    axes.set_xlim(0, 1)
