"""The command line: ``evoattn run``, ``evoattn info`` and ``evoattn explain``.

Exit codes: 0 done; 1 refused or failed, with a message that says why; 2 wrong usage; 3 out of memory; 130 interrupted (Ctrl-C, SIGTERM).
Results go to standard output, progress and errors to standard error.
"""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evoattn.config import PRESETS
from evoattn.config import preset as preset_named
from evoattn.errors import EvoattnError
from evoattn.ops import ATTENTION, explain
from evoattn.runs import RunSettings, Sizes, attention_calls, environment
from evoattn.runs import run as run_trunk
from evoattn.runs.environment import describe_environment
from evoattn.runs.settings import DEVICES, DTYPES, FORMATS, dtype_named
from evoattn.runs.summary import summary
from evoattn.runs.watch import evoattn_version

EXIT_CODES = "Exit codes: 0 done; 1 refused or failed, with a message that says why; 2 wrong usage; 3 out of memory; 130 interrupted."

app = typer.Typer(
    name="evoattn", no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)  # fmt: skip


def main() -> None:
    app(prog_name="evoattn")


@app.callback(invoke_without_command=True, epilog=EXIT_CODES)
def _root(version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version and exit.")] = False) -> None:
    """Evoformer-style attention on protein alignments. Gives representations and attention maps, not coordinates."""
    if version:
        typer.echo(f"evoattn {evoattn_version()}")
        raise typer.Exit


Input = Annotated[
    Path, typer.Argument(metavar="INPUT", help="Alignment: a3m, aligned FASTA, Stockholm, Clustal, or one FASTA sequence; may be gzipped.")
]
Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"Architecture: {', '.join(PRESETS)}. [default: af2-4, or af2 with --weights]")
]
Blocks = Annotated[int | None, typer.Option(min=1, help="Evoformer blocks, instead of the preset's.")]
Weights = Annotated[Path | None, typer.Option(metavar="NPZ", help="AlphaFold 2 parameters, params_model_*.npz. [default: random ones]")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder to write. [default: <INPUT without suffix>_evoattn]")]
MaxSeqs = Annotated[int, typer.Option(min=1, help="Rows of the MSA representation: the query and the next ones in file order.")]
MaxExtra = Annotated[int, typer.Option(min=0, help="Rows after those that go to the extra-MSA stack.")]
Recycles = Annotated[int, typer.Option(min=0, help="Further passes, each starting from what the one before returned.")]
Dtype = Annotated[str, typer.Option(metavar="|".join(DTYPES), help="Of parameters, features and results.")]
Device = Annotated[str, typer.Option(metavar="|".join(DEVICES), help="auto is cuda where there is one.")]
BackendName = Annotated[str, typer.Option(metavar="NAME", help=f"Of attention: {', '.join(ATTENTION.names)}, or auto: the first that can.")]
Seed = Annotated[int, typer.Option(help="Of the random parameters.")]
Save = Annotated[str, typer.Option(metavar="NAMES", help="Which representations to write, separated by commas.")]
Format = Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Of the representations.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: torch's choice]")]
Force = Annotated[bool, typer.Option("--force", help="Replace the folder of an earlier run.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command(epilog=EXIT_CODES)
def run(
    input: Input,
    preset: Preset = None,
    blocks: Blocks = None,
    weights: Weights = None,
    out: Out = None,
    max_seqs: MaxSeqs = 128,
    max_extra: MaxExtra = 1024,
    recycles: Recycles = 0,
    dtype: Dtype = "fp32",
    device: Device = "auto",
    backend: BackendName = "auto",
    seed: Seed = 0,
    save: Save = "msa,pair,single",
    format: Format = "safetensors",
    threads: Threads = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Run an Evoformer trunk on an alignment.

    Writes a folder with the representations (msa, pair, single), run.json (what was read, built, chosen and measured) and report.png.
    Without --weights the parameters are random: good for a try and for timing, and meaningless biologically.
    """
    with _usage():
        settings = RunSettings(
            input=input, out=out, preset=preset, blocks=blocks, weights=weights, max_seqs=max_seqs, max_extra=max_extra,
            recycles=recycles, dtype=dtype, device=device, backend=backend, seed=seed, save=tuple(save.replace(" ", "").split(",")),
            format=format, force=force,
        )  # fmt: skip
    if threads is not None:
        torch.set_num_threads(threads)
    with _reported():
        with _progress() as on_block:
            record = run_trunk(settings, on_block)
        typer.echo(json.dumps(record, indent=2) if as_json else summary(record))


@app.command()
def info(as_json: Json = False) -> None:
    """Show versions, devices, attention backends (found, usable, why not) and optional packages."""
    found = environment()
    typer.echo(json.dumps(found, indent=2) if as_json else describe_environment(found))


@app.command("explain", epilog=EXIT_CODES)
def explain_command(
    q_len: Annotated[int, typer.Option(min=0, help="Length of the query axis.")] = 256,
    k_len: Annotated[int | None, typer.Option(min=0, help="Length of the key axis. [default: that of the queries]")] = None,
    batch: Annotated[str, typer.Option(metavar="SIZES", help="Leading axes, separated by commas.")] = "1,128",
    heads: Annotated[int, typer.Option(min=1, help="Attention heads.")] = 8,
    d: Annotated[int, typer.Option("--d", min=1, help="Width of a head.")] = 32,
    bias: Annotated[str, typer.Option(metavar="none|pair|full", help="pair: shared along the last of --batch; full: not.")] = "pair",
    mask: Annotated[bool, typer.Option("--mask/--no-mask", help="Whether there is a mask of keys.")] = False,
    preset: Annotated[str | None, typer.Option(metavar="NAME", help=f"Instead: every attention of {', '.join(PRESETS)}.")] = None,
    n_seq: Annotated[int, typer.Option(min=1, help="With --preset: rows of the MSA representation.")] = 128,
    n_extra: Annotated[int, typer.Option(min=0, help="With --preset: rows of the extra-MSA stack.")] = 1024,
    n_res: Annotated[int, typer.Option(min=1, help="With --preset: residues.")] = 256,
    dtype: Dtype = "fp32",
    device: Annotated[str, typer.Option(metavar="cpu|cuda", help="As if the tensors were there.")] = "cpu",
    grad: Annotated[bool, typer.Option("--grad/--no-grad", help="Whether gradients are wanted, of the bias too.")] = False,
) -> None:
    """Show which backend an attention takes, and every reason against the others. Nothing is computed.

    Asks for one attention by its sizes, MSA row attention of 128 x 256 by default; or with --preset for each kind in an architecture.
    """
    with _usage():
        torch_dtype = dtype_named(dtype)
        config = None if preset is None else preset_named(preset)
    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{device!r}; allowed are cpu and cuda.", param_hint="--device")
    with _reported():
        if config is not None:
            calls = attention_calls(config, Sizes(n_seq, n_extra, n_res), dtype=torch_dtype, device=device, gradients=grad)
            typer.echo("\n\n".join(map(str, calls)))
            return
        leading, k_len = _sizes(batch), q_len if k_len is None else k_len
        with torch.device("meta"):
            q, k = (torch.empty(*leading, length, heads, d, dtype=torch_dtype, requires_grad=grad) for length in (q_len, k_len))
            axes = _bias_axes(bias, leading)
            biases = [] if axes is None else [torch.empty(*axes, heads, q_len, k_len, dtype=torch_dtype, requires_grad=grad)]
            keys = torch.empty(*leading, 1, 1, k_len, dtype=torch.bool) if mask else None
        typer.echo(str(explain(q, k, k, biases=biases, mask=keys, device=device)))


def _sizes(text: str) -> list[int]:
    sizes = [size.strip() for size in text.split(",") if size.strip()]
    if not all(size.isdecimal() for size in sizes):
        raise typer.BadParameter(f"{text!r} is no list of sizes; write them as in 1,128.", param_hint="--batch")
    return [int(size) for size in sizes]


def _bias_axes(kind: str, leading: list[int]) -> list[int] | None:
    if kind not in ("none", "pair", "full"):
        raise typer.BadParameter(f"{kind!r}; allowed are none, pair and full.", param_hint="--bias")
    return {"none": None, "pair": [*leading[:-1], *(1 for _ in leading[-1:])], "full": leading}[kind]


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """A bar of blocks on standard error, where that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    counts = MofNCompleteColumn(), TextColumn("blocks, ran"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), *counts
    with Progress(*columns, console=console, transient=True, speed_estimate_period=3600) as bar:  # a block may take minutes
        task = bar.add_task("Preparing", total=None)
        yield lambda done, total: bar.update(task, description="Running" if done < total else "Writing", completed=done, total=total)


@contextmanager
def _usage() -> Iterator[None]:
    """A value that the library refuses is wrong usage, told in the library's words."""
    try:
        yield
    except EvoattnError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def _reported() -> Iterator[None]:
    """Turn what may go wrong into one message on standard error and an exit code; a fault of the program keeps its traceback."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (EvoattnError, OSError) as error:
        _fail(1, str(error))
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
            raise
        _fail(3, f"out of memory ({str(error).splitlines()[0]}). Take fewer rows (--max-seqs, --max-extra), or --dtype bf16.")
    except KeyboardInterrupt:
        _fail(130, "interrupted; no half-written output is left.")
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _fail(code: int, message: str) -> NoReturn:
    typer.secho(f"evoattn: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)
