"""Contacts of real families from their alignments alone: factored attention, beside mean-field DCA.

    python -m benchmarks.contacts [--families NAME ...] [--seeds N] [--threads N]

Prints and writes, for each family and method, the precision of the L, L/2 and L/5 best pairs with |i - j| >= 6 (C-beta within 8 A,
resolved pairs only), the median over the seeds for the attention, with its seconds and peak memory; and the same with the residues of each
column permuted by themselves, where nothing is left to be found. DHFR is shipped; the other families are read from ../shared where it is.
It ends in an error unless the median of each family at L is at least that of DCA less 0.10, each fit takes at most 5 minutes and 4 GiB,
and at most 0.10 is found in permuted columns.
"""

import argparse
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.common import ROOT, high_water_mib, report
from evoattn import read_msa
from evoattn.contacts import FitConfig, fit_attention, mean_field_dca
from evoattn.io import MSA, row_weights
from evoattn.train.contacts import contact_precision
from evoattn.train.structure import read_structure

SHARED: Final = ROOT.parent / "shared" / "data" / "families"
FAMILIES: Final = {
    "dhfr": (ROOT / "data/dhfr.a3m.gz", ROOT / "data/3ql0.pdb.gz"),
    "ras_721p": (SHARED / "ras_721p/721p_A.a3m", SHARED / "ras_721p/721p-assembly1.cif"),
    "ptsIIA_1a3a": (SHARED / "ptsIIA_1a3a/hhblits_uniclust_2017_10_1a3a_1_A.a3m", SHARED / "ptsIIA_1a3a/1a3a.pdb"),
    "bcl3_1k1a": (SHARED / "bcl3_1k1a/1k1a.a3m", SHARED / "bcl3_1k1a/1k1a.cif"),
}
TOPS: Final = ("L", "L/2", "L/5")
BELOW_DCA, PERMUTED, SECONDS, MIB = 0.10, 0.10, 300.0, 4096.0


def permuted(msa: MSA, seed: int) -> MSA:
    """The residues of each column in another order of the rows, the query aside."""
    rows = msa.residues.copy()
    rows[1:] = np.random.default_rng(seed).permuted(rows[1:], axis=0)
    return replace(msa, residues=rows)


def measured(alignment: Path, structure: Path, method: str, seed: int, shuffle: bool, threads: int) -> dict[str, Any]:
    """One fit, in the process that calls it."""
    torch.set_num_threads(threads)
    msa = read_msa(alignment)
    target = read_structure(structure, msa.query, chain="A")
    msa = permuted(msa, seed) if shuffle else msa
    start, used = time.perf_counter(), time.process_time()
    weights = row_weights(msa, columns="all")
    scores = mean_field_dca(msa, weights) if method == "dca" else fit_attention(msa, weights, FitConfig(seed=seed)).model.scores()
    seconds, used = time.perf_counter() - start, time.process_time() - used
    precision = contact_precision(scores.numpy(), target.distances, ranges=["all"], top=TOPS)
    row = {"residues": msa.n_res, "seconds": seconds, "processor_seconds": used, "peak_mib": high_water_mib()}
    return row | {one.top: one.value for one in precision}


def alone(*arguments: object) -> dict[str, Any]:
    """The same in a fresh process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, *arguments).result()


def median_row(family: str, method: str, seeds: int, threads: int, shuffle: bool = False) -> dict[str, Any]:
    runs = [alone(*FAMILIES[family], method, seed, shuffle, threads) for seed in range(seeds)]
    row = {"family": family, "method": method, "permuted": shuffle, "seeds": seeds, "residues": runs[0]["residues"]}
    row |= {f"top {top}": statistics.median(run[top] for run in runs) for top in TOPS}
    return row | {f"most {what}": max(run[what] for run in runs) for what in ("seconds", "processor_seconds", "peak_mib")}


def failures(rows: list[dict[str, Any]]) -> list[str]:
    dca = {row["family"]: row["top L"] for row in rows if row["method"] == "dca"}
    found = []
    for row in rows:
        name = f"{row['family']}, {row['method']}{', permuted' if row['permuted'] else ''}"
        if row["permuted"] and row["top L"] > PERMUTED:
            found.append(f"{name}: {row['top L']:.2f} at top L where there is nothing to find")
        if not row["permuted"] and row["top L"] < dca[row["family"]] - BELOW_DCA:
            found.append(f"{name}: {row['top L']:.2f} at top L, and DCA {dca[row['family']]:.2f}")
        if row["most seconds"] > SECONDS or row["most peak_mib"] > MIB:
            found.append(f"{name}: {row['most seconds']:.0f} s, {row['most peak_mib']:.0f} MiB")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    there = [name for name, files in FAMILIES.items() if all(file.exists() for file in files)]
    parser.add_argument("--families", nargs="+", choices=there, default=there, metavar="NAME", help=f"of {', '.join(there)}")
    parser.add_argument("--seeds", type=int, default=3, help="of the attention, 0, 1, ...")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)  # for the record of the machine
    rows = []
    for family in options.families:
        rows.append(median_row(family, "dca", 1, options.threads))
        rows.append(median_row(family, "attention", options.seeds, options.threads))
        rows.append(median_row(family, "attention", 1, options.threads, shuffle=True))
    report("contacts", rows)
    sys.exit("\n".join(failures(rows)) or 0)


if __name__ == "__main__":
    main()
