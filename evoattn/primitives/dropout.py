"""Dropout that drops whole rows or columns of a representation."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.errors import ConfigError

AXES = {"entries": (), "rows": (-3,), "columns": (-2,), "rows and channels": (-3, -1), "columns and channels": (-2, -1)}


class SharedDropout(nn.Module):
    """Dropout whose mask is shared over the rows, or the columns, of an MSA or pair representation (AlphaFold 2 supplement, 1.11.6).

    ``over="rows"`` draws one mask [1, n, c] for all rows (DropoutRowwise), ``over="columns"`` one [s, 1, c] for all columns
    (DropoutColumnwise). With ``"rows and channels"`` and ``"columns and channels"`` it is shared over the channels too (Boltz).
    With ``"entries"`` nothing is shared. Each batch entry draws its own. Kept entries are scaled by 1 / (1 - rate).

    Raises:
        ConfigError: the rate is not in [0, 1), or `over` is neither.
    """

    def __init__(self, rate: float, over: str) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ConfigError(f"SharedDropout: rate is {rate}; it must be at least 0 and below 1.")
        if over not in AXES:
            raise ConfigError(f"SharedDropout: over is {over!r}; allowed are {', '.join(map(repr, AXES))}.")
        self.rate, self.over = rate, over

    def forward(self, x: Float[Tensor, "*batch s n c"]) -> Float[Tensor, "*batch s n c"]:
        factor = self.factor(x)
        return x if factor is None else x * factor

    def factor(self, x: Float[Tensor, "*batch s n c"]) -> Float[Tensor, "*batch #s #n #c"] | None:
        """What `x` is multiplied with, drawn anew: 0 or 1 / (1 - rate); None where nothing is dropped."""
        if not self.training or self.rate == 0.0:
            return None
        shape = list(x.shape)
        for axis in AXES[self.over]:
            shape[axis] = 1
        kept = torch.rand(shape, device=x.device, dtype=torch.float32) >= self.rate
        return kept.to(x.dtype) / (1.0 - self.rate)

    def extra_repr(self) -> str:
        return f"{self.rate}, over={self.over!r}"
