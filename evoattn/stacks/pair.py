"""The updates of the pair representation, in the order that Evoformer, MSA module and Pairformer share."""

from functools import partial

from torch import Tensor

from evoattn.blocks import PairTransition, TriangleAttention, TriangleMultiplication
from evoattn.config import PairConfig
from evoattn.execution import Block
from evoattn.primitives import SharedDropout


class PairUpdates(Block):
    """What a block does to its pair representation: both triangle multiplications, both triangle attentions, transition.

    AlphaFold 2 supplement, algorithm 6, lines 6 to 10; AlphaFold 3 supplement, algorithms 8 and 17. A block derives from it.
    """

    def __init__(self, config: PairConfig) -> None:
        super().__init__()
        c, p = config, config.profile
        multiplication = partial(TriangleMultiplication, c.c_z, c.c_hidden_mul, bias=p.triangle_mul_bias, scale=p.triangle_mul_scale)
        attention = partial(
            TriangleAttention, c.c_z, d_head=c.c_head_tri, bias=p.triangle_attn_bias, ending_bias=p.ending_bias,
            starting_mask=p.starting_mask, pair_as=c.triangle_pair_as, pair_mode=c.pair_mode,
        )  # fmt: skip
        self.tri_mul_out = multiplication(direction="outgoing")
        self.tri_mul_in = multiplication(direction="incoming")
        self.tri_attn_start = attention(c.n_head_tri_start, node="starting")
        self.tri_attn_end = attention(c.n_head_tri_end, node="ending")
        self.pair_transition = PairTransition(c.c_z, c.pair_transition_n, p.transition, zero_masked=p.mask_transition == "all")
        self.drop_row = SharedDropout(c.dropout_pair, over=p.dropout_row)
        self.drop_column = SharedDropout(c.dropout_pair, over=p.dropout_column)
        self.drop_mul_in = self.drop_row if p.dropout_mul_in == "row" else self.drop_column

    def update_pair(self, z: Tensor, pair_mask: Tensor | None) -> Tensor:
        """The updated z."""
        update = self.update
        z = update(z, self.tri_mul_out, pair_mask, drop=self.drop_row)
        z = update(z, self.tri_mul_in, pair_mask, drop=self.drop_mul_in)
        z = update(z, self.tri_attn_start, pair_mask, drop=self.drop_row)
        z = update(z, self.tri_attn_end, pair_mask, drop=self.drop_column)
        return update(z, self.pair_transition, pair_mask)
