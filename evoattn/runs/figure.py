"""The picture of a run: coverage, pair representation, single representation and attention maps, with residues numbered from 1."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from evoattn.io import MSA
from evoattn.io.residues import GAP
from evoattn.model import Representations

PAIR_MAP, ATTENTION_MAP, CONTACT_MAP = "viridis", "magma", "Blues"  # even in lightness, so they read in grey and for colour-blind eyes
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"  # of Okabe and Ito
HEADS_SHOWN: Final = 2


@dataclass(frozen=True)
class Maps:
    """Attention of the last block, [heads, N_res, N_res]: MSA row attention of the query, and triangle attention around `node` (from 0)."""

    block: str
    row: Tensor
    triangle: Tensor
    node: int


@dataclass(frozen=True)
class Report:
    """What is drawn. `seed` is that of random parameters, None for loaded ones."""

    msa: MSA
    kept: MSA
    out: Representations
    maps: Maps
    title: str
    seed: int | None


def draw(folder: Path, report: Report) -> Path:
    """Write the picture as ``report.png``, and return its path. Needs matplotlib (the extra ``viz``)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 11, "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left"}):
        figure = Figure(figsize=(16, 9), layout="constrained")
        head, body = figure.subfigures(2, 1, height_ratios=[0.06, 1], squeeze=False)[:, 0]
        along, maps = body.subfigures(1, 2, width_ratios=[1, 1.25], wspace=0.04, squeeze=False)[0]
        _headline(head, report)
        _along_residues(along, report)
        _attention(maps, report.maps)
        figure.savefig(folder / "report.png", dpi=150)
    return folder / "report.png"


def draw_contacts(folder: Path, contacts: Tensor, title: str) -> Path:
    """Write the map of contacts [N_res, N_res] as ``contacts.png``, and return its path. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 7.5), layout="constrained")
    figure.suptitle(title, fontsize=9, parse_math=False)
    axes = figure.subplots()
    image = _heat(axes, contacts.detach().double().cpu().numpy(), CONTACT_MAP, 0.0, 1.0, aspect="equal")
    whole_residues(axes, len(contacts))
    _colour_bar(figure, axes, image, "probability of C-beta atoms within 8 Å", extend="neither")
    axes.set_title("Contacts", fontweight="bold", loc="left")
    axes.set_xlabel("residue j")
    axes.set_ylabel("residue i")
    figure.savefig(folder / "contacts.png", dpi=150)
    return folder / "contacts.png"


def focused_heads(maps: Tensor, count: int = HEADS_SHOWN) -> list[int]:
    """The heads whose attention, averaged over the queries, has the lowest entropy: those that look at the fewest positions."""
    entropy = torch.special.entr(maps.double()).sum(-1).mean(-1)
    return sorted(entropy.argsort(stable=True)[:count].tolist())


def _headline(figure: Any, report: Report) -> None:
    figure.text(0.01, 0.5, report.title, va="center", fontsize=15, fontweight="bold", parse_math=False)
    if report.seed is not None:
        label = f"random parameters (seed {report.seed}): no biological meaning"
        box = {"facecolor": ORANGE, "edgecolor": "none", "boxstyle": "round,pad=0.35"}
        figure.text(0.99, 0.5, label, ha="right", va="center", color="white", fontsize=12, fontweight="bold", bbox=box)


def _along_residues(figure: Any, report: Report) -> None:
    """Three panels over one residue axis."""
    coverage, pair, single = figure.subplots(3, 1, sharex=True, height_ratios=[1, 3.6, 1])
    n_res = report.msa.n_res
    residues = np.arange(1, n_res + 1)
    _coverage(coverage, report, residues)

    norms = report.out.pair.detach().float().norm(dim=-1).cpu().numpy()
    image = _heat(pair, norms, PAIR_MAP, *_range(norms, 1.0, 99.0), aspect="auto")
    _colour_bar(figure, pair, image, "norm of z_ij", extend="both")
    pair.set_title("Pair representation")
    pair.set_ylabel("residue i")

    single.plot(residues, report.out.single.detach().float().norm(dim=-1).cpu().numpy(), color=BLUE, linewidth=1.3)
    single.set_title("Single representation")
    single.set_ylabel("norm of s_i")
    single.set_xlabel("residue (of the query; j in the pair representation)")
    single.grid(alpha=0.3)
    single.set_xlim(0.5, n_res + 0.5)
    whole_residues(single, n_res)


def _coverage(axes: Any, report: Report, residues: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator

    everything, kept = ((msa.residues < GAP).mean(axis=0) for msa in (report.msa, report.kept))
    axes.fill_between(residues, everything, step="mid", color=BLUE, alpha=0.25, linewidth=0)
    axes.step(residues, everything, where="mid", color=BLUE, linewidth=1.3, label=f"all rows: {report.msa.n_seq:,}")
    if report.kept.n_seq < report.msa.n_seq:
        axes.step(residues, kept, where="mid", color=ORANGE, linewidth=1.3, label=f"rows kept: {report.kept.n_seq:,}")
    axes.set_ylim(0, 1.04)
    axes.set_title("Alignment coverage")
    axes.set_ylabel("rows with a\nresidue (fraction)")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower center", ncols=2, fontsize=9)
    depth = axes.secondary_yaxis("right", functions=(lambda x: x * report.msa.n_seq, lambda x: x / report.msa.n_seq))
    depth.set_ylabel("depth (rows)")
    depth.yaxis.set_major_locator(MaxNLocator(3, integer=True))


def _attention(figure: Any, maps: Maps) -> None:
    """The most focused heads of both kinds, those of one kind on one colour scale."""
    n, node = maps.row.shape[-1], maps.node + 1
    figure.suptitle(f"Attention in the last block ({maps.block}), in the heads that focus most", fontsize=12)
    kinds = (
        (maps.row, "MSA row attention of the query", "residue i", "attends to residue j"),
        (maps.triangle, f"Triangle attention, starting node {node}", f"edge {node} to j", f"attends to edge {node} to k"),
    )
    for panels, (weights, title, ylabel, xlabel) in zip(figure.subplots(2, HEADS_SHOWN, squeeze=False), kinds, strict=True):
        heads = focused_heads(weights)
        relative = weights[heads].double().numpy() * n
        top = max(2.0, _range(relative, 0.0, 99.0)[1])  # even attention, 1, is never the brightest
        for panel, head, values in zip(panels, heads, relative, strict=False):
            image = _heat(panel, values, ATTENTION_MAP, 0.0, top, aspect="equal")
            panel.set_title(f"{title}\nhead {head} (of 0 to {len(weights) - 1})")
            panel.set_xlabel(xlabel)
            panel.set_ylabel(ylabel)
            whole_residues(panel, n)
        _colour_bar(figure, panels[len(heads) - 1], image, f"probability x {n}  (1: even attention)", extend="max")
        for panel in panels[len(heads) :]:
            panel.set_axis_off()


def _range(values: np.ndarray, low: float, high: float) -> tuple[float, float]:
    """Two percentiles of the finite values: colours end there, lest a few extreme values hide all others."""
    finite = values[np.isfinite(values)]
    bottom, top = (float(x) for x in np.percentile(finite, [low, high])) if finite.size else (0.0, 1.0)
    return bottom, max(top, bottom + 1e-12)


def _heat(axes: Any, values: np.ndarray, colours: str, low: float, high: float, *, aspect: str) -> Any:
    """An image with residues from 1 on both axes."""
    n_rows, n_columns = values.shape
    extent = (0.5, n_columns + 0.5, n_rows + 0.5, 0.5)
    whole_residues(axes, n_rows, axis="y")
    return axes.imshow(values, cmap=colours, vmin=low, vmax=high, aspect=aspect, interpolation="nearest", extent=extent)


def _colour_bar(figure: Any, axes: Any, image: Any, label: str, *, extend: str) -> None:
    """Beside the axes and inside their margin, so that panels below each other stay aligned."""
    figure.colorbar(image, cax=axes.inset_axes([1.02, 0.0, 0.03, 1.0]), label=label, extend=extend)


def whole_residues(axes: Any, n: int, axis: str = "x") -> None:
    """Ticks at 1 and at round residue numbers."""
    from matplotlib.ticker import FixedLocator

    step = next(step for step in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 10**9) if n / step <= 8)
    ticks = [1, *(tick for tick in range(step, n + 1, step) if tick > 1)]
    getattr(axes, f"{axis}axis").set_major_locator(FixedLocator(ticks))
