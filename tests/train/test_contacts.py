"""Contacts and their precision, by hand."""

import numpy as np
import pytest

from evoattn.errors import ConfigError, ShapeError
from evoattn.train.contacts import RANGES, contact_map, contact_precision, ranked_pairs


def random_case(n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    scores, distances = rng.random((n, n)), 16 * rng.random((n, n))
    distances[:, 7] = distances[7] = np.nan
    return scores + scores.T, (distances + distances.T) / 2


@pytest.mark.parametrize(("name", "least", "most"), [("all", 6, 999), ("short", 6, 11), ("medium", 12, 23), ("long", 24, 999)])
@pytest.mark.parametrize(("top", "count"), [("L", 40), ("L/2", 20), ("L/5", 8)])
def test_precision_against_a_loop(name: str, least: int, most: int, top: str, count: int) -> None:
    scores, distances = random_case()
    pairs = [(scores[i, j], distances[i, j]) for i in range(40) for j in range(i + 1, 40) if least <= j - i <= most]
    ranked = sorted((pair for pair in pairs if pair[1] == pair[1]), reverse=True)[:count]
    correct = sum(distance <= 8 for _, distance in ranked)
    (found,) = contact_precision(scores, distances, ranges=[name], top=[top])
    assert (found.range, found.top, found.pairs, found.correct) == (name, top, count, correct)
    assert found.value == correct / count and 0 < correct < count


def test_a_range_with_few_pairs_has_fewer() -> None:
    scores, distances = random_case(26)
    found = contact_precision(scores, distances, ranges=["long"], top=["L"])[0]
    assert found.pairs == 3  # (0, 24), (0, 25), (1, 25)
    assert np.isnan(contact_precision(scores[:9, :9], distances[:9, :9], ranges=["long"], top=["L"])[0].value)


def test_eight_angstrom_is_a_contact() -> None:
    assert contact_map(np.array([[0.0, 8.0], [8.001, np.nan]])).tolist() == [[True, True], [False, False]]


def test_order_of_equal_scores() -> None:
    assert ranked_pairs(np.zeros((8, 8)), 6).tolist() == [[0, 6], [0, 7], [1, 7]]
    assert ranked_pairs(np.zeros((8, 8)), *RANGES["medium"]).shape == (0, 2)


def test_what_is_refused() -> None:
    scores, distances = random_case()
    with pytest.raises(ConfigError, match="ranges has 'far'; allowed are all, short, medium, long"):
        contact_precision(scores, distances, ranges=["far"])
    with pytest.raises(ConfigError, match="top has 'L/3'; allowed are L, L/2, L/5"):
        contact_precision(scores, distances, top=["L/3"])
    with pytest.raises(ConfigError, match="a score is NaN"):
        ranked_pairs(np.full((8, 8), np.nan))


def test_shapes_must_agree(no_type_checks: None) -> None:
    with pytest.raises(ShapeError, match=r"scores \(8, 8\) and allowed \(9, 9\)"):
        ranked_pairs(np.zeros((8, 8)), 6, allowed=np.ones((9, 9), bool))
