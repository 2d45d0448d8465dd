"""The command line: ``evoattn run``, ``evoattn info`` and ``evoattn explain``; ``evoattn msa`` is in :mod:`evoattn.msa_cli`,
``evoattn weights`` in :mod:`evoattn.weights_cli`, ``evoattn train`` in :mod:`evoattn.train_cli`,
``evoattn contacts`` in :mod:`evoattn.contacts_cli`.

Exit codes: 0 done; 1 refused or failed, with a message that says why; 2 wrong usage; 3 out of memory; 130 interrupted (Ctrl-C, SIGTERM).
Results go to standard output, progress and errors to standard error.
"""

import json
import re
from pathlib import Path
from typing import Annotated

import torch
import typer

from evoattn.check_cli import check_command
from evoattn.config import PRESETS
from evoattn.config import preset as preset_named
from evoattn.contacts_cli import contacts_command
from evoattn.errors import ConfigError
from evoattn.io import FEATURE_PRESETS
from evoattn.msa_cli import Block, Database, Evalue, Iterations, MsaFormat, Query, msa_app, numbered
from evoattn.ops import ATTENTION, explain
from evoattn.plan_cli import plan_command
from evoattn.runs import RunSettings, Sizes, attention_calls, environment, run_folder
from evoattn.runs import run as run_trunk
from evoattn.runs.environment import describe_environment
from evoattn.runs.presets import MSA_TRANSFORMERS
from evoattn.runs.settings import DEVICES, DTYPE_HELP, DTYPES, FORMATS, OUTPUTS, PAIRINGS, dtype_named, products_named
from evoattn.runs.summary import summary
from evoattn.runs.watch import evoattn_version
from evoattn.terminal import EXIT_CODES, SETTINGS, Force, Json, progress, reported, show_blocks, show_search, usage
from evoattn.train_cli import train_command
from evoattn.weights_cli import weights_app

app = typer.Typer(
    name="evoattn", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False,
    context_settings=SETTINGS,
)  # fmt: skip
EXPLAINED = ("cpu", "cuda", "mps")

app.add_typer(msa_app)
app.add_typer(weights_app)
app.command("check", epilog=EXIT_CODES)(check_command)
app.command("plan", epilog=EXIT_CODES)(plan_command)
app.command("train", epilog=EXIT_CODES)(train_command)
app.command("contacts", epilog=EXIT_CODES)(contacts_command)


def main() -> None:
    app(prog_name="evoattn")


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def _root(version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False) -> None:
    """Evoformer-style attention on protein alignments. Gives representations and attention maps, not coordinates."""
    if version:
        typer.echo(f"evoattn {evoattn_version()}")
        raise typer.Exit


Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="INPUT",
        help="Alignment: a3m, a2m, aligned FASTA, Stockholm, Clustal, SELEX, or one FASTA sequence, chains joined by ':'; may be "
        "compressed. Several files are the chains of a complex; a folder is run file by file.",
    ),
]
Pair = Annotated[
    str,
    typer.Option(
        metavar="|".join(PAIRINGS),
        help="How rows of different chains are matched: by species, the best hit of each or by rank, or by row. none: block-diagonal.",
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Features: {', '.join(FEATURE_PRESETS)}. plain draws nothing at random. [default: as published for the preset, or plain]",
    ),
]
Preset = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"Architecture: {', '.join([*PRESETS, *MSA_TRANSFORMERS])}. [default: af2-4, or af2 with --weights]"),
]
Blocks = Annotated[int | None, typer.Option(min=1, help="Evoformer blocks, instead of the preset's.")]
Weights = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Parameters of the preset, e.g. params_model_1.npz; of msa_transformer twice, for encoder and contact head. "
        "[default: random ones]",
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write. [default: <INPUT without suffix>_evoattn]")]
MaxSeqs = Annotated[
    int | None,
    typer.Option(min=1, help="Rows of the MSA representation: the query and the next in file order. [default: of --features; plain 128]"),
]
MaxExtra = Annotated[
    int | None, typer.Option(min=0, help="Rows after those that go to the extra-MSA stack. [default: of --features; plain 1024]")
]
Recycles = Annotated[int, typer.Option(min=0, help="Further passes, each starting from what the one before returned.")]
Dtype = Annotated[str, typer.Option(metavar="|".join(DTYPES), help=DTYPE_HELP)]
Device = Annotated[str, typer.Option(metavar="|".join(DEVICES), help="auto is cuda where there is one.")]
BackendName = Annotated[str, typer.Option(metavar="NAME", help=f"Of attention: {', '.join(ATTENTION.names)}, or auto: the first that can.")]
Budget = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Memory the run may add to parameters and features, e.g. 8GiB. [default: what is free]"),
]
Seed = Annotated[int, typer.Option(min=0, help="Of random parameters, and of features that are drawn.")]
Save = Annotated[
    str,
    typer.Option(metavar="NAMES", help=f"What to write, joined by commas: {', '.join(OUTPUTS)}. The last two need heads in --weights."),
]
Format = Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Of the representations.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: torch's choice]")]


@app.command(epilog=EXIT_CODES + " Of a folder: 0 all files are done; 1 some failed, and the rest are done.")
def run(
    inputs: Inputs,
    preset: Preset = None,
    blocks: Blocks = None,
    weights: Weights = None,
    out: Out = None,
    features: Features = None,
    max_seqs: MaxSeqs = None,
    max_extra: MaxExtra = None,
    recycles: Recycles = 0,
    pair: Pair = "none",
    query: Query = None,
    block: Block = None,
    msa_format: MsaFormat = "auto",
    db: Database = None,
    iterations: Iterations = 1,
    evalue: Evalue = 1e-3,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    backend: BackendName = "auto",
    memory_budget: Budget = None,
    seed: Seed = 0,
    save: Save = "msa,pair,single,contacts",
    format: Format = "safetensors",
    threads: Threads = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run an Evoformer trunk on an alignment.

    Writes a folder with the representations (msa, pair, single), contacts where --weights has the head for them, run.json (what was read,
    built, chosen and measured), report.png and contacts.png.
    Without --weights the parameters are random: good for a try and for timing, and meaningless biologically.

    With --db, INPUT is a sequence: its homologs are searched first, and alignment.a3m is written too. With a folder, files whose run is
    there are skipped, so that a call that was interrupted can be repeated.
    """
    with usage():
        files = [*(weights or []), None, None]
        if len(files) > 4:
            raise ConfigError(f"--weights is given {len(files) - 2} times; it is one file, or two for msa_transformer.")
        settings = RunSettings(
            input=inputs[0], chains=tuple(inputs[1:]), pair=pair, msa_format=msa_format, query=query, block=numbered(block), database=db,
            iterations=iterations, evalue=evalue, out=out, preset=preset, blocks=blocks, weights=files[0],
            contact_weights=files[1], features=features, max_seqs=max_seqs, max_extra=max_extra, recycles=recycles, dtype=dtype,
            device=device, backend=backend, memory_budget=memory_budget, seed=seed, save=tuple(save.replace(" ", "").split(",")),
            format=format, force=force,
        )  # fmt: skip
    if threads is not None:
        torch.set_num_threads(threads)
    with reported():
        if any(path.is_dir() for path in inputs):
            _run_folder(settings, as_json)
            return
        with progress() as show:
            record = run_trunk(settings, show_blocks(show), show_search(show))
        typer.echo(json.dumps(record, indent=2) if as_json else summary(record))


def _run_folder(settings: RunSettings, as_json: bool) -> None:
    with progress() as show:
        batch = run_folder(settings, lambda text: typer.echo(text, err=True), show_blocks(show), show_search(show))
    typer.echo(json.dumps(vars(batch), indent=2) if as_json else str(batch))
    if batch.failed:
        raise typer.Exit(1)


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, devices, attention backends (found, usable, why not) and optional packages."""
    found = environment()
    typer.echo(json.dumps(found, indent=2) if as_json else describe_environment(found))


@app.command("explain", epilog=EXIT_CODES)
def explain_command(
    q_len: Annotated[int | None, typer.Option(min=0, help="Length of the query axis. [default: --n-res]")] = None,
    k_len: Annotated[int | None, typer.Option(min=0, help="Length of the key axis. [default: that of the queries]")] = None,
    batch: Annotated[str | None, typer.Option(metavar="SIZES", help="Leading axes, separated by commas. [default: 1,--n-seq]")] = None,
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 8,
    d: Annotated[int, typer.Option("--d", min=1, help="Width of a head.")] = 32,
    bias: Annotated[str, typer.Option(metavar="none|pair|full", help="pair: shared along the last of --batch; full: not.")] = "pair",
    mask: Annotated[bool, typer.Option("--mask/--no-mask", help="Whether there is a mask of keys.")] = False,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help=f"Instead: every attention of {', '.join(PRESETS)}.")] = None,
    n_seq: Annotated[int, typer.Option(min=1, help="Rows of the MSA representation.")] = 128,
    n_extra: Annotated[int, typer.Option(min=0, help="With --preset: rows of the extra-MSA stack.")] = 1024,
    n_res: Annotated[int, typer.Option(min=1, help="Residues.")] = 256,
    dtype: Dtype = "fp32",
    device: Annotated[str, typer.Option(metavar="|".join(EXPLAINED), help="As if the tensors were there; cuda is AMD's too.")] = "cpu",
    arch: Annotated[str | None, typer.Option(metavar="NAME", help="As if on such a card: sm_90, gfx942. [default: the card here]")] = None,
    grad: Annotated[bool, typer.Option("--grad/--no-grad", help="Whether gradients are wanted, of the bias too.")] = False,
) -> None:
    """Show which backend an attention takes, and every reason against the others. Nothing is computed, and no GPU is needed.

    Asks for one attention by its sizes, MSA row attention of 128 x 256 by default; or with --preset for each kind in an architecture.
    """
    with usage():
        torch_dtype = torch.bfloat16 if products_named(dtype) else dtype_named(dtype)
        config = None if preset is None else preset_named(preset)
    if device not in EXPLAINED:
        raise typer.BadParameter(f"{device!r}; allowed are {', '.join(EXPLAINED)}.", param_hint="--device")
    if arch is not None and (device != "cuda" or not re.fullmatch(r"sm_\d{2,3}[af]?|gfx\w+", arch)):
        raise typer.BadParameter(f"{arch!r}; it goes with --device cuda, and is like sm_90 or gfx942.", param_hint="--arch")
    with reported():
        if config is not None:
            calls = attention_calls(config, Sizes(n_seq, n_extra, n_res), dtype=torch_dtype, device=device, arch=arch, gradients=grad)
            typer.echo("\n\n".join(map(str, calls)))
            return
        leading, q_len = _sizes(f"1,{n_seq}" if batch is None else batch), n_res if q_len is None else q_len
        k_len = q_len if k_len is None else k_len
        with torch.device("meta"):
            q, k = (torch.empty(*leading, length, heads, d, dtype=torch_dtype, requires_grad=grad) for length in (q_len, k_len))
            axes = _bias_axes(bias, leading)
            biases = [] if axes is None else [torch.empty(*axes, heads, q_len, k_len, dtype=torch_dtype, requires_grad=grad)]
            keys = torch.empty(*leading, 1, 1, k_len, dtype=torch.bool) if mask else None
        typer.echo(str(explain(q, k, k, biases=biases, mask=keys, device=device, arch=arch)))


def _sizes(text: str) -> list[int]:
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    if not all(size.isdecimal() for size in sizes):
        raise typer.BadParameter(f"{text!r} is no list of sizes; write them as in 1,128.", param_hint="--batch")
    return [int(size) for size in sizes]


def _bias_axes(kind: str, leading: list[int]) -> list[int] | None:
    if kind not in ("none", "pair", "full"):
        raise typer.BadParameter(f"{kind!r}; allowed are none, pair and full.", param_hint="--bias")
    return {"none": None, "pair": [*leading[:-1], *(1 for _ in leading[-1:])], "full": leading}[kind]
