"""Updates of the single representation. Every block maps its input to a residual delta."""

from collections.abc import Sequence

from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.blocks.pair_input import PairInputBlock
from evoattn.config import PairAs, PairMode
from evoattn.ops import hide_nonfinite
from evoattn.primitives import GatedAttention, LayerNorm
from evoattn.shapes import check_features, check_mask


class AttentionPairBias(PairInputBlock):
    """Gated self-attention over the single representation with pair bias (AlphaFold 3 supplement, algorithm 24, without conditioning).

    As published only the query projection has a bias; gate and output have none.

    Args:
        c_s, c_z: channels of the single and pair representation. heads: attention heads of width c_s / heads.
        d_head: width of a head, if another. q_bias: whether the query projection has a bias (RosettaFold 3: no). bias: whether gate and
            output have one (ESMFold).
        pair_as: how z_ij enters: any mix of "bias", "keys" and "values"; published systems use ("bias",).
        pair_mode: "relative" or "appended", see :class:`evoattn.primitives.MultiHeadAttention`.
    """

    attn: GatedAttention

    def __init__(
        self, c_s: int, c_z: int, heads: int, *, d_head: int | None = None, q_bias: bool = True, bias: bool = False,
        pair_as: Sequence[PairAs] = ("bias",), pair_mode: PairMode = "relative",
    ) -> None:  # fmt: skip
        super().__init__(c_z, heads, pair_as, bias_init="linear")
        self.c_s = c_s
        self.norm = LayerNorm(c_s)
        pair = {"c_pair": c_z, "pair_as": pair_as, "pair_mode": pair_mode}
        self.attn = GatedAttention(c_s, heads, d_head=d_head, q_bias=q_bias, out_bias=bias, gate_bias=bias, **pair)

    def forward(
        self,
        s: Float[Tensor, "*batch n c_s"],
        z: Float[Tensor, "*batch n n c_z"],
        mask: Bool[Tensor, "*batch n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n c_s"]:
        """delta of s. `mask` hides keys; the pair mask only keeps non-finite entries of z at masked places out."""
        check_features("AttentionPairBias", "s", s, ["N_res", "c_s"], self.c_s)
        check_mask("AttentionPairBias", "mask", mask, s.shape[:-1], ["N_res"])
        self.check_pair(z, pair_mask, "s", s, batch=s.shape[:-2])
        biases, pair = self.pair_inputs(z, pair_mask)
        keys = None if mask is None else rearrange(mask, "... k -> ... 1 1 1 k")
        x = rearrange(self.norm(hide_nonfinite(s, mask)), "... n c -> ... 1 n c")  # as the only row of an alignment
        return rearrange(self.attn(x, biases=biases, mask=keys, pair=pair), "... 1 n c -> ... n c")
