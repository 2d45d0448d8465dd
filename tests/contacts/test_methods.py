"""Factored attention and mean-field DCA: against definitions written out, and on families whose contacts are known."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from evoattn.contacts import FactoredAttention, FitConfig, fit_attention, mean_field_dca
from evoattn.contacts.fit import IGNORED, backward, squared_couplings
from evoattn.contacts.score import average_product_correction, zero_sum_gauge
from evoattn.errors import ConfigError, MSAError
from evoattn.io import MSA, row_weights
from tests.contacts.potts import CONTACTS, found, planted_family
from tests.io.alignments import alignment, random_alignment

SMALL = FitConfig(heads=16, d_head=8, steps=80, batch=128, learning_rate=0.05, ridge=0.02, bf16=False)


def couplings_by_hand(model: FactoredAttention) -> Tensor:
    """W [N_res, N_res, 20, 20], written out."""
    q, k = (x.transpose(0, 1) for x in (model.queries, model.keys))
    logits = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
    n = logits.shape[-1]
    maps = torch.softmax(logits - 1e300 * torch.eye(n, dtype=logits.dtype), dim=-1)
    one_way = torch.einsum("hij,hab->ijab", maps, model.values)
    return (one_way + one_way.permute(1, 0, 3, 2)) / 2


def loss_by_hand(model: FactoredAttention, targets: Tensor, ridge: float) -> Tensor:
    w, loss = couplings_by_hand(model), torch.zeros((), dtype=torch.float64)
    for row in targets.tolist():
        for i, own in enumerate(row):
            if own != IGNORED:
                logits = model.bias[i] + sum(w[i, j, :, other] for j, other in enumerate(row) if other != IGNORED)
                loss = loss - torch.log_softmax(logits, 0)[own]
    return loss / len(targets) + ridge * w.square().sum()


def small_model(n_res: int = 19) -> FactoredAttention:
    model = FactoredAttention(n_res, 3, 4, torch.Generator().manual_seed(1)).double()
    torch.nn.init.normal_(model.bias)
    return model


def test_gradient_is_that_of_the_definition() -> None:
    """Of the pseudo-likelihood with gaps neither input nor target, and the penalty; 19 residues are two blocks."""
    model = small_model()
    targets = torch.randint(0, 20, (5, 19))
    targets[torch.rand(5, 19) < 0.2] = IGNORED
    expected = torch.autograd.grad(loss_by_hand(model, targets, 0.3), list(model.parameters()))
    nats = backward(model, targets, 0.3, torch.float64)
    for (name, parameter), gradient in zip(model.named_parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-11), name
    with torch.no_grad():
        likelihood = loss_by_hand(model, targets, 0.0).item() * len(targets) / int((targets != IGNORED).sum())
    assert nats == pytest.approx(likelihood, rel=1e-12)


def test_products_in_bfloat16_are_close() -> None:
    model, targets = small_model().float(), torch.randint(0, 20, (64, 19))
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        model.zero_grad()
        backward(model, targets, 0.3, dtype)
        grads.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    assert torch.cosine_similarity(grads[0], grads[1], dim=0) > 0.999


def test_squared_couplings() -> None:
    model = small_model()
    assert squared_couplings(model.maps(), model.values).item() == pytest.approx(couplings_by_hand(model).square().sum().item(), rel=1e-6)


def test_scores_are_frobenius_norms_in_the_zero_sum_gauge() -> None:
    model = small_model()
    w = couplings_by_hand(model).detach().numpy()
    w = w - w.mean(2, keepdims=True) - w.mean(3, keepdims=True) + w.mean((2, 3), keepdims=True)
    norms = np.sqrt((w**2).sum((2, 3)))
    np.fill_diagonal(norms, 0)
    mean = norms.sum(1) / 18
    expected = norms - np.outer(mean, mean) / mean.mean()
    np.fill_diagonal(expected, 0)
    assert np.allclose(model.scores().numpy(), expected, atol=1e-6)


def test_zero_sum_gauge_takes_out_what_single_letters_explain() -> None:
    w = torch.randn(3, 20, 20, dtype=torch.float64)
    fixed = zero_sum_gauge(w)
    assert fixed.sum(-1).abs().max() < 1e-12 and fixed.sum(-2).abs().max() < 1e-12
    assert torch.allclose(zero_sum_gauge(w + torch.randn(3, 20, 1) + torch.randn(3, 1, 20)), fixed)


def test_average_product_correction_of_a_product_is_zero() -> None:
    """Up to the diagonal, which does not count: means over the others are not exactly proportional to the factors."""
    even = average_product_correction(torch.full((6, 6), 2.0))
    assert even.abs().max() < 1e-6
    assert average_product_correction(torch.zeros(4, 4)).abs().max() == 0


def dca_by_hand(msa: MSA, weights: np.ndarray) -> np.ndarray:
    rows, n = np.minimum(msa.residues, 20), msa.n_res
    total = weights.sum()
    single = np.full((n, 21), 0.5 / 21)
    pair = np.full((n, n, 21, 21), 0.5 / 21**2)
    for row, weight in zip(rows, weights, strict=True):
        for i in range(n):
            single[i, row[i]] += 0.5 * weight / total
            for j in range(n):
                pair[i, j, row[i], row[j]] += 0.5 * weight / total
    for i in range(n):
        pair[i, i] = np.diag(single[i])
    c = pair - single[:, None, :, None] * single[None, :, None, :]
    c = c[:, :, :20, :20].transpose(0, 2, 1, 3).reshape(n * 20, n * 20)
    e = np.zeros((n, n, 21, 21))
    e[:, :, :20, :20] = -np.linalg.inv(c).reshape(n, 20, n, 20).transpose(0, 2, 1, 3)
    e = e - e.mean(2, keepdims=True) - e.mean(3, keepdims=True) + e.mean((2, 3), keepdims=True)
    norms = np.sqrt((e[:, :, :20, :20] ** 2).sum((2, 3)))
    np.fill_diagonal(norms, 0)
    mean = norms.sum(1) / (n - 1)
    return norms - np.outer(mean, mean) / mean.mean()


def test_mean_field_dca() -> None:
    msa = random_alignment(60, 8)
    weights = row_weights(msa, columns="all")
    got, expected = mean_field_dca(msa, weights).numpy(), dca_by_hand(msa, weights)
    off = ~np.eye(8, dtype=bool)
    assert np.allclose(got[off], expected[off], atol=1e-9) and (got[~off] == 0).all()


@cache
def weighted(permuted: bool) -> tuple[MSA, np.ndarray]:
    msa = planted_family(permuted=permuted)
    return msa, row_weights(msa, columns="all")


@cache
def fitted(permuted: bool = False, seed: int = 0) -> np.ndarray:
    config = FitConfig(**{**vars(SMALL), "seed": seed})
    return fit_attention(*weighted(permuted), config).model.scores().numpy()


def test_planted_contacts_are_found_by_attention() -> None:
    assert found(fitted()) >= len(CONTACTS) - 1


def test_planted_contacts_are_found_by_dca() -> None:
    assert found(mean_field_dca(*weighted(False)).numpy()) >= len(CONTACTS) - 1


def test_nothing_is_found_where_columns_vary_by_themselves() -> None:
    assert found(fitted(permuted=True)) <= 2
    assert found(mean_field_dca(*weighted(True)).numpy()) <= 2


def test_the_same_seed_gives_the_same_scores() -> None:
    msa, weights = weighted(False)
    short = {**vars(SMALL), "steps": 5}
    first, second, other = (fit_attention(msa, weights, FitConfig(**{**short, "seed": seed})) for seed in (3, 3, 4))
    assert torch.equal(first.model.scores(), second.model.scores()) and first.losses == second.losses
    assert not torch.equal(first.model.scores(), other.model.scores())


def test_the_loss_starts_at_the_frequencies_of_the_columns() -> None:
    """With silent couplings -log p is the entropy of the columns."""
    msa = alignment(["A" * 8, "A" * 8, "R" * 8, "-" * 8])
    quiet = fit_attention(msa, np.ones(4), FitConfig(heads=1, steps=2, batch=4000, bf16=False))
    counts = np.array([3, 2] + [1] * 18) / 23
    expected = -(2 * np.log(counts[0]) + np.log(counts[1])) / 3
    assert quiet.losses[0] == pytest.approx(expected, abs=0.1)


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    fit_attention(*weighted(False), FitConfig(heads=1, steps=3, batch=2), lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="heads is 0; it must be at least 1"):
        FitConfig(heads=0)
    with pytest.raises(ConfigError, match=r"ridge is -1.0; it must be at least 0"):
        FitConfig(ridge=-1.0)
    with pytest.raises(MSAError, match="nothing that could be coupled"):
        fit_attention(alignment(["X" * 9, "-" * 9]), np.ones(2), SMALL)
    with pytest.raises(ConfigError, match=r"the loss is nan at step .*; lower learning_rate, now 1e"):
        fit_attention(*weighted(False), FitConfig(heads=2, steps=20, batch=8, learning_rate=1e30))
