"""RosettaFold 3's MSA module against its formulas in float64 numpy, under its own parameter names: no recorded numbers of it exist.

From ``outer_product.py``, ``RF3_blocks.py``, ``attention.py`` and ``pairformer_layers.py`` of RosettaCommons/foundry: no masks; the right
operand of the outer product over the number of rows; the triangle product over the number of residues; around the ending node the bias
of edge ik; four rounds through one set of weights.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from evoattn import MSAModule, MSAModuleConfig, load_weights, profile
from evoattn.primitives import redraw_
from evoattn.weights import FAMILIES
from evoattn.weights.tables import unmade

SCOPE = "recycler.msa_module"
ROUNDS, HEADS_MSA, HEADS_PAIR = 3, 2, 3
CONFIG = MSAModuleConfig(
    n_blocks=ROUNDS, c_m=10, c_z=12, n_head_msa=HEADS_MSA, c_head_msa=5, n_head_tri_start=HEADS_PAIR, n_head_tri_end=HEADS_PAIR,
    c_hidden_mul=12, c_hidden_opm=4, msa_transition_n=2, pair_transition_n=3, profile=profile("rosettafold3"),
)  # fmt: skip

Array = np.ndarray


class Published:
    """Its layers by their names, as numpy functions."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = {name.removeprefix(f"{SCOPE}."): array for name, array in arrays.items()}

    def norm(self, name: str, x: Array) -> Array:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self.arrays[f"{name}.weight"] + self.arrays[f"{name}.bias"]

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.arrays[f"{name}.weight"].T + self.arrays.get(f"{name}.bias", 0.0)

    def heads(self, name: str, x: Array, n: int) -> Array:
        return self.linear(name, x).reshape(*x.shape[:-1], n, -1)

    def outer_product(self, m: Array) -> Array:
        x = self.norm("outer_product.norm", m)
        left, right = self.linear("outer_product.proj_left", x), self.linear("outer_product.proj_right", x) / len(m)
        outer = np.einsum("sic,sjd->ijcd", left, right)
        return self.linear("outer_product.proj_out", outer.reshape(*outer.shape[:2], -1))

    def averaging(self, m: Array, z: Array) -> Array:
        at = "msa_pair_weighted_averaging"
        x = self.norm(f"{at}.norm_msa", m)
        weights = softmax(np.moveaxis(self.linear(f"{at}.to_bias", self.norm(f"{at}.norm_pair", z)), -1, 0))
        out = np.einsum("hij,sjhd->sihd", weights, self.heads(f"{at}.to_v", x, HEADS_MSA))
        return self.linear(f"{at}.to_out", sigmoid(self.linear(f"{at}.to_gate", x)) * out.reshape(*m.shape[:2], -1))

    def transition(self, at: str, x: Array) -> Array:
        x = self.norm(f"{at}.layer_norm_1", x)
        hidden = self.linear(f"{at}.linear_1", x)
        return self.linear(f"{at}.linear_3", hidden * sigmoid(hidden) * self.linear(f"{at}.linear_2", x))

    def multiplication(self, at: str, z: Array, product: str) -> Array:
        x = self.norm(f"{at}.norm_in", z)
        a, b = np.split(sigmoid(self.linear(f"{at}.g_in", x)) * self.linear(f"{at}.p_in", x), 2, axis=-1)
        out = self.norm(f"{at}.norm_out", np.einsum(product, a, b / len(z)))
        return self.linear(f"{at}.p_out", out) * sigmoid(self.linear(f"{at}.g_out", x))

    def attention(self, at: str, z: Array, ending: bool) -> Array:
        x = self.norm(f"{at}.norm", z)
        q, k, v = (self.heads(f"{at}.to_{each}", x, HEADS_PAIR) for each in "qkv")
        bias = self.linear(f"{at}.to_b", x)
        if ending:  # of ij over the edges kj, and the bias of ik
            logits = np.einsum("ijhd,kjhd->ijhk", q, k) / np.sqrt(q.shape[-1]) + np.einsum("ikh->ihk", bias)[:, None]
            out = np.einsum("ijhk,kjhd->ijhd", softmax(logits), v)
        else:  # of ij over the edges ik, and the bias of jk
            logits = np.einsum("ijhd,ikhd->ijhk", q, k) / np.sqrt(q.shape[-1]) + np.einsum("jkh->jhk", bias)[None]
            out = np.einsum("ijhk,ikhd->ijhd", softmax(logits), v)
        return self.linear(f"{at}.to_out", sigmoid(self.linear(f"{at}.to_g", x)) * out.reshape(*z.shape[:2], -1))

    def module(self, m: Array, z: Array) -> Array:
        for _ in range(ROUNDS):
            z = z + self.outer_product(m)
            m = m + self.averaging(m, z)
            m = m + self.transition("msa_transition", m)
            z = z + self.multiplication("tri_mult_outgoing", z, "ikc,jkc->ijc")
            z = z + self.multiplication("tri_mult_incoming", z, "kic,kjc->ijc")
            z = z + self.attention("tri_attn_start", z, ending=False)
            z = z + self.attention("tri_attn_end", z, ending=True)
            z = z + self.transition("pair_transition", z)
        return z


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def published() -> dict[str, Array]:
    """Random parameters under RosettaFold 3's names."""
    module = redraw_(MSAModule(CONFIG), seed=1).double()
    rules = FAMILIES["rosettafold3"].table(module, SCOPE, ())
    return {name: x.detach().numpy() for name, x in unmade(rules, dict(module.named_parameters()).__getitem__)}


def difference(change: Callable[[dict[str, Array]], Any] = lambda arrays: None) -> float:
    """Between our module, whose parameters are loaded from the arrays once changed, and the formulas with the arrays."""
    arrays = published()
    given = {name: array.copy() for name, array in arrays.items()}
    change(given)
    module = MSAModule(CONFIG).double().eval()
    load_weights(module, given)
    m, z = torch.randn(4, 5, 10, dtype=torch.float64), torch.randn(5, 5, 12, dtype=torch.float64)
    with torch.no_grad():
        return float(np.abs(module(m, z).numpy() - Published(arrays).module(m.numpy(), z.numpy())).max())


def test_the_module_is_its_formulas() -> None:
    assert difference() < 1e-10


def scaled(name: str) -> Callable[[dict[str, Array]], None]:
    def change(arrays: dict[str, Array]) -> None:
        arrays[f"{SCOPE}.{name}"] *= 1.02

    return change


def halves_exchanged(arrays: dict[str, Array]) -> None:
    for layer in ("p_in", "g_in"):
        name = f"{SCOPE}.tri_mult_incoming.{layer}.weight"
        arrays[name] = np.concatenate(np.split(arrays[name], 2)[::-1])


@pytest.mark.parametrize("change", [*map(scaled, ("outer_product.proj_right.bias", "tri_attn_end.to_b.weight")), halves_exchanged])
def test_changed_parameters_are_seen(change: Callable[[dict[str, Array]], None]) -> None:
    assert difference(change) > 1e-4
