"""``evoattn check``: every backend on this device against the reference."""

import json
from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.console import Console

from evoattn.check import Trial, check
from evoattn.check_cases import SUBJECTS
from evoattn.ops import verdicts
from evoattn.terminal import Json, reported

DEVICES = ("auto", "cpu", "cuda", "mps")

Device = Annotated[str, typer.Option(metavar="|".join(DEVICES), help="auto is the GPU where there is one; cuda:1 is the second.")]
Op = Annotated[list[str] | None, typer.Option(metavar="NAME", help=f"Of {', '.join(SUBJECTS)}; may be repeated. [default: all]")]


def check_command(device: Device = "auto", op: Op = None, as_json: Json = False) -> None:
    """Compare every backend on this device with the reference in float64: outputs, all gradients, each dtype.

    What is found is remembered for this kind of device, driver, torch and package version. `auto` leaves alone what has failed, and takes
    kernels that are not torch's own only where they have passed. Those are tried in a process of their own; they may compile for minutes.
    Exits with 1 when a backend fails.
    """
    ops = op or list(SUBJECTS)
    if unknown := [name for name in ops if name not in SUBJECTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}; allowed are {', '.join(SUBJECTS)}.", param_hint="--op")
    where = _device(device)
    with reported():
        console = Console(stderr=True)
        with console.status("") as status:
            trials = check(where, ops, lambda op, backend: status.update(f"{op}: {backend}"))
        if as_json:
            found = {"place": asdict(verdicts.place_of(where)), "trials": [asdict(trial) | {"verdict": trial.verdict} for trial in trials]}
            typer.echo(json.dumps(found, indent=2))
        else:
            typer.echo(describe_trials(trials, where))
    if any(trial.verdict == "failed" for trial in trials):
        raise typer.Exit(1)


def describe_trials(trials: list[Trial], device: torch.device) -> str:
    """The table, and what it stands for."""
    place = verdicts.place_of(device)
    lines = [f"{place.card} ({place.arch or place.device}), driver {place.driver or 'none'}, torch {place.torch}", ""]
    lines.append(f"{'op':<19} {'backend':<15} {'dtype':<9} {'verdict':<11} {'calls':>5} {'error':>6} {'ms':>8}")
    for t in trials:
        error = "" if t.error is None else f"{t.error:.2f}"
        time = "" if t.milliseconds is None else f"{t.milliseconds:.2f}"
        lines.append(f"{t.op:<19} {t.backend:<15} {t.dtype:<9} {t.verdict:<11} {t.cases or '':>5} {error:>6} {time:>8}  {t.why}".rstrip())
    lines += ["", "error: the largest, as a share of what is allowed; ms: forward and backward of one small call, not a benchmark."]
    return "\n".join([*lines, f"Remembered in {verdicts.file()}."])


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.accelerator.current_accelerator() or torch.device("cpu") if torch.accelerator.is_available() else torch.device("cpu")
    if name.split(":")[0] not in DEVICES:
        raise typer.BadParameter(f"{name!r}; allowed are {', '.join(DEVICES)}.", param_hint="--device")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise typer.BadParameter(f"{name!r} is not here: {str(error).partition(chr(10))[0]}", param_hint="--device") from None
    return torch.device(name)
