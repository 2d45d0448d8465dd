"""Small alignments for the tests of runs."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from evoattn.io import MSA, read_msa

DATA = Path(__file__).resolve().parents[2] / "data"


def alignment(n_seq: int, n_res: int) -> MSA:
    """Random residues, the same each time, some of them gaps in the rows after the query."""
    rng = np.random.default_rng(0)
    letters = rng.choice(list("ARNDCQEGHILKMFPSTWYV"), size=(n_seq, n_res))
    letters[1:][rng.random((n_seq - 1, n_res)) < 0.2] = "-"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "family.a3m"
        path.write_text("".join(f">row{i}\n{''.join(row)}\n" for i, row in enumerate(letters)))
        return read_msa(path)
