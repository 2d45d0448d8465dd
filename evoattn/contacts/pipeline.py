"""From an alignment file to a folder with its contacts, a picture, and an account of how they came about."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float64

from evoattn.contacts.dca import mean_field_dca
from evoattn.contacts.figure import draw_contact_map
from evoattn.contacts.fit import OnStep, fit_attention
from evoattn.contacts.output import write_arrays, write_table
from evoattn.contacts.settings import ContactSettings
from evoattn.errors import MSAError
from evoattn.io import MSA, read_msa, row_weights
from evoattn.io.statistics import CONTACTS_GOOD, CONTACTS_MINIMUM
from evoattn.runs.output import new_folder, refuse_output, write_json
from evoattn.runs.record import file_sha256
from evoattn.runs.watch import Stopwatch, peak_memory, versions
from evoattn.train.contacts import RANGES, Precision, contact_precision
from evoattn.train.structure import QueryStructure, read_structure

LEAST_RESIDUES: Final = RANGES["all"][0] + 1
"""Below this there is no pair of the least separation."""

NO_PICTURE: Final = "contacts.png was not drawn, since matplotlib is not installed: pip install 'evoattn[viz]' brings it."


@dataclass(frozen=True, eq=False)
class Found:
    """What is written and drawn."""

    msa: MSA
    neff: float
    scores: Float64[np.ndarray, "n n"]
    structure: QueryStructure | None
    precision: list[Precision]


def contacts(settings: ContactSettings, on_step: OnStep | None = None) -> dict[str, Any]:
    """Find contacts, write the folder `settings.folder`, and return the record that its ``run.json`` holds.

    The folder (``contacts.csv``, ``contacts.npz``, ``contacts.png``, ``run.json``) appears when everything in it is written, or not at all.

    Args:
        settings: what to do. on_step: called with (steps done, steps in all) of the fit.

    Raises:
        EvoattnError: the input, the structure or the output folder is refused; nothing is left behind.
    """
    refuse_output(settings.folder, force=settings.force)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    watch = Stopwatch(torch.device("cpu"))
    with watch.stage("read"):
        msa = read_msa(settings.input, settings.msa_format, query=settings.query, block=settings.block)
        _refuse(msa)
        structure = None if settings.structure is None else read_structure(settings.structure, msa.query, chain=settings.chain)
    with watch.stage("weigh rows"):
        weights = row_weights(msa, columns="all")
    losses: list[float] = []
    with watch.stage("fit" if settings.method == "attention" else "invert"):
        if settings.method == "attention":
            fitted = fit_attention(msa, weights, settings.fit, on_step)
            losses, scores = fitted.losses, fitted.model.scores().numpy()
        else:
            scores = mean_field_dca(msa, weights).numpy()
    precision = [] if structure is None else contact_precision(scores, structure.distances, ranges=list(RANGES))
    found = Found(msa, float(weights.sum()), scores, structure, precision)
    with new_folder(settings.folder, force=settings.force) as folder:
        with watch.stage("write"):
            write_table(folder / "contacts.csv", msa.query, scores, structure)
            write_arrays(folder / "contacts.npz", msa.query, scores, structure)
        can_draw = find_spec("matplotlib") is not None
        if can_draw:
            with watch.stage("draw"):
                draw_contact_map(folder / "contacts.png", found.scores, structure, precision, _title(settings, found))
        record = _record(settings, found, losses) | {
            "started": started,
            "seconds": {stage: round(seconds, 4) for stage, seconds in watch.seconds.items()},
            "peak_memory_bytes": peak_memory(watch.device),
            "output": {
                "folder": str(settings.folder),
                "files": ["contacts.csv", "contacts.npz", *(["contacts.png"] if can_draw else []), "run.json"],
            },
            "warnings": [*_warnings(found), *([] if can_draw else [NO_PICTURE])],
        }
        write_json(folder / "run.json", record)
    return record


def _refuse(msa: MSA) -> None:
    file = msa.source or None
    if msa.alphabet != "protein":
        raise MSAError(f"is an alignment of {msa.alphabet}; contacts are found for proteins.", file=file, found=msa.alphabet)
    if msa.n_seq < 2:
        raise MSAError("has one row: contacts are read from how the rows of a family vary together. Give an alignment.", file=file)
    if msa.n_res < LEAST_RESIDUES:
        least = RANGES["all"][0]
        raise MSAError(f"has {msa.n_res} columns; with fewer than {LEAST_RESIDUES} no pair has |i - j| >= {least}.", file=file)


def _record(settings: ContactSettings, found: Found, losses: list[float]) -> dict[str, Any]:
    msa, structure = found.msa, found.structure
    return {
        "versions": versions(),
        "settings": settings.record(),
        "input": {
            "files": [{"path": str(settings.input), "sha256": file_sha256(settings.input)}],
            "format": msa.format,
            "rows": msa.n_seq,
            "columns": msa.n_res,
            "neff": found.neff,
            "query": {"name": msa.names[0], "letters": msa.query},
            "account": asdict(msa.account),
        },
        "structure": None if structure is None else {
            "files": [{"path": str(settings.structure), "sha256": file_sha256(settings.structure)}] if settings.structure else [],
            "account": asdict(structure.account),
            "account_in_words": str(structure.account).splitlines(),
        },
        "execution": {
            "threads": torch.get_num_threads(),
            "products": str(settings.fit.dtype if settings.method == "attention" else torch.float64).removeprefix("torch."),
        },
        "losses": losses,
        "precision": [{**asdict(one), "value": one.value if one.pairs else None} for one in found.precision],
    }  # fmt: skip


def _title(settings: ContactSettings, found: Found) -> str:
    msa = found.msa
    name = msa.names[0] if len(msa.names[0]) <= 40 else msa.names[0][:37] + "..."
    how = "factored attention" if settings.method == "attention" else "mean-field DCA"
    return f"{settings.input.name}, query {name}: {msa.n_seq:,} rows × {msa.n_res:,} columns, Neff {found.neff:,.0f}; {how}"


def _warnings(found: Found) -> list[str]:
    """What a reader of the contacts should know."""
    msa, structure, depth = found.msa, found.structure, found.neff / found.msa.n_res
    said = []
    if depth < CONTACTS_MINIMUM:
        said.append(
            f"the alignment is too shallow for contacts: Neff/N_res is {depth:.2g}, and below {CONTACTS_MINIMUM:g} most of the best-scored "
            "pairs are no contacts. Search a larger database, or with more iterations."
        )
    elif depth < CONTACTS_GOOD:
        said.append(f"the alignment is rather shallow: Neff/N_res is {depth:.2g}; contacts are reliable from {CONTACTS_GOOD:g} on.")
    if len(msa.chain_lengths) > 1:
        said.append("the alignment has several chains: |i - j| counts columns across them, and a structure is of one chain.")
    if structure is not None and structure.account.identity < 0.9:
        said.append(
            f"the structure is of a homolog ({100 * structure.account.identity:.0f} % identical): contacts that differ between the two "
            "count as wrong."
        )
    return said
