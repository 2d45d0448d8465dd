"""From the alignments of several chains to one of their complex: rows paired by species or by number, the rest block by block."""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from evoattn.errors import ConfigError, MSAError
from evoattn.io.chains import Letters, letters_at, letters_within
from evoattn.io.msa import MSA, MSAAccount
from evoattn.io.residues import GAP
from evoattn.io.statistics import query_identity

ABSENT: Final = -1
"""In what :func:`pair_rows` returns: the chain has no row here."""

_TAXONOMY_ID: Final = re.compile(r"\b(?:OX|TaxID)=(\d+)")
_TAXONOMY_ID_IN_NAME: Final = re.compile(r"^UniRef\d+_\w+?_(\d+)/?$")
_MNEMONIC: Final = re.compile(r"^(?:(?:sp|tr)\|\w+\|)?[A-Z0-9]+_((?=\d*[A-Z])[A-Z0-9]{3,5})(?:_\d+)?(?:/\d+-\d+)?$")
_MNEMONIC_OF_CLUSTER: Final = re.compile(r"\bRepID=[A-Z0-9]+_((?=\d*[A-Z])[A-Z0-9]{3,5})\b")


class Species(NamedTuple):
    """The species of a row, as its header says it; empty where it says nothing."""

    taxonomy_id: str = ""
    """NCBI's number: ``OX=9606`` (UniProt), ``TaxID=9606`` (UniRef), ``UniRef100_P12345_9606``."""
    mnemonic: str = ""
    """UniProt's code: ``sp|P68871|HBB_HUMAN``, ``HBB_HUMAN/3-140``, ``RepID=HBB_HUMAN``. Codes like ``9HYPO`` stand for a group."""


def species_of(name: str, description: str = "") -> Species:
    """Read the species off a header of UniProt or UniRef."""
    number = _TAXONOMY_ID.search(description) or _TAXONOMY_ID_IN_NAME.match(name)
    code = _MNEMONIC.match(name) or _MNEMONIC_OF_CLUSTER.search(description)
    return Species(number[1] if number else "", code[1] if code else "")


def pair_rows(
    chains: Sequence[MSA],
    *,
    by: Literal["species", "taxonomy_id", "mnemonic", "row"] = "species",
    match: Literal["best", "rank"] = "best",
    complete: bool = False,
    max_per_species: int = 600,
) -> Int64[np.ndarray, "pairs chains"]:
    """Return which rows of the chains belong together: entry [p, c] is a row of chain c, or -1 (ABSENT); the queries are pair 0.

    AlphaFold-Multimer's rule (Evans et al. 2021; ``msa_pairing.py``) is ``match="rank"``: the rows of a species are
    ranked, in each chain, by their identity to the query over all columns, and rows of equal rank are paired as far as all
    chains that have the species go. Pairs of more chains come first, then those with the smaller product of row numbers.

    Args:
        chains: alignments of different sequences. Give a sequence that occurs twice once, and join it with ``copies=[2]``.
        by: "species": by taxonomy number or by UniProt's code, whichever more rows of the chain with the fewest have.
            "row": row i of every chain, as far as the shortest goes.
        match: within a species, only the "best" row of each chain, or row by row by "rank".
        complete: only pairs of all chains; otherwise two are enough.
        max_per_species: a species with more rows than this in some chain is left out: its rows cannot be told apart.

    Raises:
        ConfigError: an argument outside what is allowed.
        MSAError: no chain is given.
    """
    if not chains:
        raise MSAError("pair_rows: no chain was given; it pairs the rows of one alignment per chain.")
    for argument, value, allowed in (("by", by, ("species", "taxonomy_id", "mnemonic", "row")), ("match", match, ("best", "rank"))):
        if value not in allowed:
            raise ConfigError(f"pair_rows: {argument} is {value!r}; allowed are {', '.join(map(repr, allowed))}.")
    if by == "row":
        return np.repeat(np.arange(min(chain.n_seq for chain in chains))[:, None], len(chains), axis=1)
    ranked = [_ranked_by_species(chain, tags) for chain, tags in zip(chains, _tags(chains, by), strict=True)]
    pairs = [np.zeros(len(chains), dtype=np.int64)]
    for species in sorted(set().union(*ranked)):
        rows = [of.get(species, []) for of in ranked]
        present = [len(own) for own in rows if own]
        if len(present) < (len(chains) if complete else 2) or max(present) > max_per_species:
            continue
        depth = 1 if match == "best" else min(present)
        pairs += [np.array([own[rank] if own else ABSENT for own in rows]) for rank in range(depth)]
    first, others = pairs[0], pairs[1:]
    others.sort(key=lambda pair: (int((pair == ABSENT).sum()), abs(float(np.prod(pair.astype(float))))))
    return np.stack([first, *others])


def join_chains(
    chains: Sequence[MSA],
    *,
    pairs: Int64[np.ndarray, "pairs chains"] | None = None,
    copies: Sequence[int] | None = None,
    unpaired: bool = True,
    max_rows: int | None = None,
) -> MSA:
    """Join the alignments of several chains into one of the complex: its columns are those of the chains, in order.

    Rows are the joined query, the pairs, and then, chain by chain, the rows that are in no pair, with gaps in all other
    chains (block-diagonal, as AlphaFold-Multimer and ColabFold have it). Nothing pairs by itself: see :func:`pair_rows`.
    Insertions after the last column of a chain that is not the last are dropped, and the account says so: in the joined
    alignment they would count as insertions left of the next chain.

    Args:
        chains: one alignment per different sequence, all of one alphabet.
        pairs: rows that belong together, [pairs, chains], -1 for none. None: the queries alone.
        copies: how often each chain occurs in the complex. None: as often as each alignment says, or once.
        unpaired: also give the rows that are in no pair.
        max_rows: of each chain at most so many rows: the first pairs up to half of it, and so many unpaired rows that pairs
            in which the chain has a row and unpaired rows are `max_rows` together (AlphaFold-Multimer: 2,048).

    Raises:
        MSAError: no chain, chains that are complexes themselves, or of several alphabets.
        ConfigError: `pairs`, `copies` or `max_rows` do not fit the chains.
    """
    copies = _checked(chains, pairs, copies, max_rows)
    if pairs is None:
        pairs = np.zeros((1, len(chains)), dtype=np.int64)
    rows = pairs if max_rows is None else pairs[: max(1, max_rows // 2)]
    if unpaired:
        rows = np.concatenate([rows, *(_unpaired(number, chain, pairs, rows, max_rows) for number, chain in enumerate(chains))])
    lengths = [chain.n_res for chain in chains]
    residues = np.full((len(rows), sum(lengths)), GAP, dtype=np.uint8)
    inserted: list[Letters] = []
    unusual: list[Letters] = []
    n_lost = 0
    for number, (chain, start) in enumerate(zip(chains, np.cumsum([0, *lengths]).tolist(), strict=False)):
        target = np.flatnonzero(rows[:, number] != ABSENT)
        part = chain.take(rows[target, number])
        columns = slice(0, chain.n_res)
        residues[target, start : start + chain.n_res] = part.residues
        is_last = number == len(chains) - 1
        n_lost += 0 if is_last else int(part.trailing.sum())
        for source, letters, end in ((part.insertions, inserted, is_last), (part.unusual, unusual, False)):
            if source is not None:
                row, column, letter = letters_within(source, columns, end=end)
                letters.append((target[row], column + start, letter))
    names, descriptions = zip(*(_headers(chains, row) for row in rows.tolist()), strict=True)
    return MSA(
        names=names,
        descriptions=descriptions,
        residues=residues,
        insertions=letters_at(len(rows), inserted),
        unusual=letters_at(len(rows), unusual) if unusual else None,
        account=_account(chains, rows, n_lost),
        format=chains[0].format,
        source=" + ".join(chain.source for chain in chains if chain.source),
        alphabet=chains[0].alphabet,
        chain_lengths=tuple(lengths),
        chain_copies=tuple(copies),
    )


def _tags(chains: Sequence[MSA], by: str) -> list[list[str]]:
    """The species of each row of each chain, in one of the two ways to say it."""
    found = [[species_of(name, text) for name, text in zip(chain.names, chain.descriptions, strict=True)] for chain in chains]
    kinds = ("taxonomy_id", "mnemonic") if by == "species" else (by,)
    tags = {kind: [[getattr(species, kind) for species in chain] for chain in found] for kind in kinds}
    return max(tags.values(), key=lambda chains: min(sum(map(bool, chain[1:])) for chain in chains))


def _ranked_by_species(chain: MSA, tags: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each species, by falling identity to the query over all columns, in file order among equals; without the query."""
    identity = query_identity(chain, columns="all")
    ranked = defaultdict(list)
    for row in np.argsort(-identity, kind="stable").tolist():
        if row and tags[row]:
            ranked[tags[row]].append(row)
    return ranked


def _checked(
    chains: Sequence[MSA], pairs: Int64[np.ndarray, "pairs chains"] | None, copies: Sequence[int] | None, max_rows: int | None
) -> list[int]:
    if not chains:
        raise MSAError("join_chains: no chain was given; it joins one alignment per chain.")
    for number, chain in enumerate(chains):
        if len(chain.chain_lengths) > 1:
            raise MSAError(f"join_chains: alignment {number} is of {len(chain.chain_lengths)} chains; use split_chains on it first.")
    if len({chain.alphabet for chain in chains}) > 1:
        raise MSAError(f"join_chains: the chains are of {', '.join(chain.alphabet for chain in chains)}; one alignment has one alphabet.")
    if copies is None:
        copies = [chain.chain_copies[0] if chain.chain_copies else 1 for chain in chains]
    if len(copies) != len(chains) or min(copies) < 1:
        raise ConfigError(f"join_chains: copies is {list(copies)}; it is one number, 1 or more, for each of {len(chains)} chains.")
    if max_rows is not None and max_rows < 1:
        raise ConfigError(f"join_chains: max_rows is {max_rows}; it is 1 or more, or None for all rows.")
    if pairs is not None:
        sizes = np.array([chain.n_seq for chain in chains])
        if pairs.shape[1] != len(chains) or len(pairs) == 0 or (pairs >= sizes).any() or (pairs < ABSENT).any() or pairs[0].any():
            raise ConfigError(
                f"join_chains: pairs of shape {pairs.shape} do not fit {len(chains)} chains of {sizes.tolist()} rows; they hold one "
                "row number per chain, or -1 for none, and start with row 0 of each, the queries."
            )
    return list(copies)


def _unpaired(
    number: int, chain: MSA, pairs: Int64[np.ndarray, "pairs chains"], kept: Int64[np.ndarray, "kept chains"], max_rows: int | None
) -> Int64[np.ndarray, "rows chains"]:
    own = np.setdiff1d(np.arange(1, chain.n_seq), pairs[:, number])
    if max_rows is not None:
        own = own[: max(0, max_rows - int((kept[:, number] != ABSENT).sum()))]
    rows = np.full((len(own), pairs.shape[1]), ABSENT)
    rows[:, number] = own
    return rows


def _headers(chains: Sequence[MSA], row: Sequence[int]) -> tuple[str, str]:
    present = [(chain, i) for chain, i in zip(chains, row, strict=True) if i != ABSENT]
    # each once: chains that were split from one alignment have the same headers
    names = dict.fromkeys(chain.names[i] for chain, i in present)
    descriptions = dict.fromkeys(chain.descriptions[i] for chain, i in present)
    return "+".join(names), "; ".join(filter(None, descriptions))


def _account(chains: Sequence[MSA], rows: Int64[np.ndarray, "rows chains"], n_lost: int) -> MSAAccount:
    dropped: dict[str, int] = defaultdict(int)
    mapped: dict[str, int] = defaultdict(int)
    for chain in chains:
        for total, own in ((dropped, chain.account.dropped), (mapped, chain.account.mapped)):
            for key, count in own.items():
                total[key] += count
    n_rows = sum(chain.n_seq for chain in chains)
    dropped["neither paired nor among the unpaired rows"] = n_rows - sum(len(np.unique(column[column != ABSENT])) for column in rows.T)
    rows_in = sum(chain.account.rows_in for chain in chains)
    dropped["joined to a row of another chain"] = rows_in - sum(dropped.values()) - len(rows)
    n_pairs = int(((rows != ABSENT).sum(axis=1) > 1).sum()) - (len(chains) > 1)
    notes = [f"chain {number}: {note}" for number, chain in enumerate(chains, 1) for note in chain.account.notes]
    notes.append(f"{len(chains)} chains joined (pairs of rows: {n_pairs}, rows of one chain: {len(rows) - 1 - n_pairs})")
    if n_lost:
        notes.append(f"insertions after the last column of a chain before another (dropped): {n_lost}")
    return MSAAccount(
        rows_in=rows_in,
        rows_kept=len(rows),
        dropped={reason: count for reason, count in dropped.items() if count},
        mapped=dict(mapped),
        notes=tuple(notes),
    )
