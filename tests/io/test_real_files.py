"""Real files: each with the rows, columns, insertions and quirks it gives, or the error; the letters as Biopython reads them."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from Bio import AlignIO

from evoattn.errors import MSAError
from evoattn.io import read_msa, read_sequences
from evoattn.io.residues import encode
from tests.io.alignments import assert_same

GAPS = "columns where the query has a gap (residues there are insertions)"
REPEATS = "rows that repeat an earlier row, insertions aside (kept)"
NAMES = "rows that repeat an earlier name (kept)"
NAMELESS = "rows without a name (kept)"
LOWER = "lower-case letters of the query (read as residues, case means nothing in {})"
GZIP = "compressed (gzip)"
NUL = "NUL bytes (taken for the end of a block)"
DNA, RNA = (
    f"read as {kind}, since nearly all letters are A, C, G, T or U (if they are not: alphabet='protein', --alphabet protein)"
    for kind in ("DNA", "RNA")
)


class Expected(NamedTuple):
    format: str
    n_seq: int
    n_res: int
    n_inserted: int
    notes: dict[str, int]
    alphabet: str = "protein"


# No row of any file is dropped, and no letter is read as another: the files have X, but no B, Z, J, O, U or *.
READ = {
    "families/ras_721p/721p_A.a3m": Expected("a3m", 1995, 166, 9922, {REPEATS: 12, NAMES: 17}),
    "families/ptsIIA_1a3a/hhblits_uniclust_2017_10_1a3a_1_A.a3m": Expected("a3m", 1303, 145, 7544, {}),
    "families/ptsIIA_1a3a/1a3a_1_A.a3m": Expected("a3m", 1024, 145, 0, {NAMELESS: 1024}),
    "families/par3_4i6p/uniprot_hits.sto": Expected("stockholm", 3834, 88, 719, {GAPS: 69, REPEATS: 2904}),
    "families/par3_4i6p/hmm_output.sto": Expected("stockholm", 531, 87, 492, {GAPS: 11, REPEATS: 467}),
    "families/par3_4i6p/bfd_uniclust_hits.a3m": Expected("a3m", 865, 88, 4112, {NAMES: 28}),
    "families/myoglobin_102m/102m.a3m": Expected("a3m", 869, 154, 1494, {REPEATS: 33, NAMES: 40}),
    "families/myoglobin_102m/102m_with_taxid.a3m": Expected("a3m", 869, 154, 1494, {REPEATS: 33, NAMES: 1}),
    "families/bcl3_1k1a/1k1a.a3m": Expected("a3m", 1613, 241, 14361, {REPEATS: 2, NAMES: 16}),
    "families/xylanase_6kwc/bfd_uniref_hits.a3m": Expected("a3m", 1428, 191, 16948, {NAMES: 13}),
    "families/xylanase_6kwc/mgnify_hits.sto": Expected("stockholm", 1698, 191, 12664, {GAPS: 735, REPEATS: 68}),
    "families/xylanase_6kwc/6kwc.fasta": Expected("fasta", 1, 191, 0, {}),
    "formats/clustal/hedgehog.aln": Expected("clustal", 5, 424, 39, {GAPS: 23}),
    "formats/clustal/muscle.aln": Expected("clustal", 3, 621, 67, {DNA: 1, GAPS: 66}, alphabet="dna"),
    "formats/clustal/opuntia.aln": Expected("clustal", 7, 146, 20, {DNA: 1, GAPS: 10, REPEATS: 1}, alphabet="dna"),
    "formats/clustal/clustalw.aln": Expected("clustal", 2, 600, 1, {GAPS: 1}),
    "formats/stockholm/Pkinase.sto": Expected("stockholm", 38, 248, 1099, {GAPS: 171}),
    "formats/stockholm/globins4.sto": Expected("stockholm", 4, 146, 24, {GAPS: 25}),
    "formats/stockholm/RRM_1.sto": Expected("stockholm", 79, 71, 71, {GAPS: 9}),
    "formats/stockholm/20aa.sto": Expected("stockholm", 10, 20, 0, {REPEATS: 9}),
    "formats/stockholm/PSE.sto": Expected("stockholm", 20, 17, 0, {DNA: 1, REPEATS: 5}, alphabet="dna"),
    "formats/stockholm/LuxC.hmmalign.sto": Expected("stockholm", 12, 394, 36, {LOWER: 6, GAPS: 35}),
    "formats/stockholm/example.sth": Expected("stockholm", 3, 32, 1, {GAPS: 1}),
    "formats/stockholm/simple.sth": Expected("stockholm", 2, 99, 2, {RNA: 1, GAPS: 5}, alphabet="rna"),
    "formats/stockholm/pfam1.seed.txt": Expected("stockholm", 2, 235, 5, {GAPS: 5}),
    "formats/stockholm/msa_Cys_knot.sth": Expected("stockholm", 25, 105, 26, {GAPS: 7, REPEATS: 1, NAMES: 1}),
    "formats/selex/msa_Cys_knot.slx": Expected("selex", 25, 105, 26, {GAPS: 7, REPEATS: 1, NAMES: 1}),
    "formats/afa/msa_Cys_knot.fasta": Expected("fasta", 25, 105, 26, {GAPS: 7, REPEATS: 1, NAMES: 1}),
    "formats/a3m/UniRef50_E9K9Y4.a3m": Expected("a3m", 17, 98, 131, {}),
    "formats/a3m/boltz_seq2.a3m": Expected("a3m", 84, 136, 384, {REPEATS: 8, NAMES: 1}),
    "formats/a3m/6A5J.a3m": Expected("a3m", 2, 13, 0, {REPEATS: 1, NAMES: 1}),
    "formats/a3m/5AWL1.a3m": Expected("fasta", 1, 10, 0, {}),
    "formats/a3m/a3m_no_realign.a3m": Expected("fasta", 3, 253, 6, {GAPS: 3}),
    "formats/a3m/rna_9gmw_2.a3m": Expected("a3m", 500, 86, 1341, {RNA: 1}, alphabet="rna"),
    "formats/a3m/T1001.a3m": Expected("a3m", 193, 140, 478, {}),
    "formats/a3m/openfold_bfd_uniclust_hits.a3m": Expected("a3m", 1024, 73, 239, {NAMES: 9}),
    "formats/a2m/msaprobs.a2m": Expected("a2m", 8, 248, 125, {GAPS: 50}),
    "formats/a2m/evcouplings_example_aln.a2m": Expected("a2m", 53, 423, 0, {LOWER: 3}),
    "formats/afa/msaprobs.fa": Expected("fasta", 8, 248, 125, {GAPS: 50}),
    "formats/afa/1B70_A_1B70_B.fas": Expected("fasta", 400, 1040, 0, {}),
    "formats/fasta/HBB_HUMAN.fa": Expected("fasta", 1, 146, 0, {}),
    "formats/fasta/short.fasta": Expected("fasta", 1, 73, 0, {}),
    "formats/fasta/P54025.fasta": Expected("fasta", 1, 38, 0, {}),
    "formats/fasta/Protenix_dimer.fasta": Expected("fasta", 1, 429, 0, {}),
    "formats/same_family_3_formats/PF00072.final_4E7P.a3m": Expected("a3m", 4096, 119, 13847, {}),
    "formats/same_family_3_formats/PF00072.final_4E7P.sto.gz": Expected("stockholm", 4096, 119, 13847, {GZIP: 1, GAPS: 403}),
    "formats/same_family_3_formats/PF00072.final_4E7P.fasta.gz": Expected("fasta", 4096, 119, 13847, {GZIP: 1, GAPS: 403}),
    "long/rcsb_5t15_E_RYR1.fasta": Expected("fasta", 1, 4676, 0, {}),
    "long/A0A8A9J5M6_SARS2_ORF1ab.fasta": Expected("fasta", 1, 7096, 0, {}),
    "long/rcsb_7ban_B_teneurin4.fasta": Expected("fasta", 1, 1932, 0, {}),
    "long/7LESS_DROME.fasta": Expected("fasta", 1, 2554, 0, {}),
    "long/titin_human_N2B_26926.fasta": Expected("fasta", 1, 26926, 0, {}),
    "derived/4OT_homodimer.colabfold.a3m": Expected("a3m", 800, 59, 34, {}),
    "derived/4OT.server_stream.a3m": Expected("a3m", 300, 59, 7, {NUL: 1}),
    "formats/a3m/1k1a_first.a3m.gz": Expected("a3m", 300, 241, 3292, {GZIP: 1, NAMES: 4}),
    "formats/stockholm/RRM_1.sto.gz": Expected("stockholm", 79, 71, 71, {GZIP: 1, GAPS: 9}),
}

UNALIGNED = "not aligned: align them first"
STRUCTURE = "the file is an? (mmCIF|PDB) structure, which is not read"
REFUSED = {
    "families/ras_721p/721p-assembly1.cif": STRUCTURE,
    "families/ptsIIA_1a3a/1a3a.pdb": STRUCTURE,
    "families/par3_4i6p/4i6p.cif": STRUCTURE,
    "families/par3_4i6p/3zee.cif": STRUCTURE,
    "families/myoglobin_102m/102m.cif": STRUCTURE,
    "families/myoglobin_102m/101m.pdb": STRUCTURE,
    "families/bcl3_1k1a/1k1a.cif": STRUCTURE,
    "families/xylanase_6kwc/6KWC_1_model_1_ptm_unrelaxed.pdb": STRUCTURE,
    "long/7LESS_DROME.swissprot.txt": "the file is a UniProt or EMBL flat file, which is not read",
    "formats/a3m/empty.a3m": "the file is empty",
    "formats/stockholm/KR-1.sto": r"holds 2 alignments.*block=.*1: 'KR-i1' \(6 rows\); 2: 'KR_C9' \(3 rows\)",
    "formats/fasta/PKSI.faa": UNALIGNED,
    "formats/fasta/QUERY.fasta": UNALIGNED,
    "formats/fasta/few_proteins.fasta": UNALIGNED,
    "formats/fasta/some_proteins.fasta": UNALIGNED,
    "formats/fasta/flowers.pro.gz": UNALIGNED,
    "formats/fasta/globins45.fa": UNALIGNED,
    "formats/fasta/globins45_crlf.fa": UNALIGNED,
}


def as_notes(expected: Expected) -> set[str]:
    facts = {GZIP, NUL, DNA, RNA}
    return {note if note in facts else f"{note.format(expected.format)}: {count}" for note, count in expected.notes.items()}


def manifest(shared: Path) -> dict[str, dict]:
    return {entry["file"]: entry for entry in json.loads((shared / "data" / "manifest.json").read_text())["files"]}


def test_the_tables_hold_every_file(shared: Path) -> None:
    assert READ.keys() | REFUSED.keys() == manifest(shared).keys()


@pytest.mark.parametrize("file", READ)
def test_what_each_file_gives(shared: Path, file: str) -> None:
    expected = READ[file]
    msa = read_msa(shared / "data" / file)
    assert (msa.format, msa.alphabet, msa.n_seq, msa.n_res, len(msa.insertions)) == (
        expected.format,
        expected.alphabet,
        expected.n_seq,
        expected.n_res,
        expected.n_inserted,
    )
    assert msa.deletions.sum() + msa.trailing.sum() == expected.n_inserted
    account = msa.account
    assert (account.rows_in, account.rows_kept, account.dropped, account.mapped) == (expected.n_seq, expected.n_seq, {}, {})
    assert set(account.notes) == as_notes(expected) and len(account.notes) == len(expected.notes)


def test_the_table_agrees_with_other_parsers(shared: Path) -> None:
    """The manifest was made by counting lines and letters, and with Biopython and pyhmmer."""
    own = {"formats/fasta/Protenix_dimer.fasta": 429, "formats/selex/msa_Cys_knot.slx": 105, "formats/stockholm/msa_Cys_knot.sth": 105}
    entries = manifest(shared)
    for file, expected in READ.items():
        entry = entries[file]
        # It counts the ':' of the dimer, and SELEX names, and it joins the two rows that have one name in the .sth.
        assert expected.n_res == own.get(file, entry["first_seq_residues"]), file
        assert expected.n_seq == entry["n_seq"] or file.endswith("Cys_knot.sth"), file
        if expected.format == "a3m":
            lower = [int(quirk.split(" x")[1]) for quirk in entry["quirks"] if quirk.startswith("lowercase chars")]
            assert expected.n_inserted == sum(lower), file


@pytest.mark.parametrize("file", REFUSED)
def test_what_is_no_alignment_is_refused(shared: Path, file: str) -> None:
    with pytest.raises(MSAError, match=REFUSED[file]) as error:
        read_msa(shared / "data" / file)
    assert file in str(error.value) and error.value.file == str(shared / "data" / file)


@pytest.mark.parametrize("file", [file for file, message in REFUSED.items() if message == UNALIGNED])
def test_unaligned_files_are_read_as_sequences(shared: Path, file: str) -> None:
    entry = manifest(shared)[file]
    found = read_sequences(shared / "data" / file)
    assert (len(found), len(found.sequences[0])) == (entry["n_seq"], entry["first_seq_residues"])
    assert found.alphabet == "protein"


@pytest.mark.parametrize("n_rows", [(1, 6), (2, 3)])
def test_alignments_of_one_stockholm_file(shared: Path, n_rows: tuple[int, int]) -> None:
    file = shared / "data" / "formats/stockholm/KR-1.sto"
    block, n_seq = n_rows
    msa = read_msa(file, block=block)
    theirs = list(AlignIO.parse(file, "stockholm"))[block - 1]
    assert msa.n_seq == n_seq
    assert [record.id for record in theirs] == list(msa.names)
    assert [record.description for record in theirs] == list(msa.descriptions)
    assert set(msa.annotation.gc) == {"PP_cons", "RF"} and set(msa.annotation.gr) == {"PP"}
    everything = read_msa(file, block=block, anchor="none")
    for i, record in enumerate(theirs):
        np.testing.assert_array_equal(everything.residues[i], encode(str(record.seq)))
        assert everything.annotation.gr["PP"][i] == record.letter_annotations["posterior_probability"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("same_family_3_formats/PF00072.final_4E7P.a3m", "same_family_3_formats/PF00072.final_4E7P.sto.gz"),
        ("same_family_3_formats/PF00072.final_4E7P.a3m", "same_family_3_formats/PF00072.final_4E7P.fasta.gz"),
        ("stockholm/msa_Cys_knot.sth", "afa/msa_Cys_knot.fasta"),
        ("stockholm/msa_Cys_knot.sth", "selex/msa_Cys_knot.slx"),
        ("stockholm/RRM_1.sto", "stockholm/RRM_1.sto.gz"),
        ("a2m/msaprobs.a2m", "afa/msaprobs.fa"),
    ],
)
def test_one_alignment_in_two_files(shared: Path, one: str, other: str) -> None:
    assert_same(*(read_msa(shared / "data" / "formats" / name) for name in (one, other)))


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
    others = sorted({*range(len(theirs[0].seq))} - {*columns})
    for i, record in enumerate(theirs):
        text = str(record.seq)
        np.testing.assert_array_equal(encode("".join(text[k] for k in columns)), msa.residues[i])
        inserted = "".join(text[k] for k in others if text[k] not in "-.")
        assert msa.insertions.row(i)[1].decode() == inserted.upper()


@pytest.mark.parametrize(
    ("file", "n_columns"),
    [
        ("families/xylanase_6kwc/mgnify_hits.sto", 191),
        ("families/par3_4i6p/hmm_output.sto", 88),
        ("formats/same_family_3_formats/PF00072.final_4E7P.sto.gz", 119),
        ("formats/a2m/evcouplings_example_aln.a2m", 420),
    ],
)
def test_columns_that_the_file_marks(shared: Path, file: str, n_columns: int) -> None:
    assert read_msa(shared / "data" / file, anchor="rf").n_res == n_columns


def test_a_pfam_seed_keeps_all_columns_if_asked(shared: Path) -> None:
    msa = read_msa(shared / "data" / "formats/stockholm/RRM_1.sto", anchor="none")
    assert (msa.n_res, len(msa.insertions)) == (80, 0)
    theirs = AlignIO.read(shared / "data" / "formats/stockholm/RRM_1.sto", "stockholm")
    np.testing.assert_array_equal(msa.residues, np.stack([encode(str(record.seq)) for record in theirs]))
    assert msa.annotation.gf["ID"] == ("RRM_1",)
    assert msa.annotation.gc["SS_cons"] == theirs.column_annotations["secondary_structure"]


def test_server_files(shared: Path) -> None:
    msa = read_msa(shared / "data" / "derived" / "4OT_homodimer.colabfold.a3m")
    assert (msa.chain_lengths, msa.chain_copies) == ((59,), (2,))
    assert read_msa(shared / "data" / "derived" / "4OT.server_stream.a3m").names[0] == "101"
    dimer = read_msa(shared / "data" / "formats/fasta/Protenix_dimer.fasta")
    assert (dimer.chain_lengths, dimer.chain_copies) == ((191, 238), (1, 1))
