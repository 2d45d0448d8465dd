"""From a bare sequence to an alignment: the search against HMMER's own alignment, and FAMSA against what it was given."""

import gzip
import random
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, SequenceSet, read_msa, read_sequences
from evoattn.io.align import align_sequences
from evoattn.io.residues import decode
from evoattn.io.search import search_database
from tests.cli.commands import DATA

GLOBINS = read_sequences(DATA / "globins4.a3m")
RNG = random.Random(5)


def mutated(sequence: str, fraction: float) -> str:
    return "".join(RNG.choice("ACDEFGHIKLMNPQRSTVWY") if RNG.random() < fraction else letter for letter in sequence)


def records() -> list[tuple[str, str]]:
    """A dozen: the globins, relatives with a loop, with a deletion, with two domains, with a selenocysteine; and shuffled ones."""
    human, alpha, whale, lamprey = GLOBINS.sequences
    homologs = {
        "sp|P68871|HBB_HUMAN Hemoglobin subunit beta OX=9606": human,
        "alpha": alpha,
        "whale Myoglobin, OS=Physeter": whale,
        "lamprey": lamprey,
        "loop": mutated(human[:80] + "GSGSGSGSG" + human[80:], 0.2),
        "deletion": mutated(human[:60] + human[72:], 0.2),
        "twice two domains": mutated(human, 0.3) + "GSGSPPGSGS" * 4 + mutated(human, 0.3),
        "odd": human[:30] + "U" + human[31:],
    }
    decoys = {f"decoy{i}": "".join(RNG.sample(human, len(human))) for i in range(4)}
    return [*homologs.items(), *decoys.items()]


RECORDS = records()
FASTA = "".join(f">{header}\n{sequence[:70]}\n{sequence[70:]}\n" for header, sequence in RECORDS)


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "db.fasta"
    path.write_text(FASTA)
    return path


@pytest.fixture
def query(tmp_path: Path) -> SequenceSet:
    path = tmp_path / "query.fasta"
    path.write_text(f">query of the search\n{GLOBINS.sequences[0]}\n")
    return read_sequences(path)


def hmmer_alignment(query: str, iterations: int) -> tuple[list[str], MSA]:
    """What pyhmmer's own phmmer or jackhmmer aligns: the names of the rows, and the alignment in the columns of the query."""
    from pyhmmer import easel, hmmer, plan7

    amino = easel.Alphabet.amino()
    block = easel.DigitalSequenceBlock(amino)
    for header, sequence in RECORDS:
        block.append(easel.TextSequence(name=header.split()[0].encode(), sequence=sequence).digitize(amino))
    own = easel.TextSequence(name=b"query", sequence=query).digitize(amino)
    bounds = {"E": 1e-3, "domE": 1e-3, "incE": 1e-3, "incdomE": 1e-3}
    if iterations == 1:
        hits = next(hmmer.phmmer(own, block, cpus=1, **bounds))
    else:
        hits = next(hmmer.jackhmmer(own, block, cpus=1, max_iterations=iterations, **bounds)).hits
    aligned = hits.to_msa(amino, sequences=[own], traces=[plan7.Trace.from_sequence(own)], all_consensus_cols=True)
    text = "".join(f">{name}\n{row.replace('.', '')}\n" for name, row in zip(aligned.names, aligned.alignment, strict=True))
    return list(aligned.names), read_msa(BytesIO(text.encode()), "a3m")


def unaligned(msa: MSA, row: int) -> str:
    """The residues of a row, insertions included, in order."""
    columns, letters = msa.insertions.row(row)
    own = decode(msa.residues[row])
    pieces = []
    for column in range(msa.n_res + 1):
        pieces.append(bytes(letter for at, letter in zip(columns, letters, strict=True) if at == column).decode())
        pieces.append(own[column : column + 1].replace("-", ""))
    return "".join(pieces)


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_search_is_hmmers(database: Path, query: SequenceSet, iterations: int) -> None:
    found = search_database(query, database, iterations=iterations, threads=1)
    names, expected = hmmer_alignment(GLOBINS.sequences[0], iterations)
    assert list(found.names) == names and found.n_seq >= 9
    assert np.array_equal(found.residues, expected.residues)
    assert np.array_equal(found.deletions, expected.deletions) and found.deletions.sum() >= 9


def test_rows_are_domains_of_the_database(database: Path, query: SequenceSet) -> None:
    found = search_database(query, database)
    assert found.query == GLOBINS.sequences[0] and found.names[0] == "query" and found.descriptions[0] == "of the search"
    sequences = {header.split()[0]: sequence for header, sequence in RECORDS}
    assert "sp|P68871|HBB_HUMAN/1-146" in found.names
    assert found.descriptions[found.names.index("sp|P68871|HBB_HUMAN/1-146")] == "Hemoglobin subunit beta OX=9606"
    assert sum(name.startswith("twice/") for name in found.names) == 2, "one row for each domain"
    assert not any(name.startswith("decoy") for name in found.names)
    for row, name in enumerate(found.names[1:], 1):
        title, span = name.rsplit("/", 1)
        start, end = map(int, span.split("-"))
        assert unaligned(found, row) == sequences[title][start - 1 : end].replace("U", "C"), name
    assert "found by phmmer" in found.account.notes[0] and "among 12 sequences" in found.account.notes[0]


def test_the_database_as_it_comes(database: Path, query: SequenceSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed, with Windows line ends, gaps and stop codons, in blocks of any size, by any number of threads: all the same."""
    expected = search_database(query, database, threads=1)
    odd = tmp_path / "odd.gz"
    odd.write_bytes(gzip.compress(FASTA.replace("GSGSGS", "GS-GS.GS").replace("\n>", "*\n\n>").replace("\n", "\r\n").encode()))
    monkeypatch.setattr("evoattn.io.search._RESIDUES_AT_ONCE", 300)
    seen: list[tuple[int, int]] = []
    for path, threads in ((database, 3), (odd, 1)):
        found = search_database(query, path, threads=threads, on_progress=lambda done, total: seen.append((done, total)))
        assert found.names == expected.names and np.array_equal(found.residues, expected.residues)
    assert seen == sorted(seen, key=lambda pair: (pair[1] != seen[0][1], pair[0])) and seen[-1] == (odd.stat().st_size,) * 2


def test_an_e_value_that_nothing_passes(query: SequenceSet, tmp_path: Path) -> None:
    (tmp_path / "decoys.fasta").write_text("".join(f">{name}\n{sequence}\n" for name, sequence in RECORDS[-4:]))
    found = search_database(query, tmp_path / "decoys.fasta", iterations=3, threads=1)
    assert found.n_seq == 1 and "0 domains in 0 sequences" in found.account.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no sequence"),
        ("# STOCKHOLM 1.0\na MKV\n", "FASTA file"),
        (">a\nMKV\n>b\nMK1V\n", "character '1' at position 3"),
    ],
)
def test_no_database(text: str, words: str, query: SequenceSet, tmp_path: Path) -> None:
    (tmp_path / "bad.fasta").write_text(text)
    with pytest.raises(MSAError, match=words) as caught:
        search_database(query, tmp_path / "bad.fasta")
    assert caught.value.file == str(tmp_path / "bad.fasta")
    with pytest.raises(MSAError, match=r"none\.fasta: the database cannot be read"):
        search_database(query, tmp_path / "none.fasta")


def test_a_query_that_cannot_be_searched(database: Path, query: SequenceSet, tmp_path: Path) -> None:
    for text, words in ((">a\nMKV\n>b\nMKVA\n", "2 sequences"), (">a\nMKV:MKV\n", "2 chains"), (">a\nACGUACGUACGUACGU\n", "rna")):
        (tmp_path / "q.fasta").write_text(text)
        with pytest.raises(ConfigError, match=words):
            search_database(read_sequences(tmp_path / "q.fasta"), database)
    for changes, words in (({"iterations": 0}, "iterations is 0"), ({"evalue": 0.0}, "evalue is 0"), ({"threads": 0}, "threads is 0")):
        with pytest.raises(ConfigError, match=words):
            search_database(query, database, **changes)


def test_an_alignment_of_unaligned_sequences(tmp_path: Path) -> None:
    """Every residue that was given comes back in its row, in the order that was given; relatives end up in the same columns."""
    text = FASTA.replace(">loop", ">odd\nJOU" + GLOBINS.sequences[1] + "\n>loop")
    (tmp_path / "set.fasta").write_text(text + FASTA[: FASTA.index(">alpha")])
    given = read_sequences(tmp_path / "set.fasta")
    found = align_sequences(given, threads=1)
    assert found.names == given.names and found.descriptions == given.descriptions and found.query == given.sequences[0]
    for row, sequence in enumerate(given.sequences):
        mapped = sequence.replace("U", "C").replace("J", "X").replace("O", "X")
        assert unaligned(found, row).replace("U", "C").replace("J", "X").replace("O", "X") == mapped
    reference = read_msa(DATA / "globins4.a3m")
    assert (found.residues[1:4] == reference.residues[1:4]).mean() > 0.85
    assert "aligned by FAMSA" in found.account.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [(">a\nMKV\n", "nothing to align"), (">a\nMKV\n>b\nMK:V\n", r"row 2 \('b'\): has 2 chains")],
)
def test_nothing_to_align(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "set.fasta").write_text(text)
    with pytest.raises(MSAError, match=words):
        align_sequences(read_sequences(tmp_path / "set.fasta"))


def test_without_the_packages(database: Path, query: SequenceSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyhmmer", None)
    monkeypatch.setitem(sys.modules, "pyfamsa", None)
    with pytest.raises(ConfigError, match=r"pyhmmer .*pip install 'evoattn\[msa\]'"):
        search_database(query, database)
    with pytest.raises(ConfigError, match=r"pyfamsa .*pip install 'evoattn\[msa\]'"):
        align_sequences(read_sequences(database))
