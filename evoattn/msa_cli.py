"""``evoattn msa``: look at an alignment, convert, filter, thin out; search homologs of a sequence, align sequences."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from evoattn.errors import ConfigError
from evoattn.files import new_file
from evoattn.io import MSA, align_sequences, drop_repeats, filter_rows, read_msa, read_sequences, search_database, subsample, write_msa
from evoattn.io.formats import FORMATS
from evoattn.io.identity import Columns
from evoattn.io.writer import format_to_write
from evoattn.runs.msa_figure import draw_alignment
from evoattn.runs.msa_report import describe, table
from evoattn.runs.output import refuse_file
from evoattn.runs.record import counted
from evoattn.terminal import EXIT_CODES, SETTINGS, Force, Json, progress, reported, show_search

msa_app = typer.Typer(
    name="msa", no_args_is_help=True, rich_markup_mode=None, context_settings=SETTINGS,
    help="Alignments: look at them, convert, filter and thin them out, or make them from sequences.",
)  # fmt: skip

WRITTEN = ("a3m", "stockholm", "clustal", "fasta")

Source = Annotated[str, typer.Argument(metavar="FILE", help="Alignment in any format, which may be compressed; - is standard input.")]
Target = Annotated[Path, typer.Argument(metavar="OUT", help="File to write; a suffix .gz, .bz2 or .xz compresses it.")]
Out = Annotated[Path, typer.Option(metavar="FILE", help="File to write; a suffix .gz, .bz2 or .xz compresses it.")]
MsaFormat = Annotated[
    str,
    typer.Option(
        "--msa-format", metavar="NAME", help=f"Of the input: {', '.join(FORMATS)}. [default: told by its content]", show_default=False
    ),
]
InputFormat = Annotated[
    str,
    typer.Option(
        "--format", metavar="NAME", help=f"Of FILE: {', '.join(FORMATS)}. [default: told by its content]", show_default=False
    ),
]
Anchor = Annotated[
    Literal["query", "rf", "none"],
    typer.Option(
        help="Which columns count: those of the query's residues, those that the file marks (RF line; capitals of a3m), or all. "
        "Residues elsewhere are insertions, and kept.",
    ),
]
Query = Annotated[str | None, typer.Option(metavar="NAME", help="Row that is the query. [default: the first]")]
Block = Annotated[str | None, typer.Option(metavar="N|NAME", help="Which alignment of a file that has several.")]
Letters = Literal["auto", "protein", "rna", "dna"]
Alphabet = Annotated[Letters, typer.Option(help="Of the residues.")]
To = Annotated[
    str, typer.Option("--to", metavar="NAME", help=f"Format to write: {', '.join(WRITTEN)}. [default: by the suffix]", show_default=False)
]
Rename = Annotated[
    bool, typer.Option("--rename", help="Give rows whose names Stockholm and Clustal cannot hold (repeated, empty) other ones.")
]
Database = Annotated[Path | None, typer.Option("--db", metavar="FASTA", help="Proteins to search for homologs; may be compressed.")]
Iterations = Annotated[int, typer.Option(min=1, help="Of the search: 1 is phmmer, more is jackhmmer.")]
Evalue = Annotated[float, typer.Option(help="Highest E-value of a sequence, and of a domain in it.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. [default: all]")]


def numbered(block: str | None) -> int | str | None:
    """A block by its number, or by name."""
    return int(block) if block is not None and block.isdecimal() else block


def _read(
    source: str, format: str, anchor: Literal["query", "rf", "none"], query: str | None, block: str | None, alphabet: Letters
) -> MSA:
    return read_msa(source, format, anchor=anchor, query=query, block=numbered(block), alphabet=alphabet)


def _refuse_output(path: Path, to: str, force: bool) -> None:
    """Before any work: a search takes its time."""
    refuse_file(path, force=force)
    format_to_write(path, to)


def _write(msa: MSA, path: Path, to: str, rename: bool) -> None:
    """Write the alignment, and print its account and what the format could not carry."""
    notes = write_msa(msa, path, to, rename=rename)
    typer.echo("\n".join([str(msa.account), *notes, f"written: {path} ({counted(msa.n_seq, 'row')} x {counted(msa.n_res, 'column')})"]))


@msa_app.command(epilog=EXIT_CODES)
def info(
    source: Source,
    threshold: Annotated[float, typer.Option(min=1, max=100, help="Identity in percent from which rows are neighbours in Neff.")] = 80,
    neff_columns: Annotated[
        Columns, typer.Option(help="Columns of that identity: without a gap in either row (AlphaFold 2), or all (DCA).")
    ] = "shared",
    png: Annotated[
        Path | None, typer.Option("--png", "--out", metavar="FILE", help="Also draw coverage and identity into this file.")
    ] = None,
    format: InputFormat = "auto",
    anchor: Anchor = "query",
    query: Query = None,
    block: Block = None,
    alphabet: Alphabet = "auto",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show what an alignment holds and what it is good for: depth, coverage, identity, species, quirks of the file, and a verdict.

    Coverage of a column is rows with a residue / rows, of a row columns with a residue / columns. Identity to the query is equal
    residues / residues of the row. Neff is the sum over the rows of 1 / (number of rows of --threshold identity or more, itself included).
    """
    with reported():
        if png is not None:
            refuse_file(png, force=force)
            if find_spec("matplotlib") is None:
                raise ConfigError("a picture needs matplotlib, which is not installed: pip install 'evoattn[viz]' brings it.")
        msa = _read(source, format, anchor, query, block, alphabet)
        record, found = describe(msa, threshold=threshold / 100, columns=neff_columns)
        if png is not None:
            with new_file(png) as temporary:
                draw_alignment(temporary, msa, found)
        typer.echo(json.dumps(record, indent=2) if as_json else table(record))
        if png is not None and not as_json:
            typer.echo(f"{'Picture':<12}{png}")


@msa_app.command(epilog=EXIT_CODES)
def convert(
    source: Source,
    target: Target,
    to: To = "auto",
    rename: Rename = False,
    format: InputFormat = "auto",
    anchor: Anchor = "query",
    query: Query = None,
    block: Block = None,
    alphabet: Alphabet = "auto",
    force: Force = False,
) -> None:
    """Write an alignment in another format: the same residues, insertions, names and order."""
    with reported():
        _refuse_output(target, to, force)
        _write(_read(source, format, anchor, query, block, alphabet), target, to, rename)


@msa_app.command("filter", epilog=EXIT_CODES)
def filter_command(
    source: Source,
    target: Target,
    max_identity: Annotated[
        float | None, typer.Option("--id", metavar="PERCENT", min=0, max=100, help="Highest identity of two rows (hhfilter: 90).")
    ] = None,
    coverage: Annotated[
        float | None, typer.Option("--cov", metavar="PERCENT", min=0, max=100, help="Least residues of a row / columns.")
    ] = None,
    query_identity: Annotated[
        float | None, typer.Option("--qid", metavar="PERCENT", min=0, max=100, help="Identity to the query that a row must exceed.")
    ] = None,
    diff: Annotated[int, typer.Option(min=0, help="Keep the most diverse rows, at least so many around every column; 0 is off.")] = 0,
    max_gaps: Annotated[float | None, typer.Option(metavar="PERCENT", min=0, max=100, help="Most gaps of a row / columns.")] = None,
    max_rows: Annotated[int | None, typer.Option(min=1, help="Of those left, the query and the next ones in file order.")] = None,
    repeats: Annotated[bool, typer.Option("--drop-repeats", help="First drop rows that equal an earlier one, insertions aside.")] = False,
    to: To = "auto",
    rename: Rename = False,
    format: InputFormat = "auto",
    anchor: Anchor = "query",
    query: Query = None,
    block: Block = None,
    alphabet: Alphabet = "auto",
    force: Force = False,
) -> None:
    """Leave rows out, with the meanings and the units of HH-suite's hhfilter; the query always stays. Every bound is off unless given.

    What is divided by what, X being no residue:

    \b
    --id        equal residues / columns in which both rows have a residue. Rows are taken
                by falling number of residues; one is left out if its identity to a row
                taken before is above the bound.
    --cov       residues of the row / columns
    --qid       residues equal to the query's / residues of the row
    --diff      as --id, with a bound that starts at 20 % and rises, up to --id, where
                fewer rows than this stand near a column
    --max-gaps  gaps of the row / columns (here X is no gap)
    """
    bounds = {"min_coverage": coverage, "min_query_identity": query_identity, "max_gaps": max_gaps, "max_identity": max_identity}
    if not any([repeats, diff, max_rows, *(bound is not None for bound in bounds.values())]):
        raise typer.BadParameter("give at least one: --id, --cov, --qid, --diff, --max-gaps, --max-rows or --drop-repeats.")
    with reported():
        _refuse_output(target, to, force)
        msa = _read(source, format, anchor, query, block, alphabet)
        msa = drop_repeats(msa) if repeats else msa
        fractions = {name: None if bound is None else bound / 100 for name, bound in bounds.items()}
        _write(filter_rows(msa, **fractions, diff=diff or None, max_rows=max_rows), target, to, rename)


@msa_app.command("subsample", epilog=EXIT_CODES)
def subsample_command(
    source: Source,
    target: Target,
    n: Annotated[int, typer.Option("-n", "--rows", min=1, help="Rows to keep, the query among them.")],
    method: Annotated[
        Literal["random", "diverse"], typer.Option(help="Drawn at random; or one by one the row that differs most from those taken.")
    ] = "random",
    seed: Annotated[int, typer.Option(min=0, help="Of the random draw: the same seed keeps the same rows.")] = 0,
    to: To = "auto",
    rename: Rename = False,
    format: InputFormat = "auto",
    anchor: Anchor = "query",
    query: Query = None,
    block: Block = None,
    alphabet: Alphabet = "auto",
    force: Force = False,
) -> None:
    """Keep some rows: the query and others at random, or the most diverse ones. The order of the file stays."""
    with reported():
        _refuse_output(target, to, force)
        msa = _read(source, format, anchor, query, block, alphabet)
        _write(subsample(msa, n, method=method, seed=seed), target, to, rename)


@msa_app.command(epilog=EXIT_CODES)
def search(
    source: Annotated[str, typer.Argument(metavar="QUERY", help="One protein sequence, FASTA; - is standard input.")],
    db: Annotated[Path, typer.Option("--db", metavar="FASTA", help="Proteins to search; may be compressed.")],
    out: Out,
    iterations: Iterations = 1,
    evalue: Evalue = 1e-3,
    threads: Threads = None,
    to: To = "auto",
    rename: Rename = False,
    force: Force = False,
) -> None:
    """Find homologs of a sequence in a FASTA database, by HMMER's phmmer or jackhmmer (the extra msa).

    Writes an alignment in the columns of the query: each row is a domain that was found, named NAME/start-end, best hit first.
    """
    with reported():
        _refuse_output(out, to, force)
        query = read_sequences(source)
        with progress() as show:
            found = search_database(query, db, iterations=iterations, evalue=evalue, threads=threads, on_progress=show_search(show))
        _write(found, out, to, rename)
        if found.n_seq == 1:
            typer.echo("no homolog was found: the alignment is the query alone. A higher --evalue or a larger database may find some.")


@msa_app.command(epilog=EXIT_CODES)
def align(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Protein sequences; - is standard input.")],
    out: Out,
    query: Query = None,
    threads: Threads = None,
    to: To = "auto",
    rename: Rename = False,
    force: Force = False,
) -> None:
    """Align homologous proteins that are not aligned, over their whole length, by FAMSA (the extra msa).

    The columns are those of the query; residues of other rows elsewhere are insertions.
    """
    with reported():
        _refuse_output(out, to, force)
        sequences = read_sequences(source)
        _write(align_sequences(sequences, query=query, threads=threads), out, to, rename)
