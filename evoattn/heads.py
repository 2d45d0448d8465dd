"""Output heads that need no coordinates: what stands in a hidden cell of the alignment, and which residues touch."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.errors import ConfigError
from evoattn.primitives import linear
from evoattn.shapes import check_features


class MaskedMSAHead(nn.Module):
    """Logits of the letter of every cell of the alignment (AlphaFold 2 supplement, 1.9.9).

    Args:
        c_m: channels of the MSA representation. classes: 23 of the monomer (20 amino acids, unknown, gap, mask); 22 of multimer.
    """

    def __init__(self, c_m: int, classes: int = 23) -> None:
        super().__init__()
        self.logits = linear(c_m, classes, init="final")

    def forward(self, m: Float[Tensor, "*batch s n c_m"]) -> Float[Tensor, "*batch s n classes"]:
        check_features("MaskedMSAHead", "m", m, ["N_seq", "N_res", "c_m"], self.logits.in_features)
        return self.logits(m)


class DistogramHead(nn.Module):
    """Logits of the bin of the distance between C-beta atoms (AlphaFold 2 supplement, 1.9.8), symmetric in the two residues.

    Args:
        c_z: channels of the pair representation. bins: of which the first and the last are open.
        first_break, last_break: the borders in Angstrom between the first two and between the last two bins; the others are between, at
            equal distances.

    Raises:
        ConfigError: there are fewer than three bins, or the borders are not in order.
    """

    def __init__(self, c_z: int, bins: int = 64, *, first_break: float = 2.3125, last_break: float = 21.6875) -> None:
        super().__init__()
        if bins < 3 or not 0 < first_break < last_break:
            raise ConfigError(
                f"DistogramHead: bins is {bins}, first_break {first_break} and last_break {last_break}; it takes at least 3 bins, "
                "and borders in Angstrom, the first below the last."
            )
        self.breaks = (first_break, last_break)
        self.half_logits = linear(c_z, bins, init="final")

    def forward(self, z: Float[Tensor, "*batch n n c_z"]) -> Float[Tensor, "*batch n n bins"]:
        check_features("DistogramHead", "z", z, ["N_res", "N_res", "c_z"], self.half_logits.in_features)
        half = self.half_logits(z)
        return half + half.transpose(-2, -3)

    def contacts(self, logits: Float[Tensor, "*batch n n bins"], distance: float = 8.0) -> Float[Tensor, "*batch n n"]:
        """The probability that two residues are nearer than `distance`, in Angstrom: of the bins that end below it.

        Raises:
            ConfigError: no bin, or every bin, ends below it.
        """
        first, last = self.breaks
        ends = torch.linspace(first, last, logits.shape[-1] - 1)
        near = int((ends <= distance).sum())
        if near == 0 or distance > last:
            raise ConfigError(f"DistogramHead: distance is {distance}; the bins tell distances from {first} to {last} Angstrom.")
        return torch.sigmoid(logits[..., :near].logsumexp(-1) - logits[..., near:].logsumexp(-1))
