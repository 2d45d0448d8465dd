"""How the pair representation enters an attention along residues."""

from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from evoattn.blocks.slices import by_rows
from evoattn.config import PairAs
from evoattn.errors import ShapeError
from evoattn.ops import hide_nonfinite
from evoattn.primitives import GatedAttention, GatedAveraging, LayerNorm, linear
from evoattn.shapes import Pair, PairMask, check_features, check_mask
from evoattn.updates import take_part


class PairInputBlock(nn.Module):
    """A block whose attention over residues, `attn`, takes the pair representation as bias, keys or values, after a norm of its own."""

    attn: GatedAttention | GatedAveraging

    def __init__(self, c_z: int, heads: int, pair_as: Sequence[PairAs], bias_init: str) -> None:
        super().__init__()
        self.c_z = c_z
        self.pair_norm = LayerNorm(c_z) if pair_as else None
        self.pair_bias = linear(c_z, heads, bias=False, init=bias_init) if "bias" in pair_as else None

    def check_pair(self, z: Pair, pair_mask: PairMask | None, name: str, x: Tensor, batch: Sequence[int]) -> None:
        """Check z and its mask, and that z has the residues of `x` (called `name`), its last axis but one, and its batch axes.

        Raises:
            ShapeError: saying which does not fit.
        """
        owner = type(self).__name__
        check_features(owner, "z", z, ["N_res", "N_res", "c_z"], self.c_z)
        expected = (*batch, x.shape[-2], x.shape[-2], self.c_z)
        if tuple(z.shape) != expected:
            raise ShapeError(
                f"{owner}: z has shape {tuple(z.shape)}, which does not fit {name} {tuple(x.shape)}; expected [*batch, N_res, N_res, c_z] "
                f"= {expected}, with the residues and batch axes of {name}. To share one z over a batch, expand it (z.expand is a view)."
            )
        check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])

    def pair_inputs(
        self, z: Pair, pair_mask: PairMask | None, *, sliced: bool = False
    ) -> tuple[list[Float[Tensor, "*batch 1 h n n"]], Float[Tensor, "*batch 1 n n c_z"] | None]:
        """The biases, and the normed pair features, both shared over the rows of an alignment.

        Where gradients are recorded, `sliced` makes the bias in small temporaries, which are computed again in the backward pass.
        """
        if self.pair_norm is None:
            return [], None
        if self.attn.takes_pair:
            pair = self.pair_norm(hide_nonfinite(z, pair_mask))
            biases = [] if self.pair_bias is None else [self._bias(pair)]
            return biases, rearrange(pair, "... q k c -> ... 1 q k c")
        if torch.is_grad_enabled() and not sliced:
            return [self._bias(self.pair_norm(hide_nonfinite(z, pair_mask)))], None
        norm = self.pair_norm

        def rows_bias(rows: Tensor, part: slice) -> Tensor:
            return self._bias(norm(hide_nonfinite(rows, None if pair_mask is None else take_part(pair_mask, part, -2))))

        return [by_rows(rows_bias, z, out_axis=-2)], None

    def _bias(self, pair: Tensor) -> Float[Tensor, "*batch 1 h q k"]:
        assert self.pair_bias is not None
        return rearrange(self.pair_bias(pair), "... q k h -> ... 1 h q k")
