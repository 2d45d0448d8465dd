"""The alignment of a run: read from a file, joined from one file per chain, or found in a database."""

from collections.abc import Sequence

import numpy as np
import torch

from evoattn.errors import ConfigError
from evoattn.io import MSA, SequenceSet, join_chains, pair_rows, read_msa, read_sequences
from evoattn.io.search import OnProgress, search_database
from evoattn.runs.settings import RunSettings


def read_input(settings: RunSettings, on_search: OnProgress | None = None) -> MSA:
    """The alignment that the settings ask for.

    Raises:
        MSAError: a file cannot be read, or chains cannot be joined. ConfigError: the settings do not fit the files.
    """
    if settings.database is None:
        chains = [read_msa(path, settings.msa_format, query=settings.query, block=settings.block) for path in settings.inputs]
    else:
        chains = _searched(settings, on_search)
    if len(chains) > 1:
        return join_alignments(chains, settings.pair)
    if settings.pair != "none":
        raise ConfigError(f"pair is {settings.pair!r}, and there is one alignment, {settings.input}; give one for each chain.")
    return chains[0]


def join_alignments(chains: Sequence[MSA], pair: str) -> MSA:
    """The alignment of a complex. Chains with equal alignments are copies: each row of theirs stands in all of them.

    `pair` is "none", or how :func:`evoattn.io.pair_rows` matches rows of other chains: "best", "rank" or "row".
    """
    distinct: list[MSA] = []
    which: list[int] = []
    for chain in chains:
        number = next((i for i, other in enumerate(distinct) if _equal(chain, other)), len(distinct))
        distinct += [chain] if number == len(distinct) else []
        which.append(number)
    if pair == "none":
        pairs = np.zeros((1, len(distinct)), dtype=np.int64)
    elif pair == "row":
        pairs = pair_rows(distinct, by="row")
    else:
        pairs = pair_rows(distinct, match="best" if pair == "best" else "rank")
    if len(distinct) < len(chains):  # a row without a partner stands in every copy too
        rest = [np.setdiff1d(np.arange(chain.n_seq), pairs[:, number]) for number, chain in enumerate(distinct)]
        alone = np.full((sum(map(len, rest)), len(distinct)), -1)
        alone[np.arange(len(alone)), np.repeat(np.arange(len(distinct)), [len(rows) for rows in rest])] = np.concatenate(rest)
        pairs = np.concatenate([pairs, alone])
    return join_chains(chains, pairs=pairs[:, which])


def _equal(a: MSA, b: MSA) -> bool:
    if a.names != b.names or not np.array_equal(a.residues, b.residues):
        return False
    return np.array_equal(a.insertions.columns, b.insertions.columns) and np.array_equal(a.insertions.letters, b.insertions.letters)


def _searched(settings: RunSettings, on_search: OnProgress | None) -> list[MSA]:
    """An alignment for each chain of each file; equal chains are searched once."""
    assert settings.database is not None
    queries = [query for path in settings.inputs for query in _chains(read_sequences(path, settings.msa_format, block=settings.block))]
    found: dict[str, MSA] = {}
    for query in queries:
        if query.sequences[0] not in found:
            found[query.sequences[0]] = search_database(
                query,
                settings.database,
                iterations=settings.iterations,
                evalue=settings.evalue,
                threads=torch.get_num_threads(),
                on_progress=on_search,
            )
    return [found[query.sequences[0]] for query in queries]


def _chains(query: SequenceSet) -> list[SequenceSet]:
    """Each chain of a query by itself."""
    if len(query) != 1 or not query.chain_lengths[0]:
        return [query]
    ends = np.cumsum(query.chain_lengths[0]).tolist()
    pieces = [query.sequences[0][start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [
        SequenceSet(query.names, query.descriptions, (piece,), query.alphabet, ((),), query.account, query.source) for piece in pieces
    ]
