"""The largest error against every file of reference numbers: collected while the tests run, written to docs/parity.md.

``python -m tests.parity`` runs the tests that compare, then writes the page; with --no-run it takes what earlier runs of the tests left in
build/. It fails where a comparison is missing. A test records each comparison that has passed, in the words of the file:
``record("boltz2_msa_layer", "rand", "sub/outer_product_mean", assert_golden(...))``.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
SHARED = ROOT.parent / "shared" / "golden"
RECORDS = ROOT / "build" / "parity.jsonl"
PAGE = ROOT / "docs" / "parity.md"
TESTS = ("tests/blocks", "tests/stacks", "tests/test_model.py")

KINDS = {"out": "outputs", "sub": "sub-blocks", "grad": "gradients", "grad_valid": "gradients", "grad_param": "of parameters"}
COLUMNS = tuple(dict.fromkeys(KINDS.values()))
PARAMETERS_ONLY = "params_model_1_mini"  # the parameters of af2_full_model_*; nothing to compare

NOT_COMPARED = (  # file, where, why
    ("all", "padded positions", "the references give a masked row the mean of the values, or whatever rounding leaves; evoattn gives 0"),
    ("esmfold_trunk_block", "`rand`, masked residues", "its triangle attention has rows with no allowed key there"),
    ("msa_transformer_axial_layer", "`rand`, columns that no sequence has", "they get the mean of the values"),
    ("af2_multimer_full", "templates as compiled", "a residue's direction to itself is then rounding made a unit long; op by op it is 0"),
)
THEIR_RULE = (  # file, what: compared with the reference's rule for rows with no allowed key in place of ours
    ("`af2_evoformer_*`, `af2_extra_msa_*`", "`pad/grad`: its cotangents reach padded positions"),
    ("af2_full_model_1", "all: rows of templates are not masked; torsion angles are those of the file, of which some are rounding"),
    ("esmfold_trunk_block", "all gradients"),
    ("openfold_evoformer_stack2", "`pad/grad_valid`, which flows through the single representation"),
    ("protenix_pairformer_block", "`pad`: Protenix does not mask the single representation"),
)
WITHOUT_A_FILE = (  # what, what it is compared with
    ("RosettaFold 3's MSA module", "its formulas in float64 numpy under its own parameter names, `tests/stacks/test_rosettafold3.py`"),
    ("relative positions of AlphaFold 3 (chains, entities, copies)", "loops over residues, `tests/blocks/test_relative_position.py`"),
    ("AlphaFold 3's kin before the Pairformer: atoms, templates, input embedding", "nothing: evoattn has none of it"),
    ("published parameter files themselves", "nothing: none is shipped; names and shapes are those of each system's own model"),
)


def record(file: str, case: str, part: str, error: float) -> None:
    """Note that `part` ("out/pair", "sub/...", "grad/...", "grad_valid/...", "grad_param/...") of `case` agreed, with its largest error.

    `case` is what stands before the kind in the file's own keys: "rand", "msa_transition/pad", or "" for a file without cases.
    """
    if part.split("/")[0] not in KINDS:
        raise ValueError(f"{part!r} must begin with one of {', '.join(KINDS)}")
    RECORDS.parent.mkdir(exist_ok=True)
    with RECORDS.open("a") as lines:  # a line per write: tests may run side by side
        lines.write(json.dumps([file, case, part, float(error)]) + "\n")


def contents(file: Path) -> set[tuple[str, str]]:
    """(case, kind) of all that a file of reference numbers holds."""
    found = set()
    with np.load(file, allow_pickle=False) as arrays:
        for key in arrays.files:
            words = key.split("/")
            index = next((i for i, word in enumerate(words) if word in (*KINDS, "param", "in", "batch")), None)
            if index is not None and words[index] in KINDS:
                found.add(("/".join(words[:index]), words[index]))
    return found


def errors(lines: list[str]) -> dict[str, dict[tuple[str, str], float]]:
    """file -> (case, kind) -> largest error; of a comparison that was made several times, the last counts."""
    latest = {(file, case, part): error for file, case, part, error in map(json.loads, lines)}
    largest: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for (file, case, part), error in latest.items():
        place = (case, part.split("/")[0])
        largest[file][place] = max(error, largest[file].get(place, 0.0))
    return largest


def skipped(files: dict[str, set[tuple[str, str]]], largest: dict[str, dict[tuple[str, str], float]]) -> list[str]:
    """What the files hold and no test compared."""
    return [
        f"{file}: {case}/{kind}".replace(" /", " ")
        for file, holds in files.items()
        for case, kind in sorted(holds)
        if (case, kind) not in largest.get(file, {})
    ]


def page(files: dict[str, set[tuple[str, str]]], largest: dict[str, dict[tuple[str, str], float]]) -> str:
    missing = skipped(files, largest)
    lines = [
        "# Parity with the published implementations",
        "",
        "Largest absolute error of evoattn against numbers from running each reference implementation (float32, CPU, random inputs",
        "and parameters, outputs of scale 4 to 8), over all cases of a file: nothing masked, a fifth masked at random, padded.",
        "Gradients are those of the inputs, and of the parameters where the file has them. Every number passed",
        "|error| <= 2e-5 + 1e-5 |reference| for outputs and sub-blocks, and 5e-5 + 1e-4 max|reference| for gradients.",
        "Two float32 programs that sum in another order differ by this much.",
        "`python -m tests.parity` runs the comparisons and writes this page.",
        "",
        "| file | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for file, holds in files.items():
        cells = []
        for column in COLUMNS:
            values = [error for (_, kind), error in largest.get(file, {}).items() if KINDS[kind] == column]
            there = any(KINDS[kind] == column for _, kind in holds)
            cells.append(f"{max(values):.1e}" if values else "not compared" if there else "")
        lines.append(f"| {file} | " + " | ".join(cells) + " |")
    lines += ["", f"{len(files)} files, {len(missing)} skipped comparisons" + (":" if missing else "."), *(f"- {name}" for name in missing)]
    lines += ["", "## Not compared", "", "The references leave these open: their own float32 and float64 runs differ there by O(1).", ""]
    lines += ["| file | where | why |", "|---|---|---|", *(f"| {file} | {where} | {why} |" for file, where, why in NOT_COMPARED)]
    lines += ["", "## Compared under the reference's rule for masked rows", ""]
    lines += ["Where no key may be attended, evoattn gives 0 and no gradient. These numbers depend on another rule, which a test puts"]
    lines += ["in its place: nothing else differs.", "", "| file | what |", "|---|---|"]
    lines += [f"| {file} | {what} |" for file, what in THEIR_RULE]
    lines += ["", "## Without reference numbers", "", "| what | compared with |", "|---|---|"]
    lines += [f"| {what} | {truth} |" for what, truth in WITHOUT_A_FILE]
    return "\n".join(lines) + "\n"


def main() -> int:
    if not SHARED.is_dir():
        print(f"no reference files at {SHARED}", file=sys.stderr)
        return 1
    if "--no-run" not in sys.argv:
        RECORDS.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    own = [path for path in GOLDEN.glob("*.npz") if not (SHARED / path.name).exists()]
    paths = sorted([*SHARED.glob("*.npz"), *own], key=lambda path: path.stem)
    files = {path.stem: contents(path) for path in paths if path.stem != PARAMETERS_ONLY}
    largest = errors(RECORDS.read_text().splitlines() if RECORDS.exists() else [])
    temporary = PAGE.with_suffix(f".{os.getpid()}.new")
    temporary.write_text(page(files, largest))
    os.replace(temporary, PAGE)
    missing = skipped(files, largest)
    print(f"{PAGE}: {len(files)} files, {len(missing)} skipped comparisons", *missing, sep="\n  ")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
