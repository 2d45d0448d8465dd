"""Which files of a folder are alignments, and which structures: by name. How one is read is decided by what it holds."""

from pathlib import Path
from typing import Final

PACKED: Final = (".gz", ".bz2", ".xz", ".zst")

ALIGNMENTS: Final = (
    ".a2m", ".a3m", ".afa", ".aln", ".clustal", ".clw", ".fa", ".faa", ".fas", ".fasta", ".pro", ".sel", ".slx", ".sth", ".stk", ".sto",
    ".stockholm",
)  # fmt: skip
"""Each also with a suffix of compression."""

STRUCTURES: Final = (".cif", ".ent", ".mmcif", ".pdb")
"""Likewise."""


def suffix(path: Path) -> str:
    """In lower case, without that of compression; "" if there is none."""
    suffixes = [one.lower() for one in path.suffixes if one.lower() not in PACKED]
    return suffixes[-1] if suffixes else ""


def stem(path: Path) -> str:
    """The name without its suffix, and without that of compression."""
    return Path(path.stem).stem if path.suffix.lower() in PACKED else path.stem


def visible_files(folder: Path) -> list[Path]:
    """The files in a folder by name, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
