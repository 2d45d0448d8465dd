"""``evoattn contacts``: contacts from one alignment, and how many of them are true."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from evoattn.contacts import ContactSettings, FitConfig, contacts
from evoattn.contacts.settings import METHODS
from evoattn.contacts.summary import summary
from evoattn.msa_cli import Block, MsaFormat, Query, numbered
from evoattn.terminal import Force, Json, progress, reported, usage

DEFAULT = FitConfig()

Family = Annotated[Path, typer.Argument(metavar="FAMILY", help="Alignment in any format, which may be compressed; row 0 is the query.")]
Structure = Annotated[
    Path | None, typer.Option(metavar="FILE", help="PDB or mmCIF of the query, may be compressed: true contacts to compare with.")
]
Chain = Annotated[str | None, typer.Option(metavar="NAME", help="Of the structure. [default: the one most like the query]")]
Method = Annotated[str, typer.Option(metavar="|".join(METHODS), help="Factored attention fitted to the family, or mean-field DCA.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write. [default: <FAMILY without suffix>_contacts]")]
Heads = Annotated[int, typer.Option(min=1, help="Attention heads: the more, the closer to free couplings of all pairs.")]
Steps = Annotated[int, typer.Option(min=2, help="Of the fit.")]
Batch = Annotated[int, typer.Option(min=1, help="Rows of a step.")]
Seed = Annotated[int, typer.Option(min=0, help="Of the fit: the same seed gives the same files.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: torch's choice]")]


def contacts_command(
    family: Family,
    structure: Structure = None,
    chain: Chain = None,
    method: Method = "attention",
    out: Out = None,
    heads: Heads = DEFAULT.heads,
    steps: Steps = DEFAULT.steps,
    batch: Batch = DEFAULT.batch,
    seed: Seed = DEFAULT.seed,
    query: Query = None,
    block: Block = None,
    msa_format: MsaFormat = "auto",
    threads: Threads = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Predict which residues touch, from the alignment of a family alone, and compare with a structure.

    Fits one layer of attention to the alignment itself, no trained parameters needed, and writes a folder: contacts.csv (pairs, best
    first), contacts.npz (all scores), contacts.png and run.json. With --structure the true contacts are drawn under the predicted ones,
    and the precision of the L, L/2 and L/5 best pairs is printed, L being the length of the query.
    """
    with usage():
        settings = ContactSettings(
            input=family, structure=structure, chain=chain, method=method, fit=FitConfig(heads=heads, steps=steps, batch=batch, seed=seed),
            msa_format=msa_format, query=query, block=numbered(block), out=out, force=force,
        )  # fmt: skip
    if threads is not None:
        torch.set_num_threads(threads)
    with reported():
        with progress() as show:
            record = contacts(settings, None if show is None else lambda done, total: show("Fitting", "steps", done, total))
        typer.echo(json.dumps(record, indent=2) if as_json else summary(record))
