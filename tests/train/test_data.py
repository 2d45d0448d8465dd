"""Families, their split, and samples: drawn by number, whoever draws them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from evoattn.errors import ConfigError, MSAError
from evoattn.io.chains import crop_columns
from evoattn.io.identity import PackedRows
from evoattn.io.residues import GAP
from evoattn.train.config import DataConfig
from evoattn.train.data import Samples, Share, collate, micro_batches
from evoattn.train.families import find_families, read_family, split_families
from evoattn.train.split import hold_out_rows
from tests.train.families import alignment, families

ROOT = Path(__file__).resolve().parents[2]
DATA = DataConfig(crop=10, max_seqs=4, max_extra=3)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_shipped_family_with_its_structure() -> None:
    found = read_family(ROOT / "data/dhfr.a3m.gz", [ROOT / "data/3ql0.pdb.gz"], max_rows=50)
    assert found.name == "dhfr" and found.msa.n_seq <= 50 and found.pseudo_beta is not None
    assert np.isfinite(found.pseudo_beta).all(axis=1).sum() > 150 and "3ql0.pdb.gz: chain A" in found.notes[0]


def test_folders_and_files_are_families(tmp_path: Path) -> None:
    (tmp_path / "dhfr").mkdir()
    (tmp_path / "dhfr" / "a.a3m").write_text(">q\nMKVA\n>r\nMKVC\n")
    (tmp_path / "dhfr" / "b.a3m").write_text(">q\nMKVA\n>r\nMK-C\n")
    (tmp_path / "single.fasta").write_text(">q\nMKVA\n")
    (tmp_path / "globins.sto").write_bytes((ROOT / "data/globins4.sto").read_bytes())
    (tmp_path / "notes.txt").write_text("no alignment")
    found = find_families(tmp_path)
    assert [(one.name, one.msa.n_seq) for one in found] == [("globins", 4), ("dhfr", 2), ("dhfr", 2)]
    training, held = split_families(found, ["dhfr"])
    assert [one.name for one in training] == ["globins"] and [one.name for one in held] == ["dhfr", "dhfr"]


def test_a_structure_of_another_protein_is_passed_over_in_words(tmp_path: Path) -> None:
    found = read_family(ROOT / "data/globins4.a3m", [ROOT / "data/3ql0.pdb.gz"])
    assert found.pseudo_beta is None and "is not of this family" in found.notes[0]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        find_families(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no alignment of two rows or more"):
        find_families(tmp_path)
    with pytest.raises(ConfigError, match=r"held_out has 'four', which is no family; there are held out, one, three, two"):
        split_families(families(), ["four"])
    with pytest.raises(ConfigError, match="all families"):
        split_families(families()[:1], ["one"])
    with pytest.raises(MSAError, match=r"columns 3\.\.9 were asked for; the alignment has columns 0\.\.4"):
        crop_columns(alignment(2, 5), slice(3, 10))


def test_a_sample_follows_from_its_number() -> None:
    samples = Samples(families(), DATA)
    drawn = [samples[number] for number in range(8)]
    again = Samples(families(), DATA)
    assert all(equal(again[number], drawn[number]) for number in (5, 0, 7))
    assert not equal(drawn[0], samples[4]) and not equal(drawn[0], Samples(families(), DATA, stream=1)[0])
    for round_ in (drawn[:4], drawn[4:]):  # every family once
        assert sorted(one["aatype"].shape[0] for one in round_) == [8, 10, 10, 10]
        assert sum(bool(one["pseudo_beta_mask"].any()) for one in round_) == 3


def test_a_crop_has_the_columns_that_it_says() -> None:
    whole = families()[0]
    samples = Samples([whole], DATA)
    starts = set()
    for number in range(12):
        one = samples[number]
        start = int(one["residue_index"][0])
        starts.add(start)
        assert torch.equal(one["aatype"], torch.from_numpy(whole.msa.residues[0, start : start + 10].astype(np.int64)))
        assert whole.pseudo_beta is not None
        expected = np.isfinite(whole.pseudo_beta[start : start + 10]).all(axis=1)
        assert one["pseudo_beta_mask"].tolist() == expected.tolist() and one["pseudo_beta"].isfinite().all()
        assert torch.equal(one["true_msa"][0], one["aatype"])  # the query is the first row, before cells are hidden
    assert starts == {0, 1, 2, 3}


def test_workers_change_nothing() -> None:
    samples = Samples(families(), DATA)
    numbers = [[0, 1], [2, 3], [9, 4]]
    alone = list(micro_batches(samples, numbers))
    with_workers = list(micro_batches(samples, numbers, workers=2))
    assert [one.number for one in with_workers] == [0, 2, 9]
    assert all(equal(a.features, b.features) for a, b in zip(alone, with_workers, strict=True))


def test_padding_is_told_by_masks() -> None:
    samples = Samples(families(), DATA)
    both = [samples[number] for number in range(2)]
    sizes = [one["aatype"].shape[0] for one in both]
    batch = collate(both)
    assert batch["seq_mask"].sum(-1).tolist() == sizes and batch["msa_feat"].shape[:3] == (2, 4, max(sizes))
    assert not batch["bert_mask"][~batch["msa_mask"]].any() and not batch["pseudo_beta_mask"][~batch["seq_mask"]].any()


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_out_the_same_micro_batches(processes: int) -> None:
    shares = [list(Share(8, 2, rank, processes).numbers(3, 5)) for rank in range(processes)]
    assert sorted(one for share in shares for one in share) == [[k, k + 1] for k in range(24, 40, 2)]
    per_step = 4 // processes
    first = sorted(one for share in shares for one in share[:per_step])
    assert first == [[24, 25], [26, 27], [28, 29], [30, 31]]


def test_processes_that_cannot_share_evenly() -> None:
    with pytest.raises(ConfigError, match=r"4 micro-batches .* which 3 processes cannot share out evenly"):
        Share(8, 2, 0, 3)


def test_held_out_rows_are_unlike_every_row_of_training() -> None:
    msa = alignment(60, 40, gaps=0.05)
    training, held = hold_out_rows(msa, fraction=0.1, identity=0.5, seed=1)
    rows = PackedRows.of(msa.residues, GAP, "shared")
    assert 0 in training and len(held) == 6 and not set(training) & set(held) and len(training) > 0
    assert max(rows.identity(row)[training].max() for row in held.tolist()) < 0.5
    with pytest.raises(ConfigError, match=r"has an identity of 0\.01 or more to the query"):
        hold_out_rows(msa, identity=0.01)
    with pytest.raises(ConfigError, match=r"fraction is 1\.5"):
        hold_out_rows(msa, fraction=1.5)
