"""What all commands share: exit codes, errors in words, a progress bar."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evoattn.errors import EvoattnError, MemoryLimitError
from evoattn.runs.memory import out_of_memory

EXIT_CODES = "Exit codes: 0 done; 1 refused or failed, with a message that says why; 2 wrong usage; 3 out of memory; 130 interrupted."
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

Force = Annotated[bool, typer.Option("--force", help="Replace what an earlier call wrote.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

Show = Callable[[str, str, int, int], None]
"""Called with (what is done, unit, done, in all)."""


@contextmanager
def progress() -> Iterator[Show | None]:
    """A bar on standard error, where that is a terminal; each unit starts a new one in its place."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    counts = MofNCompleteColumn(), TextColumn("{task.fields[unit]}, ran"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()
    columns = TextColumn("{task.description}"), BarColumn(), *counts
    with Progress(*columns, console=console, transient=True, speed_estimate_period=3600) as bar:  # a block may take minutes
        unit_shown, task = "", bar.add_task("Preparing", total=None, unit="")

        def show(description: str, unit: str, done: int, total: int) -> None:
            nonlocal unit_shown, task
            if unit != unit_shown:
                bar.remove_task(task)
                unit_shown, task = unit, TaskID(bar.add_task(description, total=total, unit=unit))
            bar.update(task, description=description, completed=done, total=total)

        yield show


def show_blocks(show: Show | None) -> Callable[[int, int], None] | None:
    """For the blocks of a trunk."""
    return None if show is None else lambda done, total: show("Running" if done < total else "Writing", "blocks", done, total)


def show_search(show: Show | None) -> Callable[[int, int], None] | None:
    """For the bytes of a database."""
    return None if show is None else lambda done, total: show("Searching", "% of the database", 100 * done // total, 100)


@contextmanager
def usage() -> Iterator[None]:
    """A value that the library refuses is wrong usage, told in the library's words."""
    try:
        yield
    except EvoattnError as error:
        raise typer.BadParameter(str(error)) from None


@contextmanager
def reported() -> Iterator[None]:
    """Turn what may go wrong into one message on standard error and an exit code; a fault of the program keeps its traceback."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except MemoryLimitError as error:
        fail(3, str(error))
    except (EvoattnError, OSError) as error:
        fail(1, str(error))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        said = str(error).splitlines() or ["no more was said"]
        fail(3, f"out of memory ({said[0]}). Take fewer rows (--max-seqs, --max-extra), or --dtype bf16.")
    except KeyboardInterrupt:
        fail(130, "interrupted; no half-written output is left.")
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def fail(code: int, message: str) -> NoReturn:
    typer.secho(f"evoattn: {message}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)
