"""Homologs of a sequence from a FASTA database, by HMMER's phmmer and jackhmmer in pyhmmer (the extra ``msa``)."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from evoattn.errors import ConfigError, MSAError
from evoattn.io.msa import MSA
from evoattn.io.reader import SequenceSet
from evoattn.io.records import msa_of_rows, optional_package, refuse_other_than_protein
from evoattn.io.residues import refuse_invalid
from evoattn.io.rows import as_text, shown, split_header
from evoattn.io.sources import Lines, opened

OnProgress = Callable[[int, int], None]
"""Called with (bytes of the database that were read, bytes to read): each iteration reads it once."""

_RESIDUES_AT_ONCE: Final = 500_000  # searched by one thread: some 30 ms


def search_database(
    query: SequenceSet,
    database: str | os.PathLike[str],
    *,
    iterations: int = 1,
    evalue: float = 1e-3,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> MSA:
    """Search a database for homologs of a protein, and return their alignment in the columns of the query.

    One iteration is HMMER's phmmer. With more it is jackhmmer (Johnson et al. 2010): a profile of what was found searches
    again, until nothing new is found or the iterations are done. The filters and the E-values are HMMER's; memory does
    not depend on the size of the database, which is read anew in each iteration.

    Row 0 is the query. Each other row is a domain that was found, named ``NAME/start-end`` as HMMER does, best hit first;
    a sequence with several domains gives several rows, and the query itself is among them if the database has it.

    Args:
        query: one sequence of one chain (:func:`evoattn.io.read_sequences`).
        database: a FASTA file, which may be compressed.
        iterations: at most so many; AlphaFold 2 takes 1.
        evalue: a sequence counts if its E-value is at most this, and a domain in it if its own (HMMER's independent one) is.
        threads: of the search; None takes all processors that the process may use.

    Raises:
        ConfigError: pyhmmer is not installed, or an argument is outside what is allowed.
        MSAError: the database cannot be read as FASTA.
    """
    _refuse(query, iterations, evalue, threads)
    pyhmmer = optional_package("pyhmmer", "a database search")
    search = _Search(pyhmmer, query, Path(database), evalue, threads or available_threads())
    hits, done = search.iterate(iterations, on_progress)
    domains = [(hit, domain) for hit in hits.included for domain in hit.domains.included]
    found = [f"{hit.name}/{domain.alignment.target_from}-{domain.alignment.target_to}" for hit, domain in domains]
    program = "phmmer" if iterations == 1 else f"jackhmmer ({done} of {iterations} iterations{'' if done == iterations else ', converged'})"
    n_hits = sum(len(hit.domains.included) > 0 for hit in hits.included)
    return msa_of_rows(
        [query.names[0], *found],
        [query.descriptions[0], *(hit.description or "" for hit, _ in domains)],
        [query.sequences[0], *(_a3m_row(domain.alignment, len(query.sequences[0])) for _, domain in domains)],
        "a3m",
        source=query.source,
        notes=[
            f"found by {program} of HMMER (pyhmmer {pyhmmer.__version__}) at an E-value of at most {evalue:g} among {int(hits.Z):,} "
            f"sequences of {database}: {len(domains)} domains in {n_hits} sequences"
        ],
    )


def available_threads() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse(query: SequenceSet, iterations: int, evalue: float, threads: int | None) -> None:
    if len(query) != 1 or query.chain_lengths[0]:
        what = f"{len(query)} sequences" if len(query) != 1 else f"{len(query.chain_lengths[0])} chains"
        raise ConfigError(f"{query.source}: the query has {what}; a search takes one of one chain. Give each in a file of its own.")
    refuse_other_than_protein(query, "a database search")
    for name, value in (("iterations", iterations), ("threads", 1 if threads is None else threads)):
        if value < 1:
            raise ConfigError(f"search_database: {name} is {value}; it is 1 or more.")
    if not evalue > 0:
        raise ConfigError(f"search_database: evalue is {evalue}; it is above 0, such as 0.001.")


@dataclass
class _Search:
    pyhmmer: Any
    query: SequenceSet
    database: Path
    evalue: float
    threads: int

    def __post_init__(self) -> None:
        self.alphabet = self.pyhmmer.easel.Alphabet.amino()

    def iterate(self, iterations: int, on_progress: OnProgress | None) -> tuple[Any, int]:
        """The hits of the last iteration (pyhmmer's TopHits), and how many there were."""
        plan7 = self.pyhmmer.plan7
        # "hand" keeps the columns of the query as those of the profile, as jackhmmer does.
        builder, background = plan7.Builder(self.alphabet, architecture="hand"), plan7.Background(self.alphabet)
        query = self._digital("query", "", self.query.sequences[0])
        hmm, _, _ = builder.build(query, background)
        known: set[str] = set()
        n_rows = 1
        for iteration in range(1, iterations + 1):
            hits = self._one_pass(hmm, iteration - 1, iterations, on_progress)
            names = {hit.name for hit in hits.included}
            msa = hits.to_msa(
                self.alphabet, sequences=[query], traces=[plan7.Trace.from_sequence(query)], all_consensus_cols=True, digitize=True
            )
            if iteration == iterations or (names <= known and len(msa.sequences) <= n_rows):
                break
            msa.name = query.name
            known, n_rows = known | names, len(msa.sequences)
            hmm, _, _ = builder.build_msa(msa, background)
        return hits, iteration

    def _one_pass(self, hmm: Any, before: int, iterations: int, on_progress: OnProgress | None) -> Any:
        """Search the whole database, in blocks, by threads; what a block alone let pass is held to the E-values of the whole."""
        parts: list[Any] = []
        waiting: deque[Future[Any]] = deque()
        pool = ThreadPoolExecutor(self.threads)
        try:
            for block, position, size in self._blocks():
                waiting.append(pool.submit(self._search_block, hmm, block))
                if len(waiting) > 2 * self.threads:
                    parts.append(waiting.popleft().result())
                if on_progress:
                    on_progress(before * size + position, iterations * size)
            parts += [future.result() for future in waiting]
        finally:
            pool.shutdown(cancel_futures=True)
        return parts[0].merge(*parts[1:])

    def _search_block(self, hmm: Any, block: list[Any]) -> Any:
        bounds = dict.fromkeys(("E", "domE", "incE", "incdomE"), self.evalue)
        pipeline = self.pyhmmer.plan7.Pipeline(self.alphabet, **bounds)
        return pipeline.search_hmm(hmm, self.pyhmmer.easel.DigitalSequenceBlock(self.alphabet, block))

    def _blocks(self) -> Iterator[tuple[list[Any], int, int]]:
        """Some sequences, the position in the file behind them, and its size."""
        block: list[Any] = []
        n_residues = n_sequences = 0
        try:
            size = self.database.stat().st_size
            with open(self.database, "rb") as file, opened(file) as (lines, _):
                for name, description, sequence, _ in _fasta_records(lines):
                    block.append(self._digital(name, description, sequence))
                    n_residues, n_sequences = n_residues + len(sequence), n_sequences + 1
                    if n_residues >= _RESIDUES_AT_ONCE:
                        yield block, min(file.tell(), size), size
                        block, n_residues = [], 0
        except OSError as error:
            raise MSAError(f"the database cannot be read: {error.strerror}.", file=str(self.database)) from error
        except MSAError as error:
            error.file = str(self.database)
            raise
        if not n_sequences:
            raise MSAError("the database has no sequence; it is a FASTA file of proteins.", file=str(self.database))
        yield block, size, size

    def _digital(self, name: str, description: str, sequence: str) -> Any:
        text = self.pyhmmer.easel.TextSequence(name=name.encode(), description=description.encode(), sequence=sequence)
        return text.digitize(self.alphabet)


def _fasta_records(lines: Lines) -> Iterator[tuple[str, str, str, int]]:
    """Name, description, upper-case letters without gaps, and first line of each record; one without residues is left out."""
    header: bytes | None = None
    start = 0
    pieces: list[bytes] = []
    while lines.next_block():
        for number, line in lines.block():
            if line[:1] == b">":
                if header is not None and (record := _record(header, pieces, start)):
                    yield record
                header, pieces, start = line[1:], [], number
            elif header is not None:
                pieces.append(line)
            elif line.strip() and line[:1] not in (b";", b"#"):
                raise MSAError(f"a database is a FASTA file, whose first line starts with '>', not with {shown(line)}.", line=number)
    if header is not None and (record := _record(header, pieces, start)):
        yield record


def _record(header: bytes, pieces: list[bytes], start: int) -> tuple[str, str, str, int] | None:
    name, description, _ = split_header(as_text(header))
    text = b"".join(pieces).translate(None, b" \t\v\f-.").upper().removesuffix(b"*")
    try:
        refuse_invalid(text)
    except MSAError as error:
        raise MSAError(f"{error} It is in the record {name!r}.", line=start, name=name) from None
    return (name or "unnamed", description, text.replace(b"*", b"X").decode(), start) if text else None


def _a3m_row(alignment: Any, n_res: int) -> str:
    """A domain in the columns of the query: HMMER writes '.' in the profile's line where the target has an insertion."""
    letters = zip(alignment.hmm_sequence, alignment.target_sequence, strict=True)
    inner = "".join(letter.lower() if profile == "." else letter.upper() for profile, letter in letters)
    return "-" * (alignment.hmm_from - 1) + inner + "-" * (n_res - alignment.hmm_to)
