"""A trunk with the heads whose losses need no coordinates."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.config import TrunkConfig
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.io.residues import N_CODES
from evoattn.model import EvoformerTrunk
from evoattn.train.losses import Bins


class Logits(NamedTuple):
    """What the heads say: msa [*batch, N_seq, N_res, 23], distogram [*batch, N_res, N_res, bins]."""

    msa: Float[Tensor, "*batch s n classes"]
    distogram: Float[Tensor, "*batch n n bins"]


class TrunkWithHeads(nn.Module):
    """:class:`evoattn.EvoformerTrunk` with the masked-MSA and the distogram head (AlphaFold 2 supplement, 1.9.8 and 1.9.9)."""

    def __init__(self, config: TrunkConfig, bins: Bins) -> None:
        super().__init__()
        self.bins = bins
        self.trunk = EvoformerTrunk(config)
        self.masked_msa = MaskedMSAHead(config.evoformer.c_m, N_CODES)
        self.distogram = DistogramHead(
            config.evoformer.c_z, bins.count, first_break=bins.first_break, last_break=bins.last_break
        )

    def forward(self, features: Mapping[str, Tensor]) -> Logits:
        """Features as :class:`evoattn.EvoformerTrunk` takes them."""
        out = self.trunk(features)
        return Logits(self.masked_msa(out.msa), self.distogram(out.pair))


def freeze_unread(model: TrunkWithHeads) -> list[str]:
    """Stop the training of parameters that no head reads, and return their names.

    The projection to the single representation is one, and with the outer product first what the last extra block makes of its rows.
    They exist since published models have them. Left trainable they would never get a gradient, which distributed training waits for.
    """
    parameters = dict(model.named_parameters())
    with torch.enable_grad():
        out = model(_four_residues(model.trunk.config, next(iter(parameters.values()))))
        gradients = torch.autograd.grad(out.msa.sum() + out.distogram.sum(), list(parameters.values()), allow_unused=True)
    unread = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None]
    for name in unread:
        parameters[name].requires_grad_(False)
    return unread


def _four_residues(config: TrunkConfig, like: Tensor) -> dict[str, Tensor]:
    """The smallest features that go through every block."""
    return {
        "target_feat": like.new_zeros(4, config.c_target_feat),
        "residue_index": torch.arange(4, device=like.device),
        "msa_feat": like.new_zeros(2, 4, config.c_msa_feat),
        "extra_msa_feat": like.new_zeros(2, 4, config.c_extra_feat),
    }
