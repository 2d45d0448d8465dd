"""AlphaFold 2's features, against loops written from its supplement."""

import math

import numpy as np
import pytest
import torch

from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, MSAAccount, SparseLetters, features, make_features
from evoattn.io.residues import encode


def alignment(texts: list[str], deletions: np.ndarray | None = None, **changes: object) -> MSA:
    n_seq = len(texts)
    return MSA(
        names=("r",) * n_seq,
        descriptions=("",) * n_seq,
        residues=np.stack([encode(text) for text in texts]),
        insertions=SparseLetters.none(n_seq) if deletions is None else SparseLetters.of_counts(deletions.astype(np.int32)),
        account=MSAAccount(rows_in=n_seq, rows_kept=n_seq),
        **changes,
    )


@pytest.fixture
def random_msa() -> MSA:
    rng = np.random.default_rng(3)
    texts = ["".join(rng.choice(list("ARNDCXW-"), size=9)) for _ in range(40)]
    texts[0] = texts[0].replace("-", "X")  # a query has a residue everywhere
    texts[3] = texts[2]  # a centre that repeats another one
    texts[20] = texts[2]
    texts[21] = "-" * 9  # agrees with no centre
    return alignment(texts, rng.poisson(0.7, size=(40, 9)))


def nearest_by_hand(row: np.ndarray, centres: np.ndarray) -> int:
    agreement = [sum(a == b and a != 21 for a, b in zip(row, centre, strict=True)) for centre in centres]
    return agreement.index(max(agreement))


def msa_feat_by_hand(msa: MSA, n_clust: int) -> np.ndarray:
    codes, deletions = msa.residues.astype(int), msa.deletions
    members = [[i] for i in range(n_clust)]
    for row in range(n_clust, msa.n_seq):
        members[nearest_by_hand(codes[row], codes[:n_clust])].append(row)
    out = np.zeros((n_clust, msa.n_res, 49))
    for s in range(n_clust):
        for n in range(msa.n_res):
            out[s, n, codes[s, n]] = 1
            out[s, n, 23] = deletions[s, n] > 0
            out[s, n, 24] = 2 / math.pi * math.atan(deletions[s, n] / 3)
            for row in members[s]:
                out[s, n, 25 + codes[row, n]] += 1 / len(members[s])
            mean = sum(int(deletions[row, n]) for row in members[s]) / len(members[s])
            out[s, n, 48] = 2 / math.pi * math.atan(mean / 3)
    return out


@pytest.mark.parametrize("positions_at_once", [features._POSITIONS_AT_ONCE, 30])
@pytest.mark.parametrize("max_seqs", [1, 6, 40, 100])
def test_msa_feat(random_msa: MSA, max_seqs: int, positions_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_POSITIONS_AT_ONCE", positions_at_once)  # 30: three rows at a time
    found = make_features(random_msa, max_seqs=max_seqs)["msa_feat"]
    expected = msa_feat_by_hand(random_msa, min(max_seqs, 40))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=4 * torch.finfo(torch.float32).eps)


def test_extra_rows_are_the_next_in_file_order(random_msa: MSA) -> None:
    found = make_features(random_msa, max_seqs=6, max_extra=10)
    by_hand = msa_feat_by_hand(random_msa, 40)[6:16, :, :25]
    np.testing.assert_allclose(found["extra_msa_feat"].numpy(), by_hand, rtol=0, atol=4 * torch.finfo(torch.float32).eps)
    # Rows beyond max_extra stay in the cluster averages, as in AlphaFold 2.
    torch.testing.assert_close(found["msa_feat"], make_features(random_msa, max_seqs=6)["msa_feat"], rtol=0, atol=0)


def test_a_small_case_worked_out_on_paper() -> None:
    deletions = np.array([[0, 0, 0], [0, 3, 0], [0, 0, 9], [0, 0, 0]])
    found = make_features(alignment(["ARN", "WWX", "A-N", "-RN"], deletions), max_seqs=2, max_extra=1)
    # Rows 2 and 3 join row 0: its profile in column 0 is 2/3 A (code 0), 1/3 gap (code 21).
    profile = found["msa_feat"][0, :, 25:48]
    assert profile[0, [0, 21]].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert profile[2, 2] == 1
    assert found["msa_feat"][0, 2, 48].item() == pytest.approx(0.5)  # mean of 0, 9, 0 is 3; 2/pi atan(1) = 1/2
    assert found["msa_feat"][1, 1, 23:25].tolist() == pytest.approx([1, 0.5])
    assert found["extra_msa_feat"].shape == (1, 3, 25)
    assert found["extra_msa_feat"][0, 1, 21] == 1


def test_unknown_residues_agree_and_gaps_do_not() -> None:
    rows = torch.tensor([[20, 0], [21, 21], [21, 1]])
    centres = torch.tensor([[21, 21], [20, 21], [21, 1]])
    assert features.nearest_centres(rows, centres).tolist() == [1, 0, 2]


def test_target_and_masks(random_msa: MSA) -> None:
    found = make_features(random_msa, max_seqs=6, max_extra=10)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "target_feat": (9, 22),
        "aatype": (9,),
        "residue_index": (9,),
        "msa_feat": (6, 9, 49),
        "extra_msa_feat": (10, 9, 25),
        "msa_mask": (6, 9),
        "extra_msa_mask": (10, 9),
        "seq_mask": (9,),
    }
    assert found["residue_index"].tolist() == list(range(9))
    assert found["aatype"].tolist() == random_msa.residues[0].tolist()
    assert found["target_feat"][:, 1:].argmax(dim=1).tolist() == random_msa.residues[0].tolist()
    assert found["target_feat"].sum(dim=1).tolist() == [1] * 9 and not found["target_feat"][:, 0].any()
    for name in ("msa_mask", "extra_msa_mask", "seq_mask"):
        assert found[name].dtype == torch.bool and found[name].all()


def test_a_single_sequence_has_no_extra_rows() -> None:
    found = make_features(alignment(["ARNDC"]))
    assert found["msa_feat"].shape == (1, 5, 49)
    assert found["extra_msa_feat"].shape == (0, 5, 25)
    assert found["extra_msa_mask"].shape == (0, 5)
    torch.testing.assert_close(found["msa_feat"][..., :23], found["msa_feat"][..., 25:48])


def test_max_extra_may_be_zero(random_msa: MSA) -> None:
    assert make_features(random_msa, max_seqs=6, max_extra=0)["extra_msa_feat"].shape == (0, 9, 25)


def test_chains_of_a_complex_are_set_apart() -> None:
    msa = alignment(["ARNDC"], chain_lengths=(2, 1, 2), chain_copies=(1, 2, 1))
    assert make_features(msa)["residue_index"].tolist() == [0, 1, 202, 403, 404]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype(random_msa: MSA, dtype: torch.dtype) -> None:
    found = make_features(random_msa, dtype=dtype)
    exact = make_features(random_msa)
    for name in ("target_feat", "msa_feat", "extra_msa_feat"):
        assert found[name].dtype == dtype
        torch.testing.assert_close(found[name], exact[name].to(dtype), rtol=0, atol=0)
    assert found["aatype"].dtype == found["residue_index"].dtype == torch.int64


def test_the_alignment_is_not_changed(random_msa: MSA) -> None:
    residues, deletions = random_msa.residues.copy(), random_msa.deletions.copy()
    found = make_features(random_msa, max_seqs=6)
    found["aatype"].fill_(0)
    np.testing.assert_array_equal(random_msa.residues, residues)
    np.testing.assert_array_equal(random_msa.deletions, deletions)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seqs": 0}, "max_seqs is 0"),
        ({"max_extra": -1}, "max_extra is -1"),
        ({"dtype": torch.int64}, "floating-point"),
    ],
)
def test_settings_outside_what_is_allowed(random_msa: MSA, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_features(random_msa, **settings)


def test_a_query_with_gaps_is_refused() -> None:
    msa = alignment(["ARN", "A--"])
    with pytest.raises(MSAError, match=r"row 0 \('r'\), has no residue in 2 of 3 columns, the first of them 1"):
        make_features(msa.take([1, 0]))
