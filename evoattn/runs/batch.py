"""A folder of alignments, run one after another: what was done stays, what failed is listed, and a second call goes on."""

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evoattn.errors import ConfigError, EvoattnError
from evoattn.io.search import OnProgress
from evoattn.io.suffixes import ALIGNMENTS, suffix, visible_files
from evoattn.runs.memory import out_of_memory
from evoattn.runs.pipeline import run
from evoattn.runs.record import counted, files_record, settings_record
from evoattn.runs.settings import RunSettings
from evoattn.runs.summary import section
from evoattn.runs.watch import OnBlock


@dataclass
class Batch:
    """What became of the files of a folder; paths as text, errors in words."""

    out: str
    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Done by an earlier call with the same settings."""
    failed: dict[str, str] = field(default_factory=dict)
    left_alone: list[str] = field(default_factory=list)
    """Of other suffixes."""

    def __str__(self) -> str:
        sections = [("Done", [f"{counted(len(self.done), 'file')}, in {self.out}"])]
        if self.skipped:
            sections.append(("Skipped", [f"{counted(len(self.skipped), 'file')} done before (--force runs them again)"]))
        if self.left_alone:
            shown = ", ".join(self.left_alone[:5]) + (", ..." if len(self.left_alone) > 5 else "")
            sections.append(("Left alone", [f"{counted(len(self.left_alone), 'file')} whose suffix is of no alignment: {shown}"]))
        sections.append(("Failed", [f"{file}: {error}" for file, error in self.failed.items()] or ["none"]))
        return "\n".join(section(title, lines) for title, lines in sections)


def run_folder(
    settings: RunSettings,
    on_file: Callable[[str], None] = lambda text: None,
    on_block: OnBlock | None = None,
    on_search: OnProgress | None = None,
) -> Batch:
    """Run each alignment of the folder `settings.input` into a folder of its name below `settings.folder`.

    A file whose run is there, of the same content and with the same settings, is skipped unless `settings.force`. A file whose run
    fails, or is there with other settings, is listed with the reason, and the next one is run.

    Args:
        settings: of every run; `input` is the folder.
        on_file: called with one line of text as each file begins and ends.
        on_block, on_search: see :func:`evoattn.runs.run`.

    Raises:
        ConfigError: the folder has no alignment, or the settings are for a single file or complex.
    """
    if settings.chains:
        raise ConfigError("a folder is given by itself, and its files are run one by one; the files of a complex are given by name.")
    files, left_alone = alignments_in(settings.input)
    batch = Batch(str(settings.folder), left_alone=left_alone)
    for number, path in enumerate(files, 1):
        own = replace(settings, input=path, out=settings.folder / path.name)
        start = f"[{number}/{len(files)}] {path.name}"
        other = None if settings.force else differences(own)
        if other == []:
            batch.skipped.append(path.name)
            on_file(f"{start}: done before")
            continue
        on_file(f"{start} ...")
        try:
            if other:
                raise ConfigError(
                    f"{own.folder} holds an earlier run with another {', '.join(other)}; give another --out, or --force to replace it."
                )
            record = run(own, on_block, on_search)
        except Exception as error:  # the other files are run all the same
            batch.failed[path.name] = _reason(error)
            on_file(f"{start}: FAILED: {batch.failed[path.name]}")
        else:
            batch.done.append(path.name)
            on_file(f"{start}: {_described(record)}")
    return batch


def alignments_in(folder: Path) -> tuple[list[Path], list[str]]:
    """The files of a folder to run, by name, and the names of the others; hidden files and folders in it count as neither.

    Raises ConfigError if there is none to run.
    """
    files = visible_files(folder)
    chosen = [path for path in files if suffix(path) in ALIGNMENTS]
    if not chosen:
        raise ConfigError(f"the folder {folder} has no alignment: none of {counted(len(files), 'file')} ends in {', '.join(ALIGNMENTS)}.")
    return chosen, [path.name for path in files if path not in chosen]


def differences(settings: RunSettings) -> list[str] | None:
    """What of an earlier run in the output folder differs from these settings: [] if nothing does, None if there is no earlier run."""
    try:
        record = json.loads((settings.folder / "run.json").read_text(encoding="utf-8"))
        before, content = record["settings"], record["input"]["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    now = json.loads(json.dumps(settings_record(settings)))
    changed = [name for name, value in now.items() if before.get(name) != value]
    return changed if content == files_record(settings) else ["content of the file", *changed]


def _reason(error: Exception) -> str:
    """In words; a fault of the program with its traceback."""
    if isinstance(error, EvoattnError | OSError):
        return str(error)
    if out_of_memory(error):
        return f"out of memory ({str(error).splitlines()[0]})"
    return f"a fault of the program: {''.join(traceback.format_exception(error))}"


def _described(record: dict[str, Any]) -> str:
    source, seconds = record["input"], sum(record["seconds"].values())
    return f"{counted(source['rows'], 'row')} x {counted(source['columns'], 'column')}, {seconds:.1f} s"
