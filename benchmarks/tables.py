"""The tables and figures of docs/benchmarks.md, written from what the benchmarks recorded.

python -m benchmarks.tables
"""

import json
import re
from collections.abc import Callable
from typing import Any

from benchmarks.common import RESULTS, ROOT
from evoattn.files import new_file

PAGE = ROOT / "docs" / "benchmarks.md"
FIGURES = ROOT / "docs" / "figures"
Rows = list[dict[str, Any]]


def duels(rows: Rows) -> str:
    """Ours beside a peer."""
    head = "| case | seconds | peer's | times faster | peak MiB | peer's | of the GEMM limit |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row['case']}{_shaky(row)} | {row['ours_s']:.2f} | {row['theirs_s']:.2f} | {row['faster']:.1f} | {row['ours_peak_mib']:.0f} | "
        f"{row['theirs_peak_mib']:.0f} | {row['of_limit']:.0%} |\n"
        for row in rows
    )


def sizes(rows: Rows) -> str:
    head = "| residues x sequences x products | TFLOP | seconds | of the GEMM limit | (m + z + peak) / (m + 2z) | process, GiB |\n"
    lines = [
        f"| {row['case']}{_shaky(row)} | {row['tflop']:.2f} | {_timed(row)} | {row['of_m_and_2z']:.2f} | {row['total_gib']:.2f} |\n"
        for row in rows
        if "tflop" in row
    ]
    grown = [f"\n{row['case']}: {row['growth']:.2f}.\n" for row in rows if "growth" in row]
    return head + "|---|---|---|---|---|---|\n" + "".join(lines + grown)


def estimates(rows: Rows) -> str:
    head = "| case | sequences x residues | estimated MiB | measured MiB | estimate / measured |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row['case']} | {row['n_seq']} x {row['n_res']} | {row['estimate_mib']} | {row['measured_mib']} | "
        f"{row['estimate / measured']:.2f} |\n"
        for row in rows
    )


def steps(rows: Rows) -> str:
    head = "| blocks, sequences x residues | seconds | peak GiB | process, GiB |\n|---|---|---|---|\n"
    return head + "".join(f"| {row['case']} | {row['seconds']:.0f} | {row['peak_gib']:.1f} | {row['total_gib']:.1f} |\n" for row in rows)


TABLES: dict[str, Callable[[Rows], str]] = {
    "evoformer": duels, "pairformer": duels, "scaling": sizes, "scaling_long": sizes, "deep": steps, "memory": estimates,
}  # fmt: skip


def _timed(row: dict[str, Any]) -> str:
    return f"{row['seconds']:.1f} | {row['of_limit']:.0%}" if "seconds" in row else "not timed | "


def _shaky(row: dict[str, Any]) -> str:
    return "" if row.get("steady", True) else " (unstable: claims nothing)"


def where(rows: Rows) -> str:
    """The machine and day of a run, or of the runs that its parts are from, and its rate."""
    runs = " and ".join(dict.fromkeys(f"{row['date']}, commit {row['commit']}" for row in rows))
    row, rates = rows[0], [row["gemm_gflops"] for row in rows if "gemm_gflops" in row]
    rate = f"; matrix products at {min(rates):.0f} to {max(rates):.0f} GFLOP/s" if rates else ""
    versions = f"Python {row['python']}, torch {row['torch']}"
    return f"{row['cpu']}, {row['threads']} threads; {versions}; {runs}{rate}."


def figure(name: str, rows: Rows) -> None:
    """Bars, one for each case; or time over residues, beside growth like the FLOPs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(figsize=(8, 4 if name == "scaling" else 0.45 * len(rows) + 1.2), layout="constrained")
    if name == "scaling":
        timed = [row for row in rows if "seconds" in row]
        n_res, seconds = [int(row["case"].split("x")[0]) for row in timed], [row["seconds"] for row in timed]
        axes.loglog(n_res, seconds, "o-", color="#4477aa", label="measured")
        axes.loglog(n_res, [seconds[0] * row["tflop"] / timed[0]["tflop"] for row in timed], "--", color="0.4", label="as the FLOPs grow")
        axes.set(xlabel="residues", ylabel="seconds per block")
        axes.set_xticks(n_res, map(str, n_res))
        axes.set_yticks(seconds, [f"{one:.1f}" for one in seconds])
        axes.minorticks_off()
        axes.legend()
    else:
        value, label = ("estimate / measured",) * 2 if name == "memory" else ("faster", "times faster than the peer named")
        colors = ["#4477aa" if row.get("steady", True) else "#bbbbbb" for row in rows]
        bars = axes.barh([row["case"] for row in rows], [row[value] for row in rows], color=colors)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.set_xlim(0, 1.15 * max(row[value] for row in rows))
        axes.axvline(1.0, color="0.3", linewidth=1)
        axes.set_xlabel(label + (" (grey: unstable)" if len(set(colors)) > 1 else ""))
        axes.invert_yaxis()
    FIGURES.mkdir(exist_ok=True)
    with new_file(FIGURES / f"{name}.png") as path:
        drawn.savefig(path, dpi=150, format="png")
    plt.close(drawn)


def main() -> None:
    page = PAGE.read_text()
    for name, table in TABLES.items():
        source = RESULTS / f"{name}.jsonl"
        if not source.exists():
            continue
        rows = [json.loads(line) for line in source.read_text().splitlines()]
        picture = ""
        if name not in ("scaling_long", "deep"):
            figure(name, rows)
            picture = f"\n![{name}](figures/{name}.png)\n"
        text = f"<!-- {name} -->\n{table(rows)}\n{where(rows)}\n{picture}<!-- end -->"
        page, found = re.subn(rf"<!-- {name} -->.*?<!-- end -->", lambda _, text=text: text, page, flags=re.DOTALL)
        if not found:
            raise SystemExit(f"{PAGE.name} has no place for {name}: <!-- {name} --> ... <!-- end -->")
    with new_file(PAGE) as path:
        path.write_text(page)


if __name__ == "__main__":
    main()
