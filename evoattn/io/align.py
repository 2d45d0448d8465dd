"""An alignment of sequences that are not aligned, by FAMSA in pyfamsa (the extra ``msa``)."""

from typing import Final

from evoattn.errors import ConfigError, MSAError
from evoattn.io.msa import MSA
from evoattn.io.reader import SequenceSet
from evoattn.io.records import msa_of_rows, optional_package, refuse_other_than_protein

_NOT_IN_FAMSA: Final = str.maketrans("JOU*", "XXXX")


def align_sequences(sequences: SequenceSet, *, query: str | None = None, threads: int | None = None) -> MSA:
    """Align proteins over their whole length with FAMSA (Deorowicz et al. 2016), in the columns of the query, which becomes row 0.

    All others keep their order, repeated sequences too. Residues where the query has a gap are insertions.

    Args:
        sequences: homologs (:func:`evoattn.io.read_sequences`).
        query: the name of the query; None takes the first.
        threads: None takes all processors.

    Raises:
        ConfigError: pyfamsa is not installed, or an argument is outside what is allowed.
        MSAError: there are fewer than two sequences, one of several chains, or none of the query's name.
    """
    if len(sequences) < 2:
        raise MSAError("there is one sequence, and nothing to align it to. Give its homologs too, the query first.", file=sequences.source)
    if joined := [i for i, lengths in enumerate(sequences.chain_lengths) if lengths]:
        raise MSAError(
            f"has {len(sequences.chain_lengths[joined[0]])} chains joined by ':'. Align each chain in a file of its own.",
            file=sequences.source,
            row=joined[0] + 1,
            name=sequences.names[joined[0]],
        )
    if threads is not None and threads < 1:
        raise ConfigError(f"align_sequences: threads is {threads}; it is 1 or more.")
    refuse_other_than_protein(sequences, "FAMSA")
    pyfamsa = optional_package("pyfamsa", "aligning sequences")
    if query is not None and query not in sequences.names:
        raise MSAError(f"no sequence has the name {query!r}, the query that was asked for.", file=sequences.source, name=query)
    # FAMSA sorts the rows, and knows neither J, O nor U: numbers bring back the order, the sequences their letters.
    given = [pyfamsa.Sequence(b"%d" % i, text.translate(_NOT_IN_FAMSA).encode()) for i, text in enumerate(sequences.sequences)]
    aligned = pyfamsa.Aligner(threads=threads or 0, keep_duplicates=True).align(given)
    gapped = {int(row.id): row.sequence.decode() for row in aligned}
    rows = [_with_letters(gapped[i], text) for i, text in enumerate(sequences.sequences)]
    first = 0 if query is None else sequences.names.index(query)
    order = [first, *(i for i in range(len(rows)) if i != first)]
    names, descriptions, rows = ([texts[i] for i in order] for texts in (sequences.names, sequences.descriptions, rows))
    note = f"aligned by FAMSA (pyfamsa {pyfamsa.__version__})"
    return msa_of_rows(names, descriptions, rows, "fasta", source=sequences.source, notes=[note, *sequences.account.notes])


def _with_letters(gapped: str, letters: str) -> str:
    own = iter(letters)
    return "".join("-" if letter == "-" else next(own) for letter in gapped)
