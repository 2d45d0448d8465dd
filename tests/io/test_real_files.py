"""Real alignments of the reference folder: counts as its manifest has them, letters as Biopython reads them."""

import json
from pathlib import Path

import numpy as np
import pytest
from Bio import AlignIO

from evoattn.errors import MSAError
from evoattn.io import read_msa
from evoattn.io.residues import encode

# What the reader refuses, and the words it uses.
REFUSED = {
    "formats/a3m/empty.a3m": "is empty",
    "formats/a3m/rna_9gmw_2.a3m": "nucleotide",
    "formats/clustal/muscle.aln": "nucleotide",
    "formats/clustal/opuntia.aln": "nucleotide",
    "formats/stockholm/PSE.sto": "nucleotide",
    "formats/stockholm/simple.sth": "nucleotide",
    "formats/stockholm/KR-1.sto": "2 Stockholm alignments",
    "formats/selex/msa_Cys_knot.slx": "no known format",
    "formats/fasta/Protenix_dimer.fasta": "joins the chains",
    "formats/fasta/PKSI.faa": "align them first",
    "formats/fasta/QUERY.fasta": "align them first",
    "formats/fasta/few_proteins.fasta": "align them first",
    "formats/fasta/some_proteins.fasta": "align them first",
    "formats/fasta/flowers.pro.gz": "align them first",
    "formats/fasta/globins45.fa": "align them first",
    "formats/fasta/globins45_crlf.fa": "align them first",
    "long/7LESS_DROME.swissprot.txt": "no known format",
}
NOT_ALIGNMENTS = {"mmCIF", "PDB"}


def test_every_file_reads_as_the_manifest_says(shared: Path) -> None:
    manifest = json.loads((shared / "data" / "manifest.json").read_text())
    counted = 0
    for entry in manifest["files"]:
        file = entry["file"]
        if entry["format"] in NOT_ALIGNMENTS or file in REFUSED:
            continue
        msa = read_msa(shared / "data" / file)
        if file.endswith("msa_Cys_knot.sth"):  # the manifest counts its one repeated name once, and joins the two rows
            assert (msa.n_seq, msa.n_res) == (25, 105)
            continue
        assert (msa.n_seq, msa.n_res) == (entry["n_seq"], entry["first_seq_residues"]), file
        assert msa.account.rows_in == msa.account.rows_kept == msa.n_seq
        counted += 1
    assert counted > 40


@pytest.mark.parametrize("file", REFUSED)
def test_what_is_no_protein_alignment_is_refused(shared: Path, file: str) -> None:
    with pytest.raises(MSAError, match=REFUSED[file]) as error:
        read_msa(shared / "data" / file)
    assert file in str(error.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("same_family_3_formats/PF00072.final_4E7P.a3m", "same_family_3_formats/PF00072.final_4E7P.sto.gz"),
        ("same_family_3_formats/PF00072.final_4E7P.a3m", "same_family_3_formats/PF00072.final_4E7P.fasta.gz"),
        ("stockholm/msa_Cys_knot.sth", "afa/msa_Cys_knot.fasta"),
        ("stockholm/RRM_1.sto", "stockholm/RRM_1.sto.gz"),
        ("a2m/msaprobs.a2m", "afa/msaprobs.fa"),
    ],
)
def test_one_alignment_in_two_files(shared: Path, one: str, other: str) -> None:
    a, b = (read_msa(shared / "data" / "formats" / name) for name in (one, other))
    assert a.names == b.names
    for array in ("residues", "deletions", "trailing"):
        np.testing.assert_array_equal(getattr(a, array), getattr(b, array))


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("families/xylanase_6kwc/mgnify_hits.sto", "stockholm"),
        ("formats/stockholm/LuxC.hmmalign.sto", "stockholm"),
        ("formats/stockholm/globins4.sto", "stockholm"),
        ("formats/clustal/hedgehog.aln", "clustal"),
        ("formats/clustal/clustalw.aln", "clustal"),
        ("formats/afa/1B70_A_1B70_B.fas", "fasta"),
        ("formats/a2m/evcouplings_example_aln.a2m", "fasta"),
    ],
)
def test_letters_are_those_of_biopython(shared: Path, file: str, kind: str) -> None:
    theirs = AlignIO.read(shared / "data" / file, kind)
    msa = read_msa(shared / "data" / file)
    assert [record.id for record in theirs] == list(msa.names)
    columns = [i for i, letter in enumerate(theirs[0].seq) if letter not in "-."]
    for record, row, deletions, trailing in zip(theirs, msa.residues, msa.deletions, msa.trailing, strict=True):
        np.testing.assert_array_equal(encode("".join(record.seq[i] for i in columns)), row)
        assert deletions.sum() + trailing + (row != 21).sum() == len(record.seq.replace("-", "").replace(".", ""))


def test_server_files(shared: Path) -> None:
    msa = read_msa(shared / "data" / "derived" / "4OT_homodimer.colabfold.a3m")
    assert (msa.chain_lengths, msa.chain_copies) == ((59,), (2,))
    assert read_msa(shared / "data" / "derived" / "4OT.server_stream.a3m").names[0] == "101"
