"""The losses of AlphaFold 2 that need no coordinates: what stood in a hidden cell, and how far apart residues are.

Each returns a sum and the number of elements in it, not a mean: the mean of a step is taken over all its samples, on all processes, so that
neither the number of processes nor how samples are grouped changes it.
"""

from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from evoattn.errors import ShapeError


@dataclass(frozen=True)
class Sum:
    """A sum of losses, in nats, and over how many elements; both are scalars."""

    total: Float[Tensor, ""]
    count: Float[Tensor, ""]


@dataclass(frozen=True)
class Bins:
    """Bins of C-beta distances (C-alpha of glycine), in Angstrom; the first and the last are open.

    A distance of exactly 8, which is no break in either preset, has no bin border to be told by: the contact probability of
    :meth:`evoattn.heads.DistogramHead.contacts` adds the bins that end at or below 8, so that it means a distance below 7.94 with AlphaFold
    2's breaks and below 7.81 with Boltz's.
    """

    count: int = 64
    first_break: float = 2.3125
    last_break: float = 21.6875

    def breaks(self) -> Float[Tensor, " count_minus_1"]:
        """The borders between bins, at equal distances."""
        return torch.linspace(self.first_break, self.last_break, self.count - 1)


BINS: Final = {"alphafold2": Bins(), "boltz": Bins(64, 2.0, 22.0)}
"""AlphaFold 2 (63 breaks from 2.3125 to 21.6875, 0.3125 apart) and Boltz (63 breaks from 2 to 22)."""


def masked_msa_loss(
    logits: Float[Tensor, "*batch s n classes"], true_msa: Int64[Tensor, "*batch s n"], told: Bool[Tensor, "*batch s n"]
) -> Sum:
    """Cross entropy of the cells that are to be told (AlphaFold 2 supplement, 1.9.9).

    Args:
        logits: of the 23 codes of :mod:`evoattn.io.residues`, or 22 without the mask token.
        true_msa, told: features ``true_msa`` and ``bert_mask`` of :func:`evoattn.make_features`.

    Raises:
        ShapeError: the three do not fit each other.
    """
    if logits.shape[:-1] != true_msa.shape or told.shape != true_msa.shape:
        raise ShapeError(
            f"masked_msa_loss: logits {tuple(logits.shape)}, true_msa {tuple(true_msa.shape)}, told {tuple(told.shape)}; expected "
            "[*batch, N_seq, N_res] for the last two, and one more axis of classes for the logits."
        )
    return _sum(logits, true_msa, told)


def distogram_loss(
    logits: Float[Tensor, "*batch n n bins"], pseudo_beta: Float[Tensor, "*batch n 3"], mask: Bool[Tensor, "*batch n"], bins: Bins
) -> Sum:
    """Cross entropy of the bin of each C-beta distance, over all pairs of resolved residues (AlphaFold 2 supplement, 1.9.8, equation 41).

    As in AlphaFold 2's code a residue and itself are a pair too.

    Args:
        pseudo_beta: C-beta in Angstrom, C-alpha of glycine; any number where `mask` is False. mask: residues with a position.

    Raises:
        ShapeError: the arguments do not fit each other.
    """
    if logits.shape[:-2] != mask.shape or pseudo_beta.shape[:-1] != mask.shape or logits.shape[-1] != bins.count:
        raise ShapeError(
            f"distogram_loss: logits {tuple(logits.shape)}, pseudo_beta {tuple(pseudo_beta.shape)}, mask {tuple(mask.shape)}; expected "
            f"[*batch, N_res, N_res, {bins.count}], [*batch, N_res, 3] and [*batch, N_res]."
        )
    target = distance_bin(pseudo_beta, mask, bins)
    return _sum(logits, target, mask[..., :, None] & mask[..., None, :])


def distance_bin(pseudo_beta: Float[Tensor, "*batch n 3"], mask: Bool[Tensor, "*batch n"], bins: Bins) -> Int64[Tensor, "*batch n n"]:
    """Which bin each distance falls into; one that equals a break falls into the bin below it."""
    x = pseudo_beta.masked_fill(~mask[..., None], 0.0)
    distance = (x[..., :, None, :] - x[..., None, :, :]).norm(dim=-1)
    return torch.bucketize(distance, bins.breaks().to(distance), right=False)


def _sum(logits: Float[Tensor, "*shape classes"], target: Int64[Tensor, "*shape"], counted: Bool[Tensor, "*shape"]) -> Sum:
    """Cross entropy in float32, or float64 where the logits are."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    errors = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none").view_as(target)
    # where, not a product: infinity times zero is NaN
    return Sum(torch.where(counted, errors, 0.0).sum(), counted.sum().to(errors.dtype))
