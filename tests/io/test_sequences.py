"""Reading sequences that are not aligned."""

import io

import pytest

from evoattn.errors import MSAError
from evoattn.io import read_sequences


def test_sequences_that_are_not_aligned() -> None:
    content = ">a first\nMKVLW\n>b\nmk*\n>dimer\nMK:GG:A\n>gaps\nM-K.\n"
    found = read_sequences(io.StringIO(content))
    assert found.names == ("a", "b", "dimer", "gaps") and found.descriptions[0] == "first"
    assert found.sequences == ("MKVLW", "MK", "MKGGA", "MK")
    assert found.chain_lengths == ((), (), (2, 2, 1), ())
    assert found.account.notes == ("gaps (left out): 2", "sequences with a '*' (stop codon) at the end (left out): 1")
    assert repr(found) == "SequenceSet(4 protein sequences, <stream>)"
    few = read_sequences(io.StringIO(content), max_rows=1)
    assert (few.names, few.account.rows_in, few.account.rows_kept) == (("a",), 4, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (">a\nMK\n>b\n--\n", r"line 3, row 2 \('b'\): the record has no residue"),
        (">a\nMK\n>b\nM1\n", r"row 2 \('b'\): character '1'"),
        ("", "is empty"),
    ],
)
def test_sequences_that_are_refused(content: str, message: str) -> None:
    with pytest.raises(MSAError, match=f"<stream>.*{message}"):
        read_sequences(io.StringIO(content))
