"""ESM's tokens: numbers from the published vocabulary, letters that AlphaFold has not, what is refused."""

from pathlib import Path

import pytest
import torch

from evoattn import ConfigError, MSAError, esm_tokens, read_msa
from evoattn.io.residue_tables import ESM_TOKENS as TOKENS

PUBLISHED = {  # the vocabulary of ESM-1b, ESM-2 and the MSA Transformer, as vocab.txt of facebook/esm2 models lists it
    "<cls>": 0, "<pad>": 1, "<eos>": 2, "<unk>": 3, "L": 4, "A": 5, "G": 6, "V": 7, "S": 8, "E": 9, "R": 10, "T": 11, "I": 12, "D": 13,
    "P": 14, "K": 15, "Q": 16, "N": 17, "F": 18, "Y": 19, "M": 20, "H": 21, "W": 22, "C": 23, "X": 24, "B": 25, "U": 26, "Z": 27, "O": 28,
    ".": 29, "-": 30, "<null_1>": 31, "<mask>": 32,
}  # fmt: skip


def tokens(tmp_path: Path, text: str, **settings: int | None) -> list[list[str]]:
    path = tmp_path / "family.a3m"
    path.write_text(text)
    return [[TOKENS[number] for number in row] for row in esm_tokens(read_msa(path), **settings).tolist()]


def test_numbers_are_the_published_ones() -> None:
    assert {token: number for number, token in enumerate(TOKENS)} == PUBLISHED


def test_every_letter_is_its_own_token(tmp_path: Path) -> None:
    letters = "ACDEFGHIKLMNPQRSTVWYXBZUO"
    assert tokens(tmp_path, f">q\n{letters}\n") == [["<cls>", *letters]]


def test_gaps_insertions_and_unknown_letters(tmp_path: Path) -> None:
    rows = tokens(tmp_path, ">q\nMKUJA\n>a\nM-Zacde-A\n>b\n-KXJa-\n")
    assert rows == [["<cls>", *"MKU", "<unk>", "A"], ["<cls>", *"M-Z-A"], ["<cls>", *"-KX", "<unk>", "-"]]


def test_rows_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = ">q\nMK\n>a\nMA\n>b\nMC\n"
    assert tokens(tmp_path, text, max_seqs=2) == tokens(tmp_path, text, max_seqs=None)[:2]
    assert len(tokens(tmp_path, text, max_seqs=None)) == 3


def test_they_are_integers(tmp_path: Path) -> None:
    (tmp_path / "a.a3m").write_text(">q\nMK\n")
    got = esm_tokens(read_msa(tmp_path / "a.a3m"))
    assert got.dtype == torch.int64 and got.shape == (1, 3)


def test_other_molecules_and_no_rows_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.a3m").write_text(">q\nACGU\n>r\nAC-U\n")
    msa = read_msa(tmp_path / "a.a3m", alphabet="rna")
    with pytest.raises(MSAError, match="the alignment is of rna; ESM's models know proteins alone"):
        esm_tokens(msa)
    with pytest.raises(ConfigError, match="max_seqs is 0"):
        tokens(tmp_path, ">q\nMK\n", max_seqs=0)
