"""Files and options that are refused, and what the errors say."""

import gzip
from pathlib import Path

import pytest

from evoattn.errors import ConfigError, MSAError
from evoattn.io import read_msa
from tests.io.alignments import INSERTIONS


def test_wrong_number_of_columns_names_the_row(read) -> None:
    content = "".join(f">{'bad' if i == 7 else 'row'}{i}\n{'MKVLW' if i == 7 else 'MK-L'}\n" for i in range(1, 11))
    expected = r"family.txt, line 13, row 7 \('bad7'\): has 5 columns, expected 4, those of the query, row 1 \('row1'\); 1 of 10"
    with pytest.raises(MSAError, match=expected) as error:
        read(content)
    assert "not aligned" not in str(error.value)
    place = error.value
    assert (place.line, place.row, place.name, place.found, place.expected) == (13, 7, "bad7", 5, 4)
    assert place.file is not None and place.file.endswith("family.txt")


def test_unaligned_sequences_are_refused(read) -> None:
    with pytest.raises(
        MSAError,
        match=r"row 2 \('b'\): has 6 columns, expected 4.*not aligned: align them first.*, give only one, or read them with read_seq",
    ):
        read(">a\nMKVL\n>b\nMKVLWW\n")


def test_lower_case_query_in_a3m_is_refused(read) -> None:
    with pytest.raises(
        MSAError, match=r"line 1, row 1 \('q'\): the query has a lower-case letter, 'v' at position 3.*upper case.*anchor='rf'"
    ):
        read(">q\nMKvL\n>h\nMKaaVL\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \0\n", "the file is empty"),
        (b"# nothing else\n; here\n", "comment lines but no sequence"),
        (b"Alignment of kinases\n>q\nMKVL\n", "line 1: starts no known format: 'Alignment of kinases'.*FASTA.*Stockholm.*Clustal"),
        (b"; hello\n#x\nfree text\n>q\nMKVL\n", "line 3: starts no known format: 'free text'"),
        (b"Hello\n", "line 1: starts no known format: 'Hello'"),
        (b">q\nMKVL\n>a\n\n", r"line 3, row 2 \('a'\): has 0 columns, expected 4, those of the query, row 1 \('q'\)"),
        (b">q\n\n>a\nmkvl\n", r"row 1 \('q'\): the query has no residue"),
        (b">q\n", "no residue"),
        (b">q\n----\n>a\nMKVL\n", "no residue"),
        (b">q\nMKVL\n>a\nMK1L\n", r"line 3, row 2 \('a'\): character '1' at position 3 is neither a residue nor a gap"),
        (b">q\nMKVL\n>a\nMKa#VL\n", r"row 2 \('a'\): character '#' at position 4"),
        (">q\nMKÉL\n".encode(), r"row 1 \('q'\): character 'É' at position 3"),
        (b">q\nMKVL\n >a\nMRVL\n", r"character '>' at position 5.*first column"),
        (">q\nMKVL\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(b">q\nMKVL\n", mtime=0)[:-6], "cannot be read"),
        (b"\x1f\x8b rubbish", "cannot be read"),
    ],
)
def test_unreadable_files_say_why(read, content: bytes, message: str) -> None:
    with pytest.raises(MSAError, match=f"(?s)family.txt[,:] .*{message}"):
        read(content)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(MSAError, match=r"nothing.a3m: the file cannot be read: No such file"):
        read_msa(tmp_path / "nothing.a3m")
    with pytest.raises(MSAError, match="cannot be read"):
        read_msa(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "fastq"}, "format is 'fastq'; allowed are auto, a3m, a2m, fasta, stockholm, clustal, selex, psicov"),
        ({"alphabet": "xna"}, "alphabet is 'xna'; allowed are auto, protein, rna, dna"),
        ({"anchor": "first"}, "anchor is 'first'; allowed are query, rf, none"),
    ],
)
def test_unknown_options(read, no_type_checks: None, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(INSERTIONS, **options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data_1ABC\n#\n_entry.id 1ABC\n", "an mmCIF structure"),
        ("HEADER    HYDROLASE\n", "a PDB structure"),
        ("ID   X_HUMAN   Reviewed;\n", "a UniProt or EMBL flat file"),
        ("LOCUS       X\n", "a GenBank flat file"),
        ("#NEXUS\nbegin data;\n", "a NEXUS file.*Convert it to FASTA"),
        (" 2 4\na MKVL\nb MRVL\n", "a PHYLIP file"),
        ("PileUp\n\n MSF: 4\n", "an MSF file"),
        ("HMMER3/f [3.1]\n", "a profile HMM"),
        ("<!DOCTYPE html>\n<html>\n", "HTML or XML, such as an error page"),
        ('{"a": 1}\n', "JSON"),
        (">P1;1abc\nsequence:1abc::::::::\nMKVL*\n", "a PIR file .a line of description"),
        (">P1;CRAB\nALPHA CRYSTALLIN\nMKVL*\n", "a PIR file"),
        ("@read1\nACGT\n+\nIIII\n", "a FASTQ file"),
        ("PK\x03\x04xx", "a zip archive"),
        ("\x01\x02\x03\x04\x05", "no text"),
    ],
)
def test_other_kinds_of_file_are_named(read, content: str, message: str) -> None:
    with pytest.raises(MSAError, match=rf"family.txt, line 1: the file is (?s:.*){message}"):
        read(content)
