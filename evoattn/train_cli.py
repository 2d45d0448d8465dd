"""``evoattn train``: an Evoformer trained on a folder of protein families."""

import json
import sys
from math import nan
from pathlib import Path
from typing import Annotated

import torch
import typer

from evoattn.errors import ConfigError
from evoattn.files import new_file
from evoattn.memory import estimate
from evoattn.runs.watch import peak_memory
from evoattn.terminal import Json, Show, progress, reported
from evoattn.train.config import read_config
from evoattn.train.optimizer import MOMENTS
from evoattn.train.template import TEMPLATE
from evoattn.train.trainer import OnStep, Result, Step, Trainer
from evoattn.train.world import leave_world

Init = Annotated[bool, typer.Option("--init", help="Write CONFIG with every setting, its default and a comment, and stop.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Read the data, make two steps in memory, tell what a run takes, and stop.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on after the newest checkpoint; start where there is none.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of each process. [default: torch's choice]")]


def train_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings; --init writes a file to start from.")],
    init: Init = False,
    dry_run: DryRun = False,
    resume: Resume = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train an Evoformer trunk to tell hidden cells of alignments, and distances where families have a structure.

    Writes a folder with checkpoints, metrics (JSON lines, TensorBoard), the loss as a picture, and at the end weights.safetensors, which
    `load_weights` reads. For several processes: torchrun --nproc-per-node 2 -m evoattn train CONFIG.toml
    """
    if threads is not None:
        torch.set_num_threads(threads)
    with reported():
        if init:
            _write_template(config)
            return
        trainer = Trainer(read_config(config), resume=resume, say=lambda text: typer.echo(text, err=True))
        if dry_run:
            _tell_cost(trainer, as_json)
        else:
            with progress() as show:
                result = trainer.run(_shown(show) if trainer.world.first else lambda step: None)
            if trainer.world.first:
                _tell_result(trainer, result, as_json)
        leave_world()


def _write_template(path: Path) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists, and is left as it is; give the name of a new file.")
    with new_file(path) as temporary:
        temporary.write_text(TEMPLATE, encoding="utf-8")
    typer.echo(f"{path}: set data.families to your folder, then: evoattn train {path} --dry-run")


def _tell_cost(trainer: Trainer, as_json: bool) -> None:
    seconds = trainer.rehearse()
    if not trainer.world.first:
        return
    run, samples = trainer.config.run, trainer.samples
    found = {
        "families": len({family.name for family in samples.families}),
        "alignments": len(samples.families),
        "with_structure": sum(family.pseudo_beta is not None for family in samples.families),
        "parameters": sum(x.numel() for x in trainer.model.parameters()),
        "steps": run.steps - trainer.step,
        "seconds_per_step": seconds,
        "seconds": seconds * (run.steps - trainer.step),
        "estimated_bytes": _estimated(trainer),
        "peak_bytes": max(peak_memory(trainer.world.device).values(), default=0),
    }
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for family in samples.families:
        typer.echo("\n  ".join([f"{family.name}: {family.msa}", *family.notes]))
    typer.echo(
        f"{found['alignments']} alignments of {found['families']} families, {found['with_structure']} with a structure; "
        f"{found['parameters']:,} parameters\n"
        f"memory: {found['estimated_bytes'] / 2**30:.2f} GiB by the sizes of model and samples; this process, having made two steps, "
        f"came to {found['peak_bytes'] / 2**30:.2f} GiB in all\n"
        f"time: {seconds:.2f} s a step, {found['seconds'] / 60:.1f} min for {found['steps']} steps, on this machine as busy as it is"
    )


def _estimated(trainer: Trainer) -> int:
    """Bytes of a micro-batch forward and backward, with parameters, gradients, and the three states of the optimiser unsharded."""
    data, run, trunk = trainer.config.data, trainer.config.run, trainer.config.model.trunk()
    found = estimate(
        trunk, data.max_seqs, data.crop, n_extra=data.max_extra, batch=run.micro_batch, mode="training", execution=run.execution
    )
    return found.total + len(MOMENTS) * found.parts["parameters"]


def _shown(show: Show | None) -> OnStep:
    """On a bar where there is a terminal; otherwise a line now and then."""

    def on_step(step: Step) -> None:
        text = f"loss {step.metrics['loss']:.4g}, {step.metrics['tokens_per_second']:,.0f} tokens/s"
        if show is not None:
            show(text, "steps", step.step, step.steps)
        elif step.step % max(1, step.steps // 20) == 0 or "held_out_loss" in step.metrics:
            held_out = f", held out {step.metrics['held_out_loss']:.4g}" if "held_out_loss" in step.metrics else ""
            print(f"step {step.step} of {step.steps}: {text}{held_out}", file=sys.stderr, flush=True)

    return on_step


def _tell_result(trainer: Trainer, result: Result, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"step": result.step, "weights": str(result.weights), **result.metrics}, indent=2))
        return
    m = result.metrics
    lines = [f"{result.step} steps: {trainer.config.out}"]
    if m:
        lines.append(f"training: loss {m['loss']:.4g}, perplexity {m.get('perplexity', nan):.3g} of the last step")
    if "held_out_loss" in m:
        lines.append(f"held-out families: loss {m['held_out_loss']:.4g}, perplexity {m.get('held_out_perplexity', nan):.3g}")
    lines.append(f"weights: {result.weights}, the moving average")
    typer.echo("\n".join(lines))
