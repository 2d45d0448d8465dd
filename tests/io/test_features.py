"""AlphaFold 2's features, against loops written from its supplement, and the random choices behind them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evoattn import EvoformerTrunk, preset
from evoattn.errors import ConfigError, MSAError, ShapeError
from evoattn.io import (
    FEATURE_PRESETS,
    MSA,
    FeatureConfig,
    FeatureDraw,
    MSAMasking,
    clusters,
    draw_features,
    feature_preset,
    make_features,
    pad_features,
    read_msa,
)
from tests.io import features_by_hand as by_hand
from tests.io.alignments import alignment, random_alignment

ROOT = Path(__file__).resolve().parents[2]
MONOMER, MULTIMER = FeatureConfig.alphafold2(1), FeatureConfig.alphafold2_multimer()
ROUNDING = 4 * torch.finfo(torch.float32).eps


@pytest.fixture
def random_msa() -> MSA:
    return random_alignment()


def plain_msa_feat(msa: MSA, n_clust: int) -> np.ndarray:
    codes, deletions = msa.residues.tolist(), msa.deletions.tolist()
    return by_hand.msa_feat(codes, deletions, range(n_clust), range(n_clust, msa.n_seq), codes[:n_clust])


# --- the real thing, on real files -----------------------------------------------------------------------------------


def compare_with_loops(path: Path, config: FeatureConfig, multimer: bool) -> None:
    codes, deletions = by_hand.read_a3m(path)
    rows = by_hand.first_of_equals(codes)
    msa = read_msa(path)
    draw = draw_features(msa, config, seed=11)
    centres, extra = draw.centres.tolist(), draw.extra.tolist()
    assert centres[0] == 0 and len(centres) == min(len(rows), config.max_seqs)
    assert len(extra) == min(len(rows) - len(centres), config.max_extra)
    assert set(centres + extra) <= set(rows) and len(set(centres + extra)) == len(centres + extra)
    others = [row for row in rows if row not in centres]

    found = make_features(msa, config, draw=draw)
    epsilon = 0.0 if multimer else 1e-6
    expected = by_hand.msa_feat(codes, deletions, centres, others, draw.tokens.tolist(), multimer=multimer, epsilon=epsilon)
    msa_feat = found["msa_feat"].double().numpy()
    np.testing.assert_array_equal(msa_feat[..., :24], expected[..., :24])  # one-hot and has_deletion
    np.testing.assert_allclose(msa_feat, expected, rtol=0, atol=1e-6)
    extra_feat = by_hand.row_features([codes[row] for row in extra], [deletions[row] for row in extra])
    np.testing.assert_allclose(found["extra_msa_feat"].double().numpy().reshape(-1), extra_feat.reshape(-1), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found["target_feat"].numpy(), by_hand.target_feat(codes[0], multimer))
    np.testing.assert_array_equal(found["true_msa"].numpy(), [codes[row] for row in centres])
    np.testing.assert_array_equal(found["bert_mask"].numpy(), draw.hidden)
    assert all(found[name].all() for name in ("msa_mask", "extra_msa_mask", "seq_mask"))
    assert found["aatype"].tolist() == codes[0]


@pytest.mark.parametrize("multimer", [False, True])
@pytest.mark.parametrize(("name", "n_clust"), [("dhfr.a3m.gz", 8), ("globins4.a3m", 508)])
def test_published_features_equal_loops(name: str, n_clust: int, multimer: bool) -> None:
    config = replace(MULTIMER if multimer else MONOMER, max_seqs=n_clust, max_extra=200)
    compare_with_loops(ROOT / "data" / name, config, multimer)


@pytest.mark.parametrize(("config", "multimer"), [(replace(MONOMER, max_seqs=200), False), (replace(MULTIMER, max_seqs=50), True)])
def test_published_features_of_another_family_equal_loops(shared: Path, config: FeatureConfig, multimer: bool) -> None:
    compare_with_loops(shared / "data/families/myoglobin_102m/102m.a3m", config, multimer)


def test_ties_in_the_two_ways_to_cluster() -> None:
    msa = alignment(["AR", "AN", "A-", "--"])  # row 2 agrees with both centres once, row 3 with neither
    nearest = make_features(msa, FeatureConfig(max_seqs=2))["msa_feat"][:, :, 25:48]
    shared = make_features(msa, FeatureConfig(max_seqs=2, clusters="shared"))["msa_feat"][:, :, 25:48]
    assert nearest[0, 0, [0, 21]].tolist() == pytest.approx([2 / 3, 1 / 3]) and nearest[1, 0, 0] == 1
    for s in (0, 1):
        assert shared[s, 0, [0, 21]].tolist() == pytest.approx([1.5 / 2, 0.5 / 2])


def test_alphafold2_adds_a_little_to_the_size_of_a_cluster() -> None:
    msa = alignment(["A", "R"])
    masking = MSAMasking(fraction=0.0)
    assert make_features(msa, replace(MONOMER, masking=masking))["msa_feat"][0, 0, 25].item() == pytest.approx(1 / (1 + 1e-6), abs=1e-7)
    assert make_features(msa, replace(MULTIMER, masking=masking))["msa_feat"][0, 0, 25] == 1


# --- the random choices ----------------------------------------------------------------------------------------------


def within_binomial(count: int, n: int, p: float) -> bool:
    return abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p))


def test_rates_of_masking() -> None:
    # Every other row has A where the query has W: so the profile is A in 19 of 20 rows.
    n_res = 40_000
    msa = alignment(["W" * n_res] + ["A" * n_res] * 19)
    draw = draw_features(msa, replace(MONOMER, drop_repeats=False, max_seqs=2), seed=5)
    hidden = draw.hidden[0]
    n = int(hidden.sum())
    assert within_binomial(n, n_res, 0.15)
    tokens = draw.tokens[0]
    assert (tokens[~hidden] == 17).all()
    counts = np.bincount(tokens[hidden], minlength=23)
    assert within_binomial(counts[22], n, 0.7)
    assert within_binomial(counts[17], n, 0.1 + 0.1 / 20 + 0.1 / 20)  # the same, or drawn from the profile, or uniformly
    assert within_binomial(counts[0], n, 0.1 * 19 / 20 + 0.1 / 20)
    assert all(within_binomial(counts[code], n, 0.1 / 20) for code in range(20) if code not in (0, 17))
    assert counts[20] == counts[21] == 0  # neither X nor a gap is in the profile or drawn uniformly


def test_masking_draws_gaps_and_unknowns_from_the_profile() -> None:
    msa = alignment(["WW" * 400] + ["X-" * 400] * 3)
    masking = MSAMasking(fraction=1.0, uniform=0.0, profile=1.0, same=0.0)
    tokens = draw_features(msa, FeatureConfig(max_seqs=1, masking=masking)).tokens[0]
    assert within_binomial(int((tokens[::2] == 20).sum()), 400, 3 / 4) and within_binomial(int((tokens[1::2] == 21).sum()), 400, 3 / 4)
    assert set(tokens.tolist()) == {17, 20, 21}


def test_rows_are_drawn_uniformly_and_the_query_always() -> None:
    msa = random_alignment(20)
    config = FeatureConfig(max_seqs=5, max_extra=4, sampling="random")
    centre, extra = np.zeros(20, dtype=int), np.zeros(20, dtype=int)
    for seed in range(400):
        draw = draw_features(msa, config, seed=seed)
        assert draw.centres[0] == 0
        centre[draw.centres] += 1
        extra[draw.extra] += 1
    assert centre[0] == 400 and extra[0] == 0
    assert all(within_binomial(count, 400, 4 / 19) for count in [*centre[1:], *extra[1:]])


@pytest.mark.parametrize("config", [MONOMER, MULTIMER])
def test_the_seed_decides_and_each_recycle_draws_anew(random_msa: MSA, config: FeatureConfig) -> None:
    config = replace(config, max_seqs=6, max_extra=10)

    def features(**settings: int) -> torch.Tensor:
        return make_features(random_msa, config, **settings)["msa_feat"]

    torch.manual_seed(1)
    once = features(seed=7)
    np.random.seed(2)
    torch.manual_seed(2)
    torch.testing.assert_close(features(seed=7), once, rtol=0, atol=0)
    assert not torch.equal(features(seed=8), once)
    assert not torch.equal(features(seed=7, recycle=1), once)
    assert not torch.equal(features(seed=8, recycle=0), features(seed=7, recycle=1))


def test_features_are_those_of_their_draw(random_msa: MSA) -> None:
    draw = draw_features(random_msa, MONOMER, max_seqs=6, seed=3, recycle=2)
    found = make_features(random_msa, MONOMER, max_seqs=6, draw=draw)
    expected = make_features(random_msa, MONOMER, max_seqs=6, seed=3, recycle=2)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def test_the_plain_draw_is_file_order_and_hides_nothing(random_msa: MSA) -> None:
    draw = draw_features(random_msa, max_seqs=6, max_extra=10, seed=5)
    assert draw.centres.tolist() == list(range(6)) and draw.extra.tolist() == list(range(6, 16))
    assert not draw.hidden.any() and (draw.tokens == random_msa.residues[:6]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"centres": np.array([1, 0])}, "query is always centre 0"),
        ({"extra": np.array([1])}, "a row occurs twice"),
        ({"tokens": np.full((2, 3), 23, np.uint8)}, "code 23; allowed are 0..22"),
        ({"hidden": np.zeros((3, 3), bool)}, r"2 centres, hidden of shape \(3, 3\)"),
    ],
)
def test_a_draw_that_does_not_fit_itself(changes: dict, message: str, no_type_checks: None) -> None:
    parts = {"centres": np.array([0, 1]), "extra": np.array([2]), "hidden": np.zeros((2, 3), bool), "tokens": np.zeros((2, 3), np.uint8)}
    with pytest.raises(ConfigError, match=message):
        FeatureDraw(**{**parts, **changes})


def test_a_draw_of_another_alignment(random_msa: MSA) -> None:
    draw = draw_features(random_msa)
    with pytest.raises(ConfigError, match="draw is of another alignment; this one has 40 rows and 8 columns"):
        make_features(random_alignment(40, 8), draw=draw)
    with pytest.raises(ConfigError, match="this one has 30 rows"):
        make_features(random_alignment(30, 9), draw=draw)


# --- the plain features ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions_at_once", [clusters._POSITIONS_AT_ONCE, 30])
@pytest.mark.parametrize("max_seqs", [1, 6, 40, 100])
def test_msa_feat(random_msa: MSA, max_seqs: int, positions_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_POSITIONS_AT_ONCE", positions_at_once)  # 30: three rows at a time
    found = make_features(random_msa, max_seqs=max_seqs)["msa_feat"]
    expected = plain_msa_feat(random_msa, min(max_seqs, 40))
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=ROUNDING)


def test_shared_clusters_in_small_parts(random_msa: MSA, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(MULTIMER, max_seqs=6)
    whole = make_features(random_msa, config)["msa_feat"]
    monkeypatch.setattr(clusters, "_POSITIONS_AT_ONCE", 30)
    torch.testing.assert_close(make_features(random_msa, config)["msa_feat"], whole, rtol=0, atol=ROUNDING)


def test_extra_rows_are_the_next_in_file_order(random_msa: MSA) -> None:
    found = make_features(random_msa, max_seqs=6, max_extra=10)
    expected = plain_msa_feat(random_msa, 40)[6:16, :, :25]
    np.testing.assert_allclose(found["extra_msa_feat"].numpy(), expected, rtol=0, atol=ROUNDING)
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


def test_unknown_residues_agree_and_gaps_and_masks_do_not() -> None:
    rows = torch.tensor([[20, 0], [21, 21], [21, 1], [22, 1]])
    centres = torch.tensor([[21, 21], [20, 21], [22, 1]])
    assert clusters.agreement(rows, centres).tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]


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


def test_the_query_is_told_unmasked() -> None:
    msa = alignment(["ARNDC" * 8, "A" * 40])
    found = make_features(msa, replace(MONOMER, masking=MSAMasking(fraction=1.0, uniform=0.0, profile=0.0, same=0.0)))
    assert found["msa_feat"][0, :, 22].all() and found["target_feat"][:, 1:].argmax(dim=1).tolist() == msa.residues[0].tolist()
    assert found["bert_mask"].all() and found["true_msa"].tolist() == msa.residues.tolist()


def test_repeats_are_left_out_of_the_published_features(random_msa: MSA) -> None:
    assert make_features(random_msa, MONOMER)["msa_feat"].shape[0] == len({row.tobytes() for row in random_msa.residues}) < 40
    assert make_features(random_msa)["msa_feat"].shape[0] == 40


def test_the_scale_of_deletions() -> None:
    msa = alignment(["AR"], np.array([[0, 5]]))
    assert make_features(msa, FeatureConfig(deletion_scale=5.0))["msa_feat"][0, 1, 24].item() == pytest.approx(0.5)


def test_a_single_sequence_has_no_extra_rows() -> None:
    found = make_features(alignment(["ARNDC"]))
    assert found["msa_feat"].shape == (1, 5, 49)
    assert found["extra_msa_feat"].shape == (0, 5, 25)
    assert found["extra_msa_mask"].shape == (0, 5)
    torch.testing.assert_close(found["msa_feat"][..., :23], found["msa_feat"][..., 25:48])


def test_max_extra_may_be_zero(random_msa: MSA) -> None:
    assert make_features(random_msa, max_seqs=6, max_extra=0)["extra_msa_feat"].shape == (0, 9, 25)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dtype(random_msa: MSA, dtype: torch.dtype) -> None:
    found = make_features(random_msa, dtype=dtype)
    exact = make_features(random_msa)
    for name in ("target_feat", "msa_feat", "extra_msa_feat"):
        assert found[name].dtype == dtype
        torch.testing.assert_close(found[name], exact[name].to(dtype), rtol=0, atol=0)
    assert found["aatype"].dtype == found["residue_index"].dtype == torch.int64


@pytest.mark.parametrize("config", [FeatureConfig(), MONOMER, MULTIMER])
def test_the_alignment_and_the_draw_are_not_changed(random_msa: MSA, config: FeatureConfig) -> None:
    residues, deletions = random_msa.residues.copy(), random_msa.deletions.copy()
    draw = draw_features(random_msa, config, max_seqs=6)
    tokens = draw.tokens.copy()
    for value in make_features(random_msa, config, max_seqs=6, draw=draw).values():
        value.zero_()
    np.testing.assert_array_equal(random_msa.residues, residues)
    np.testing.assert_array_equal(random_msa.deletions, deletions)
    np.testing.assert_array_equal(draw.tokens, tokens)


# --- chains ----------------------------------------------------------------------------------------------------------


def test_chains_of_a_complex_are_set_apart() -> None:
    msa = alignment(["ARNDC"], chain_lengths=(2, 1, 2), chain_copies=(1, 2, 1))
    assert make_features(msa)["residue_index"].tolist() == [0, 1, 202, 403, 404]
    monomer = make_features(msa, MONOMER)
    assert monomer["residue_index"].tolist() == [0, 1, 202, 403, 604, 605]
    assert monomer["aatype"].tolist() == [0, 1, 2, 2, 3, 4]


def test_chains_of_multimer() -> None:
    msa = alignment(["ARNARR", "A--A--", "---A--"], chain_lengths=(2, 1, 2, 1), chain_copies=(1, 2, 1, 1))
    found = make_features(msa, MULTIMER)
    assert found["residue_index"].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert found["asym_id"].tolist() == [1, 1, 2, 3, 4, 4, 5]
    assert found["entity_id"].tolist() == [1, 1, 2, 2, 1, 1, 3]  # AR, N, N, AR, R
    assert found["sym_id"].tolist() == [1, 1, 1, 2, 2, 2, 1]
    assert found["target_feat"].shape == (7, 21)


def test_multimer_tells_no_cell_off_the_diagonal() -> None:
    msa = alignment(["ARNDC", "AR---", "---DC"], chain_lengths=(2, 3), chain_copies=(1, 1))
    found = make_features(msa, replace(MULTIMER, sampling="first", masking=MSAMasking(fraction=1.0)))
    assert found["bert_mask"].int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]]
    assert make_features(msa, replace(MONOMER, masking=MSAMasking(fraction=1.0)))["bert_mask"].all()


# --- padding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [FeatureConfig(), MONOMER, MULTIMER])
def test_padding_adds_zeros_and_nothing_else(random_msa: MSA, config: FeatureConfig) -> None:
    found = make_features(random_msa, config, max_seqs=6, max_extra=10)
    padded = pad_features(found, n_res=13, n_seq=9, n_extra=17)
    for name, value in found.items():
        inner = tuple(slice(size) for size in value.shape)
        torch.testing.assert_close(padded[name][inner], value, rtol=0, atol=0)
        assert padded[name].dtype == value.dtype and padded[name].double().sum() == value.double().sum()
    assert padded["msa_feat"].shape == (9, 13, 49) and padded["extra_msa_mask"].shape == (17, 13) and padded["seq_mask"].shape == (13,)
    same = pad_features(found)
    assert all(same[name].shape == value.shape for name, value in found.items())


def test_a_trunk_does_not_see_the_padding(random_msa: MSA) -> None:
    trunk = EvoformerTrunk(preset("tiny")).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in trunk.parameters():  # those that start at zero would hide a padding that leaks
        parameter.data.copy_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    found = make_features(random_msa, MONOMER, max_seqs=6, max_extra=10, dtype=torch.float64)
    with torch.no_grad():
        out = trunk(found)
        padded = trunk(pad_features(found, n_res=13, n_seq=9, n_extra=17))
    torch.testing.assert_close(padded.msa[:6, :9], out.msa, rtol=0, atol=1e-9)
    torch.testing.assert_close(padded.pair[:9, :9], out.pair, rtol=0, atol=1e-9)
    torch.testing.assert_close(padded.single[:9], out.single, rtol=0, atol=1e-9)


def test_padding_to_less_is_refused(random_msa: MSA) -> None:
    with pytest.raises(ShapeError, match="n_res = 9, more than the 8 asked for"):
        pad_features(make_features(random_msa), n_res=8)
    with pytest.raises(ShapeError, match="there is no feature 'msa_feature'"):
        pad_features({"msa_feature": torch.zeros(3)})


# --- settings --------------------------------------------------------------------------------------------------------


def test_published_settings() -> None:
    sizes = {name: (config.max_seqs, config.max_extra) for name, config in FEATURE_PRESETS.items()}
    assert sizes == {
        "plain": (128, 1024),
        "af2_model_1": (508, 5120),
        "af2_model_2": (508, 1024),
        "af2_model_3": (512, 5120),
        "af2_model_4": (512, 5120),
        "af2_model_5": (512, 1024),
        **dict.fromkeys(("af2_multimer_1", "af2_multimer_2", "af2_multimer_3"), (508, 2048)),
        **dict.fromkeys(("af2_multimer_4", "af2_multimer_5"), (508, 1152)),
    }
    assert FeatureConfig.alphafold2_multimer(version=2).max_seqs == 252
    assert feature_preset("af2_model_3") == FeatureConfig.alphafold2(3)
    with pytest.raises(ConfigError, match="no features 'af2'; there are plain, af2_model_1"):
        feature_preset("af2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_seqs": 0}, "max_seqs is 0"),
        ({"max_extra": -1}, "max_extra is -1"),
        ({"dtype": torch.int64}, "floating-point"),
        ({"seed": -1}, "seed is -1"),
        ({"recycle": -1}, "recycle -1"),
    ],
)
def test_settings_outside_what_is_allowed(random_msa: MSA, settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_features(random_msa, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeatureConfig(sampling="last"), "sampling is 'last'; allowed are 'first' and 'random'"),
        (lambda: FeatureConfig(clusters="soft"), "clusters is 'soft'"),
        (lambda: FeatureConfig(chain_jump=-1), "chain_jump is -1; it is 0 or more"),
        (lambda: FeatureConfig(deletion_scale=0.0), "deletion_scale is 0.0; it is positive"),
        (lambda: FeatureConfig.alphafold2(6), "model is 6; AlphaFold 2 has models 1 to 5"),
        (lambda: FeatureConfig.alphafold2_multimer(version=4), "version 4"),
        (lambda: MSAMasking(fraction=1.5), "fraction is 1.5"),
        (lambda: MSAMasking(uniform=0.5, profile=0.5, same=0.5), "add up to 1.5"),
    ],
)
def test_configs_outside_what_is_allowed(make, message: str, no_type_checks: None) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_query_with_gaps_is_refused() -> None:
    msa = alignment(["ARN", "A--"])
    with pytest.raises(MSAError, match=r"row 0 \('r1'\), has no residue in 2 of 3 columns, the first of them 1"):
        make_features(msa.take([1, 0]))


def test_nucleic_acids_are_refused() -> None:
    with pytest.raises(MSAError, match="the alignment is of rna; AlphaFold 2's features are of proteins"):
        make_features(alignment(["ACGU"], alphabet="rna"))
