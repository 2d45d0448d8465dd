"""Protein families: alignments with or without a structure, found in a folder."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from evoattn.errors import ConfigError, MSAError, ShapeError, StructureError
from evoattn.io import MSA, drop_repeats, read_msa
from evoattn.io.suffixes import ALIGNMENTS, STRUCTURES, stem, suffix, visible_files
from evoattn.train.structure import QueryStructure, read_structure


@dataclass(frozen=True, eq=False)
class Family:
    """One alignment to train on, and where its query's residues are, if that is known.

    Attributes:
        name: alignments of one name are of one family, and never stand on both sides of a split.
        msa: of proteins, without repeated rows.
        pseudo_beta: C-beta in Angstrom, C-alpha of glycine; NaN where it is not resolved.
        notes: what was noticed when it was read.
    """

    name: str
    msa: MSA
    pseudo_beta: Float32[np.ndarray, "n 3"] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.msa.alphabet != "protein":
            raise MSAError(f"the family {self.name!r} is of {self.msa.alphabet}; training takes proteins.")
        if self.pseudo_beta is not None and len(self.pseudo_beta) != self.msa.n_res:
            raise ShapeError(
                f"the family {self.name!r} has {self.msa.n_res} columns, and positions of {len(self.pseudo_beta)} residues; give one "
                "position per column, NaN where there is none."
            )


def read_family(
    alignment: Path, structures: Sequence[Path] = (), *, name: str | None = None, chain: str | None = None, max_rows: int | None = None
) -> Family:
    """Read an alignment, and the one of `structures` whose chain is most like the query.

    A structure that is unlike the query is passed over, and said so in the notes.

    Args:
        name: by default that of the file. chain: of the structure; by default the one most like the query. max_rows: of the alignment.

    Raises:
        MSAError: the alignment cannot be read, or is not of proteins.
    """
    msa = drop_repeats(read_msa(alignment, max_rows=max_rows))
    read: list[QueryStructure] = []
    notes: list[str] = []
    for path in structures:
        try:
            read.append(read_structure(path, msa.query, chain=chain))
        except StructureError as error:
            notes.append(str(error))
    best = max(read, key=lambda one: one.account.identical, default=None)
    if best is not None:
        notes.append(f"{best.source}: {best.account}")
    positions = None if best is None else best.cb.astype(np.float32)
    return Family(name or stem(alignment), msa, positions, tuple(notes))


def find_families(folder: str | Path, *, max_rows: int | None = None) -> list[Family]:
    """The families in a folder: each folder in it is one, with all its alignments; so is each alignment beside them.

    The structure of a family is a PDB or mmCIF file in its folder; of an alignment by itself, one of the same name. Alignments of a single
    sequence are passed over, since nothing can be learnt from their rows.

    Raises:
        ConfigError: there is no such folder, or no alignment in it. MSAError: an alignment cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; it should hold one folder or alignment file per family.")
    found: list[Family] = []
    for path in _alignments(visible_files(folder)):
        structures = [other for other in visible_files(folder) if suffix(other) in STRUCTURES and stem(other) == stem(path)]
        found.append(read_family(path, structures, max_rows=max_rows))
    for own in sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        files = visible_files(own)
        structures = [path for path in files if suffix(path) in STRUCTURES]
        found += [read_family(path, structures, name=own.name, max_rows=max_rows) for path in _alignments(files)]
    found = [family for family in found if family.msa.n_seq > 1]
    if not found:
        raise ConfigError(
            f"the folder {folder} and the folders in it have no alignment of two rows or more that ends in {', '.join(ALIGNMENTS)}."
        )
    return found


def split_families(families: Iterable[Family], held_out: Sequence[str]) -> tuple[list[Family], list[Family]]:
    """(families to train on, held-out families), by name.

    Raises:
        ConfigError: a name is of no family, or nothing is left to train on.
    """
    families = list(families)
    names = {family.name for family in families}
    if unknown := [name for name in held_out if name not in names]:
        raise ConfigError(f"held_out has {unknown[0]!r}, which is no family; there are {', '.join(sorted(names))}.")
    training = [family for family in families if family.name not in held_out]
    if not training:
        raise ConfigError(f"all families ({', '.join(sorted(names))}) are held out; leave one to train on.")
    return training, [family for family in families if family.name in held_out]


def _alignments(files: Iterable[Path]) -> list[Path]:
    return [path for path in files if suffix(path) in ALIGNMENTS]
