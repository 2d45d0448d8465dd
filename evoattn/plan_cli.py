"""``evoattn plan``: what a run would take, before it is run."""

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from evoattn.config import PRESETS
from evoattn.config import preset as preset_named
from evoattn.errors import ConfigError
from evoattn.execution import Execution
from evoattn.io import read_msa
from evoattn.memory import Plan, Sizes, plan
from evoattn.runs.memory import plan_record
from evoattn.runs.settings import DTYPE_HELP, DTYPES, dtype_named, products_named
from evoattn.terminal import Json, reported, usage
from evoattn.units import parse_bytes

DEFAULTS = {"n_seq": 128, "n_extra": 1024}
"""Rows that `evoattn run` takes of a deep alignment."""


def plan_command(
    alignment: Annotated[Path | None, typer.Argument(metavar="INPUT", help="Alignment or sequence to take the sizes from.")] = None,
    n_res: Annotated[int | None, typer.Option(min=1, help="Residues, where there is no INPUT.")] = None,
    n_seq: Annotated[int | None, typer.Option(min=1, help="Rows of the MSA representation. [default: 128, or those of INPUT]")] = None,
    n_extra: Annotated[int | None, typer.Option(min=0, help="Rows of the extra-MSA stack. [default: 1024, or those left of INPUT]")] = None,
    n_templates: Annotated[int, typer.Option(min=0, help="Templates, of a preset that takes them.")] = 0,
    preset: Annotated[str, typer.Option(metavar="NAME", help=f"Architecture: {', '.join(PRESETS)}.")] = "af2",
    blocks: Annotated[int | None, typer.Option(min=1, help="Evoformer blocks, instead of the preset's.")] = None,
    budget: Annotated[str | None, typer.Option(metavar="SIZE", help="E.g. 24GiB. [default: the memory that is free]")] = None,
    dtype: Annotated[str, typer.Option(metavar="|".join(DTYPES), help=DTYPE_HELP)] = "fp32",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="Whose free memory is the default budget.")] = "cpu",
    training: Annotated[bool, typer.Option("--training", help="Forward and backward, instead of inference.")] = False,
    as_json: Json = False,
) -> None:
    """Tell how much memory a run takes, by part, in which slices it keeps a budget, and what would fit if it does not.

    Nothing is computed. The budget is for what a run adds to parameters and features. The exit code is 3 where the run does not fit.
    """
    with usage():
        if (alignment is None) == (n_res is None):
            raise ConfigError("give the number of residues, --n-res, or an alignment to take it from, one of them.")
        if device not in ("cpu", "cuda") or (device == "cuda" and budget is None and not torch.cuda.is_available()):
            raise ConfigError(f"device is {device!r}; allowed are cpu, and cuda where there is one or with --budget.")
        config = preset_named(preset) if blocks is None else preset_named(preset).with_blocks(blocks)
        torch_dtype = dtype_named(dtype)
        limit = None if budget is None else parse_bytes(budget)
    with reported():
        sizes = _sizes(alignment, n_res, n_seq, n_extra if config.extra is not None else 0, n_templates)
        found = plan(
            config, **vars(sizes), budget=limit, dtype=torch_dtype, device=device, mode="training" if training else "inference",
            execution=Execution(dtype=products_named(dtype)),
        )  # fmt: skip
        typer.echo(json.dumps(_record(found, sizes), indent=2) if as_json else f"{_title(sizes, preset, dtype, training)}\n\n{found}")
    if not found.fits:
        raise typer.Exit(3)


def _sizes(alignment: Path | None, n_res: int | None, n_seq: int | None, n_extra: int | None, n_templates: int) -> Sizes:
    """As `evoattn run` would take the rows of the alignment."""
    wanted = {"n_seq": DEFAULTS["n_seq"] if n_seq is None else n_seq, "n_extra": DEFAULTS["n_extra"] if n_extra is None else n_extra}
    if alignment is None:
        assert n_res is not None
        return Sizes(n_res=n_res, n_templates=n_templates, **wanted)
    msa = read_msa(alignment)
    kept = min(wanted["n_seq"], msa.n_seq)
    return Sizes(n_seq=kept, n_res=msa.n_res, n_extra=min(wanted["n_extra"], msa.n_seq - kept), n_templates=n_templates)


def _record(found: Plan, sizes: Sizes) -> dict[str, Any]:
    return {"sizes": vars(sizes), "fits": found.fits, **plan_record(found, None), "advice": found.advice}


def _title(sizes: Sizes, preset: str, dtype: str, training: bool) -> str:
    rows = f"{sizes.n_seq:,} rows and {sizes.n_extra:,} extra rows x {sizes.n_res:,} residues"
    return f"{'training' if training else 'inference'} of {preset}, {rows}, {dtype}"
