"""Writing a run's folder: all of it or nothing."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from evoattn.errors import ConfigError

OURS: Final = (
    "representations.safetensors", "representations.npz", "run.json", "report.png", "contacts.png", "contacts.csv", "contacts.npz",
    "alignment.a3m",
)  # fmt: skip
"""Every file that a command writes into a folder of its own; only a folder with nothing else in it is ever replaced."""


def refuse_output(folder: Path, *, force: bool) -> None:
    """Raise ConfigError unless a run may write `folder`: it is absent or empty, or an earlier run's and `force` is given."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise ConfigError(f"the output {folder} exists and is no folder; give another --out.")
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in OURS)
    if strangers:
        shown = ", ".join(strangers[:3]) + (", ..." if len(strangers) > 3 else "")
        raise ConfigError(
            f"the output folder {folder} holds files that evoattn did not write ({shown}), and is left alone, with --force too; "
            "give another --out."
        )
    if any(folder.iterdir()) and not force:
        raise ConfigError(f"the output folder {folder} holds an earlier run; give another --out, or --force to replace it.")


@contextmanager
def new_folder(folder: Path, *, force: bool) -> Iterator[Path]:
    """A temporary folder beside `folder`, which takes its place when the body ends, and is removed if the body raises."""
    refuse_output(folder, force=force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary, earlier = (folder.with_name(f".{folder.name}.{os.getpid()}.{what}") for what in ("new", "old"))
    temporary.mkdir()
    try:
        yield temporary
        refuse_output(folder, force=force)  # another run may have ended meanwhile
        if folder.exists():
            os.replace(folder, earlier)
        os.replace(temporary, folder)
    finally:
        if earlier.exists() and not folder.exists():  # interrupted between the two
            os.replace(earlier, folder)
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)


def write_tensors(folder: Path, file_format: str, tensors: Mapping[str, Tensor], names: Sequence[str], query: str, weights: str) -> Path:
    """Write ``representations.<format>``; numpy has no bfloat16, so an npz holds those tensors as float32.

    The names of the rows, the query's letters and where the weights are from are metadata in a safetensors file (names as JSON), and arrays
    of strings in an npz.
    """
    path = folder / f"representations.{file_format}"
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if file_format == "npz":
        arrays: dict[str, Any] = {name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in ready.items()}
        arrays |= {"names": np.array(names), "query": np.array(query), "weights": np.array(weights)}
        np.savez(path, **arrays)
    else:
        save_file(ready, path, metadata={"names": json.dumps(list(names)), "query": query, "weights": weights})
        path.chmod(folder.stat().st_mode & 0o666)  # save_file makes it private, whatever the umask says
    return path


def refuse_file(path: Path, *, force: bool) -> None:
    """Raise ConfigError if there is a file of that name and no `force`, if it is something else than a file, or has no folder."""
    if not path.parent.is_dir():
        raise ConfigError(f"the output {path} is to stand in a folder that does not exist; make the folder first.")
    if path.is_dir():
        raise ConfigError(f"the output {path} is a folder; give the name of a file.")
    if path.exists() and not force:
        raise ConfigError(f"the output {path} exists; give another name, or --force to replace it.")


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
