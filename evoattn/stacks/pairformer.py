"""The Pairformer: the single representation follows the pair representation."""

from jaxtyping import Bool, Float
from torch import Tensor, nn

from evoattn.blocks import AttentionPairBias
from evoattn.config import PairformerConfig
from evoattn.primitives import Transition
from evoattn.stacks.blocks import BlockStack
from evoattn.stacks.checks import check_single_inputs
from evoattn.stacks.pair import PairUpdates


class PairformerBlock(PairUpdates):
    """One Pairformer block (AlphaFold 3 supplement, algorithm 17, lines 2 to 8): the pair updates, then attention with pair bias.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: PairformerConfig) -> None:
        super().__init__(config)
        c, p = config, config.profile
        self.config = config
        self.single_attn = AttentionPairBias(
            c.c_s, c.c_z, c.n_head_single, d_head=c.c_head_single, q_bias=p.single_q_bias, bias=p.single_bias, pair_as=c.single_pair_as,
            pair_mode=c.pair_mode,
        )  # fmt: skip
        self.single_transition = Transition(c.c_s, c.single_transition_n, p.transition, zero_masked=p.mask_transition == "all")
        self.single_post_norm = nn.LayerNorm(c.c_s) if c.single_post_norm else None

    def forward(
        self,
        s: Float[Tensor, "*batch n c_s"],
        z: Float[Tensor, "*batch n n c_z"],
        mask: Bool[Tensor, "*batch n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch n c_s"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (s, z); masks are True where there is something. s, which is small, is never updated in place."""
        check_single_inputs("PairformerBlock", self.config.c_s, self.config.c_z, s, z, mask, pair_mask)
        z = self.update_pair(z, pair_mask)
        s = self.update_whole(s, self.single_attn, z, mask, pair_mask)
        s = self.update_whole(s, self.single_transition, mask)
        return s if self.single_post_norm is None else self.single_post_norm(s), z


class PairformerStack(BlockStack):
    """Pairformer blocks (AlphaFold 3 supplement, algorithm 17).

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: PairformerConfig) -> None:
        super().__init__([PairformerBlock(config) for _ in range(config.n_blocks)])
        self.config = config

    def check(self, s: Tensor, z: Tensor, mask: Tensor | None, pair_mask: Tensor | None) -> None:
        check_single_inputs("PairformerStack", self.config.c_s, self.config.c_z, s, z, mask, pair_mask)

    def forward(
        self,
        s: Float[Tensor, "*batch n c_s"],
        z: Float[Tensor, "*batch n n c_z"],
        mask: Bool[Tensor, "*batch n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch n c_s"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (s, z). Batch axes are free; masks are True where there is something.

        Protenix and RosettaFold 3 have no `mask`: give None to get their numbers.
        """
        return self.run_blocks(s, z, mask, pair_mask)

    def run_(
        self,
        s: Float[Tensor, "*batch n c_s"],
        z: Float[Tensor, "*batch n n c_z"],
        mask: Bool[Tensor, "*batch n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch n c_s"], Float[Tensor, "*batch n n c_z"]]:
        """:meth:`forward` for inference, in little memory: uses up `s` and `z`; z is written over, and returned.

        Without gradients and without dropout. Beyond z it takes one more tensor of its size, and temporaries of slices.
        """
        return self.run_blocks_(s, z, mask, pair_mask)
