"""A protein structure in the columns of an alignment: chains of a PDB or mmCIF file, and which residue of the query each residue is."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from io import StringIO
from pathlib import Path
from string import ascii_letters
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float64, Int64

from evoattn.errors import MSAError, StructureError
from evoattn.io.residues import AMINO_ACIDS
from evoattn.io.sources import opened

LEAST_IDENTITY: Final = 0.3
"""Below this identity a chain is refused: unrelated sequences reach 0.2 when they are aligned over their whole length."""

LEAST_OVERLAP: Final = 0.5
"""A chain must align with this part of its residues, or with this part of those of the query: a few may agree by chance."""

COPY_IDENTITY: Final = 0.9
"""From this identity on another chain counts as a copy of the chosen one."""

CHAIN_BREAK: Final = 4.5
"""C-alpha distance in Angstrom of chain neighbours above which residues are missing between them; bonded ones have 2.9 (cis) or 3.8."""

AMINO_ACID_NAMES: Final = {
    "ALA": "A", "ARG": "R", "ASN": "N", "ASP": "D", "CYS": "C", "GLN": "Q", "GLU": "E", "GLY": "G", "HIS": "H", "ILE": "I",
    "LEU": "L", "LYS": "K", "MET": "M", "PHE": "F", "PRO": "P", "SER": "S", "THR": "T", "TRP": "W", "TYR": "Y", "VAL": "V",
}  # fmt: skip
"""The twenty standard residues and their letters."""

LISTED: Final = 20
"""Residues that an account names one by one in words; all of them are in its attributes."""

UNKNOWN_LETTER: Final = "X"

_READ_AS: Final = {"SEC": "C", "PYL": "X", "UNK": "X"}
"""Beside Biopython's table of modified residues; letters as :mod:`evoattn.io.residues` reads them."""


@dataclass(frozen=True, eq=False)
class Chain:
    """The observed residues of one protein chain, in the order of the file."""

    name: str
    """The author's, one letter or more."""
    letters: str
    """One for each residue; a modified residue has its parent's (MSE: ``M``), an unknown one ``X``."""
    numbers: tuple[str, ...]
    """The author's residue numbers, with the insertion code: ``23``, ``23A``."""
    ca: Float64[np.ndarray, "r 3"]
    """C-alpha, in Angstrom."""
    cb: Float64[np.ndarray, "r 3"]
    """C-beta, of glycine C-alpha; NaN where it is not observed."""
    notes: tuple[str, ...] = ()
    """Modified residues, alternative locations, missing atoms."""


@dataclass(frozen=True)
class StructureAccount:
    """How a chain lies on the query. Residues are named as ``N23``: letter, author's number."""

    chain: str
    chosen: str
    """Why this chain."""
    identical: int
    observed: int
    """Residues of the query that the chain has."""
    differ: tuple[str, ...] = ()
    """As ``N23P``: the query's letter, the author's number, the chain's letter."""
    unobserved: tuple[int, ...] = ()
    """Residues of the query, from 1, that the chain does not have."""
    left_out: tuple[str, ...] = ()
    """Residues of the chain that the query does not have."""
    copies: tuple[str, ...] = ()
    """Further chains of the same sequence."""
    notes: tuple[str, ...] = ()

    @property
    def identity(self) -> float:
        return self.identical / max(1, self.observed)

    def __str__(self) -> str:
        lines = [
            f"chain {self.chain} ({self.chosen}): {self.observed} of {self.observed + len(self.unobserved)} residues of the query "
            f"observed, {self.identical} of them identical"
        ]
        named = {"different (query, number, chain)": self.differ, "not in the query": self.left_out, "copies of the chain": self.copies}
        lines += [f"{what}: {_listed(names)}" for what, names in named.items() if names]
        lines += [f"not observed: {_listed(self.unobserved)}"] if self.unobserved else []
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True, eq=False)
class QueryStructure:
    """A chain in the columns of the query: everything is [N_res], and NaN or empty where the residue is not observed."""

    source: str
    query: str
    letters: str
    """Of the chain, ``-`` where not observed."""
    numbers: tuple[str, ...]
    """The author's residue numbers with insertion codes, "" where not observed."""
    cb: Float64[np.ndarray, "n 3"]
    """C-beta in Angstrom, C-alpha of glycine."""
    account: StructureAccount
    copies: tuple[Float64[np.ndarray, "n 3"], ...] = ()
    """C-beta of the further chains of the same sequence."""

    @property
    def resolved(self) -> Bool[np.ndarray, " n"]:
        """Where there is a C-beta."""
        return ~np.isnan(self.cb[:, 0])

    @cached_property
    def distances(self) -> Float64[np.ndarray, "n n"]:
        """C-beta distances in Angstrom, NaN where one of the two is not observed."""
        return _distances(self.cb, self.cb)

    @cached_property
    def distances_across(self) -> Float64[np.ndarray, "n n"]:
        """The shortest C-beta distance of residue i of this chain to residue j of a copy, or j to i; infinite without copies."""
        shortest = np.full((len(self.query), len(self.query)), np.inf)
        for copy in self.copies:
            across = _distances(self.cb, copy)
            shortest = np.fmin(shortest, np.fmin(across, across.T))
        return shortest


def read_structure(path: str | Path, query: str, *, chain: str | None = None) -> QueryStructure:
    """Read a PDB or mmCIF file, which may be compressed, and lay one of its chains on the query.

    Chain and query are aligned globally (BLOSUM62, gaps 11 + 1, free at the ends). Where the chain is broken and its numbers jump, as many
    residues are taken to be missing. Of alternative locations the fullest counts, at a tie the first; of several models the first.

    Args:
        path: the file; its format is told by its content.
        query: the letters of row 0 of the alignment (:attr:`evoattn.MSA.query`).
        chain: the author's name; None takes the chain with most residues identical to the query, at a tie the first.

    Raises:
        StructureError: the file cannot be read, has no such chain, or the chain is another protein than the query.
    """
    source = str(path)
    if strange := set(query) - set(AMINO_ACIDS + UNKNOWN_LETTER):
        found = ", ".join(sorted(strange))
        raise StructureError(f"the query has the letters {found}; a structure is laid on a protein ({AMINO_ACIDS}, X).")
    chains = read_chains(path)
    if chain is not None and chain not in {one.name for one in chains}:
        there = ", ".join(f"{one.name} ({len(one.letters)} residues)" for one in chains)
        raise StructureError(f"{source} has no protein chain {chain!r}; it has {there}.")
    placed = {one.name: _place(one, query) for one in chains}
    identical = {one.name: _count_identical(one, placed[one.name], query) for one in chains}
    best = max(chains, key=lambda one: identical[one.name]) if chain is None else next(one for one in chains if one.name == chain)
    account = _account(best, placed[best.name], query, "the only chain" if len(chains) == 1 else _why(chain, len(chains)))
    overlap = account.observed / min(len(query), len(best.letters))
    if account.identity < LEAST_IDENTITY or overlap < LEAST_OVERLAP:
        raise StructureError(
            f"{source}: chain {best.name} is not of this family: of its {len(best.letters)} residues {account.observed} align to the "
            f"{len(query)} of the query and {account.identical} of those are identical; at least {100 * LEAST_OVERLAP:.0f} % of the "
            f"shorter must align, and {100 * LEAST_IDENTITY:.0f} % of those be identical. Give the structure of the query or of a close "
            f"homolog, or another of the chains {', '.join(one.name for one in chains)}."
        )
    copies = [one for one in chains if one is not best and _is_copy(placed[one.name], identical[one.name])]
    return QueryStructure(
        source,
        query,
        "".join("-" if at < 0 else best.letters[at] for at in placed[best.name]),
        tuple("" if at < 0 else best.numbers[at] for at in placed[best.name]),
        _taken(best.cb, placed[best.name]),
        replace(account, copies=tuple(copy.name for copy in copies)),
        tuple(_taken(copy.cb, placed[copy.name]) for copy in copies),
    )


def read_chains(path: str | Path) -> tuple[Chain, ...]:
    """The protein chains of the first model of a PDB or mmCIF file, in the order of the file. Raises StructureError if there is none."""
    text = _text(path)
    models = list(_parsed(text, str(path)))
    extra = (f"models of the file: {len(models)}; the first is read",) if len(models) > 1 else ()
    chains = (_chain(chain, extra) for chain in (models[0] if models else ()))
    found = tuple(chain for chain in chains if chain is not None)
    if not found:
        raise StructureError(f"{path} has no protein chain: it has no residue with a C-alpha atom. Give a PDB or mmCIF file of a protein.")
    return found


def _text(path: str | Path) -> str:
    try:
        with opened(path) as (lines, _):
            return "\n".join(line.decode("utf-8", "replace") for _, line in lines.block())
    except MSAError as error:
        raise StructureError(str(error)) from error


def _parsed(text: str, source: str) -> Any:
    from Bio.PDB import MMCIFParser, PDBParser  # takes a while to import
    from Bio.PDB.PDBExceptions import PDBException

    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    parser = MMCIFParser(QUIET=True) if first.startswith("data_") else PDBParser(QUIET=True)
    try:
        return parser.get_structure(source, StringIO(text))
    except (PDBException, ValueError, KeyError, IndexError, TypeError) as error:
        raise StructureError(f"{source} cannot be read as PDB or mmCIF: {type(error).__name__}: {error}.") from error


def _chain(chain: Any, notes: tuple[str, ...]) -> Chain | None:
    residues = list(_residues(chain))
    if not residues:
        return None
    modified = [f"{one.resname} {_number(one)} as {letter}" for one, letter in residues if one.resname not in AMINO_ACID_NAMES]
    alternative = sum(any(atom.is_disordered() for atom in residue) for residue, _ in residues)
    cb = np.array([_coordinates(residue, "CA" if letter == "G" else "CB") for residue, letter in residues])
    without = int(np.isnan(cb[:, 0]).sum())
    counts = {"residues with alternative locations (the fullest is taken)": alternative, "residues without C-beta": without}
    said = [f"{what}: {count}" for what, count in counts.items() if count]
    return Chain(
        chain.id,
        "".join(letter for _, letter in residues),
        tuple(_number(residue) for residue, _ in residues),
        np.array([_coordinates(residue, "CA") for residue, _ in residues]),
        cb,
        (*notes, *([f"modified residues: {', '.join(modified)}"] if modified else []), *said),
    )


def _residues(chain: Any) -> Iterator[tuple[Any, str]]:
    """Each residue of the protein with its letter; of several at one number the fullest, at a tie the first."""
    places: dict[str, list[Any]] = {}
    for entry in chain:
        for residue in entry.disordered_get_list() if entry.is_disordered() == 2 else [entry]:
            if "CA" in residue and residue["CA"].element != "CA" and _letter(residue):
                places.setdefault(_number(residue), []).append(residue)
    for residues in places.values():
        chosen = max(residues, key=lambda residue: residue["CA"].get_occupancy() or 0.0)
        yield chosen, _letter(chosen)


def _letter(residue: Any) -> str:
    """One letter, or "" for what is no part of the chain: waters, ligands, free amino acids (HETATM of a standard name)."""
    from Bio.Data.PDBData import protein_letters_3to1_extended

    name, hetero = residue.resname.strip(), bool(residue.id[0].strip())
    if name in AMINO_ACID_NAMES:
        return "" if hetero else AMINO_ACID_NAMES[name]
    letter = _READ_AS.get(name) or protein_letters_3to1_extended.get(name, "" if hetero else "X")
    return "X" if letter and letter not in AMINO_ACIDS else letter


def _number(residue: Any) -> str:
    return f"{residue.id[1]}{residue.id[2].strip()}"


def _coordinates(residue: Any, atom: str) -> list[float]:
    return [float(x) for x in residue[atom].coord] if atom in residue else [np.nan] * 3


def _place(chain: Chain, query: str) -> Int64[np.ndarray, " n"]:
    """For each residue of the query its residue of the chain, -1 where there is none."""
    spread, origin = _spread(chain, len(query))
    alignment = _aligner().align(query, spread)[0]
    index = np.full(len(query), -1, np.int64)
    for (start, end), (first, _) in zip(*alignment.aligned, strict=True):
        index[start:end] = origin[first : first + end - start]
    return index


def _spread(chain: Chain, most: int) -> tuple[str, Int64[np.ndarray, " l"]]:
    """The letters of the chain with an unknown residue for each that is missing at a break, and where each letter is from (-1: missing).

    Residues with an insertion code are in lower case: see :func:`_aligner`.
    """
    letters, origin, before = [], [], None
    for k, (letter, number) in enumerate(zip(chain.letters, chain.numbers, strict=True)):
        plain = int(number.rstrip(ascii_letters))
        missing = 0 if before is None else plain - before - 1
        if 0 < missing <= most and np.linalg.norm(chain.ca[k] - chain.ca[k - 1]) > CHAIN_BREAK:
            letters += ["X"] * missing
            origin += [-1] * missing
        letters.append(letter if number.lstrip("-").isdecimal() else letter.lower())
        origin.append(k)
        before = plain
    return "".join(letters), np.array(origin, np.int64)


@cache
def _aligner() -> Any:
    """Global alignment with free ends. X costs nothing. A residue with an insertion code, in lower case, scores a hair less: where either
    of two residues may be the one that the query does not have, it is the one with the code."""
    from Bio.Align import PairwiseAligner, substitution_matrices

    blosum = substitution_matrices.load("BLOSUM62")
    upper = AMINO_ACIDS + UNKNOWN_LETTER
    scores = substitution_matrices.Array(upper + upper.lower(), dims=2)
    for a in scores.alphabet:
        for b in scores.alphabet:
            known = "X" not in (a.upper(), b.upper())
            scores[a, b] = (blosum[a.upper(), b.upper()] if known else 0.0) - 0.01 * (a.islower() or b.islower())
    aligner = PairwiseAligner(mode="global", substitution_matrix=scores, open_gap_score=-12, extend_gap_score=-1)
    aligner.end_gap_score = 0.0
    return aligner


def _count_identical(chain: Chain, index: Int64[np.ndarray, " n"], query: str) -> int:
    return sum(at >= 0 and chain.letters[at] == letter for at, letter in zip(index.tolist(), query, strict=True))


def _is_copy(index: Int64[np.ndarray, " n"], identical: int) -> bool:
    observed = int((index >= 0).sum())
    return observed > 0 and identical >= COPY_IDENTITY * observed


def _account(chain: Chain, index: Int64[np.ndarray, " n"], query: str, chosen: str) -> StructureAccount:
    pairs = [(letter, chain.numbers[at], chain.letters[at]) for letter, at in zip(query, index, strict=True) if at >= 0]
    used = set(index.tolist())
    return StructureAccount(
        chain=chain.name,
        chosen=chosen,
        identical=sum(a == b for a, _, b in pairs),
        observed=len(pairs),
        differ=tuple(f"{a}{number}{b}" for a, number, b in pairs if a != b),
        unobserved=tuple((np.flatnonzero(index < 0) + 1).tolist()),
        left_out=tuple(f"{letter}{chain.numbers[k]}" for k, letter in enumerate(chain.letters) if k not in used),
        notes=chain.notes,
    )


def _why(asked: str | None, n_chains: int) -> str:
    return "as asked" if asked is not None else f"of {n_chains} the one most like the query"


def _listed(names: Sequence[object]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(map(str, names[:LISTED])) + more


def _taken(cb: Float64[np.ndarray, "r 3"], index: Int64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 3"]:
    return np.where((index >= 0)[:, None], cb[index], np.nan)


def _distances(a: Float64[np.ndarray, "n 3"], b: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n n"]:
    return np.asarray(np.linalg.norm(a[:, None] - b[None, :], axis=-1))
