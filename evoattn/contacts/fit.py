"""Fitting factored attention to an alignment by pseudo-likelihood."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Float64, Int
from torch import Tensor
from torch.nn import functional as F

from evoattn.contacts.factored import AMINO_ACIDS, FactoredAttention, blocks, both_ways, couplings
from evoattn.errors import ConfigError, MSAError
from evoattn.io.msa import MSA

IGNORED: Final = -100
"""The target of gaps and unknown residues."""

OnStep = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


@dataclass(frozen=True)
class FitConfig:
    """How the attention is fitted.

    Attributes:
        heads, d_head: of :class:`FactoredAttention`. steps: of Adam. batch: rows of a step, drawn with probability proportional to their
            weight, so that the loss needs none. learning_rate: the highest of a one-cycle schedule.
        ridge: the penalty is ridge (N_res - 1) / Neff times the sum of all squared couplings. CCMpred's is 0.1 in these terms (Seemayer
            et al. 2014: 0.2 (N_res - 1) for each pair of residues); a ridge spares diffuse attention, so that less of it does better here.
        bf16: matrix products in bfloat16; None is where the processor has instructions for it.
        seed: of the initial parameters and of the rows drawn. With the same seed, machine and threads the result is the same, bit for bit.

    Raises:
        ConfigError: a value is outside what is allowed.
    """

    heads: int = 64
    d_head: int = 32
    steps: int = 500
    batch: int = 128
    learning_rate: float = 0.06
    ridge: float = 0.05
    bf16: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("heads", 1), ("d_head", 1), ("steps", 2), ("batch", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate}; it must be above 0, such as 0.06.")
        if not self.ridge >= 0:
            raise ConfigError(f"ridge is {self.ridge}; it must be at least 0, such as 0.05.")

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrix products."""
        return torch.bfloat16 if (fast_bf16() if self.bf16 is None else self.bf16) else torch.float32


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted model and how it came about."""

    model: FactoredAttention
    losses: list[float]
    """Of each step: the mean over its rows of -log p of a residue, in nats, the penalty aside."""


def fast_bf16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def fit_attention(
    msa: MSA, weights: Float64[np.ndarray, " s"], config: FitConfig | None = None, on_step: OnStep | None = None
) -> Fit:
    """Fit couplings to the rows of a protein family, by the likelihood of each residue given all others of its row.

    Gaps and unknown residues are neither input nor target. Memory is that of the alignment as one-hot letters, and of the attention maps.

    Args:
        msa: the family. weights: of its rows (:func:`evoattn.io.row_weights` with ``columns="all"``).
        config: see there. on_step: called after each step.

    Raises:
        MSAError: there is nothing to learn from: no residue that is known, or a single column. ConfigError: the loss is not finite.
    """
    config = config or FitConfig()
    generator = torch.Generator().manual_seed(config.seed)
    codes = torch.from_numpy(msa.residues.astype(np.int64))
    known = codes < AMINO_ACIDS
    if msa.n_res < 2 or not known.any():
        raise MSAError("has nothing that could be coupled: it needs two columns and a known residue.", file=msa.source or None)
    targets = codes.masked_fill(~known, IGNORED)
    model = FactoredAttention(msa.n_res, config.heads, config.d_head, generator)
    row_weights = torch.from_numpy(weights)
    with torch.no_grad():
        model.bias.copy_(_log_frequencies(targets, row_weights))
    optimiser = torch.optim.Adam(model.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.learning_rate, total_steps=config.steps)
    ridge = config.ridge * (msa.n_res - 1) / float(weights.sum())
    losses = []
    for step in range(config.steps):
        rows = torch.multinomial(row_weights, config.batch, replacement=True, generator=generator)
        optimiser.zero_grad()
        losses.append(backward(model, targets[rows], ridge, config.dtype))
        if not np.isfinite(losses[-1]):
            raise ConfigError(f"the loss is {losses[-1]} at step {step + 1}; lower learning_rate, now {config.learning_rate}.")
        optimiser.step()
        schedule.step()
        if on_step:
            on_step(step + 1, config.steps)
    return Fit(model, losses)


def backward(model: FactoredAttention, targets: Int[Tensor, "b n"], ridge: float, dtype: torch.dtype) -> float:
    """Give every parameter the gradient of (-log p summed over the residues, averaged over the rows) + ridge |W|^2.

    The couplings are made for a few residues at a time, used, and differentiated at once: autograd over the whole would hold all of them.
    Returns -log p per residue, in nats.
    """
    letters = F.one_hot(targets.clamp(min=0), AMINO_ACIDS).masked_fill((targets < 0)[..., None], 0).flatten(1).to(dtype)
    maps, heads = model.maps(), len(model.values)
    values, bias = both_ways(model.values) / 2, model.bias
    leaves = [x.detach().requires_grad_() for x in (values, bias)]
    of_maps = torch.zeros_like(maps)
    total = 0.0
    for rows, part in blocks(both_ways(maps.detach().to(dtype))):
        part = part.clone().requires_grad_()
        loss = _loss(letters, targets[:, rows], couplings(part, leaves[0].to(dtype)), leaves[1][rows]) / len(targets)
        loss.backward()
        assert part.grad is not None
        of_maps[:, rows] += part.grad[:heads]
        of_maps[:, :, rows] += part.grad[heads:].transpose(1, 2)
        total += loss.item()
    penalty = ridge * squared_couplings(maps.to(dtype), model.values.to(dtype))
    torch.autograd.backward([maps, values, bias, penalty], [of_maps, leaves[0].grad, leaves[1].grad, None])
    return total * len(targets) / max(1, int((targets >= 0).sum()))


def squared_couplings(maps: Float[Tensor, "h n n"], values: Float[Tensor, "h a b"]) -> Float[Tensor, ""]:
    """The sum of all W_ij(a, b)^2 of the symmetric couplings, through Gram matrices of maps and values."""
    wide = torch.promote_types(maps.dtype, torch.float32)
    plain, mirrored = (
        (maps.flatten(1) @ of_maps.flatten(1).T).to(wide) * (values.flatten(1) @ of_values.flatten(1).T).to(wide)
        for of_maps, of_values in ((maps, values), (maps.mT, values.mT))
    )
    return (plain + mirrored).sum() / 2


def _loss(
    letters: Float[Tensor, "b nb"], targets: Int[Tensor, "b r"], coupled: Float[Tensor, "r n ab"], bias: Float[Tensor, "r a"]
) -> Float[Tensor, ""]:
    """-log p of the letters of r residues given all others, summed."""
    by_letter = rearrange(coupled, "r n (a b) -> (n b) (r a)", a=AMINO_ACIDS)
    logits = rearrange(letters @ by_letter, "b (r a) -> b r a", a=AMINO_ACIDS).to(bias.dtype) + bias
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=IGNORED)


def _log_frequencies(targets: Int[Tensor, "s n"], weights: Float[Tensor, " s"]) -> Float[Tensor, "n a"]:
    """Of the letters of each column, with one more row of each, less their mean."""
    counts = torch.ones(targets.shape[1], AMINO_ACIDS, dtype=weights.dtype)
    columns = torch.arange(targets.shape[1]).expand_as(targets)
    there = targets >= 0
    counts.index_put_((columns[there], targets[there]), weights[:, None].expand_as(targets)[there], accumulate=True)
    logs = counts.log()
    return (logs - logs.mean(1, keepdim=True)).float()
