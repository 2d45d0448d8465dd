"""The Evoformer stack and the extra-MSA stack: blocks wired by residual updates."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.blocks import (
    MSAColumnAttention,
    MSAGlobalColumnAttention,
    MSARowAttention,
    MSATransition,
    OuterProductMean,
)
from evoattn.config import EvoformerConfig
from evoattn.errors import ConfigError, ShapeError
from evoattn.primitives import SharedDropout, linear
from evoattn.stacks.blocks import BlockStack
from evoattn.stacks.checks import check_msa_inputs
from evoattn.stacks.pair import PairUpdates


class EvoformerBlock(PairUpdates):
    """One Evoformer block (AlphaFold 2 supplement, algorithm 6; with ``msa_column="global"`` one block of algorithm 18).

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__(config)
        c, p = config, config.profile
        extra = c.msa_column == "global"
        masked = p.mask_transition == "all" or (p.mask_transition == "extra_msa" and extra)
        self.config = config
        self.msa_row = MSARowAttention(
            c.c_m, c.c_z, c.n_head_msa_row, d_head=c.c_head_msa, bias=p.msa_attn_bias, pair_as=c.msa_pair_as, pair_mode=c.pair_mode
        )
        column = MSAGlobalColumnAttention if extra else MSAColumnAttention
        self.msa_column = column(c.c_m, c.n_head_msa_column, d_head=c.c_head_msa, bias=p.msa_attn_bias)
        self.msa_transition = MSATransition(c.c_m, c.msa_transition_n, p.transition, zero_masked=masked)
        self.outer_product = OuterProductMean(c.c_m, c.c_z, c.c_hidden_opm, norm=p.opm_norm, proj_bias=p.opm_proj_bias)
        self.drop_msa = SharedDropout(c.dropout_msa, over=p.dropout_row)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (m, z); masks are True where there is something."""
        check_msa_inputs("EvoformerBlock", self.config.c_m, self.config.c_z, m, z, msa_mask, pair_mask)
        update = self.update
        if self.config.profile.opm_first:
            z = update(z, self.outer_product, m, msa_mask)
        m = update(m, self.msa_row, z, msa_mask, pair_mask, drop=self.drop_msa)
        m = update(m, self.msa_column, msa_mask)
        m = update(m, self.msa_transition, msa_mask)
        if not self.config.profile.opm_first:
            z = update(z, self.outer_product, m, msa_mask)
        return m, self.update_pair(z, pair_mask)


class _EvoformerBlocks(BlockStack):
    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__([EvoformerBlock(config) for _ in range(config.n_blocks)])
        self.config = config

    def check(self, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> None:
        check_msa_inputs(type(self).__name__, self.config.c_m, self.config.c_z, m, z, msa_mask, pair_mask)


class EvoformerStack(_EvoformerBlocks):
    """Evoformer blocks and the single representation (AlphaFold 2 supplement, algorithm 6).

    Raises:
        ConfigError: the config has no width for the single representation. ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__(config)
        if config.c_s is None:
            raise ConfigError("EvoformerStack: config.c_s is None; give the channels of the single representation, or use ExtraMSAStack.")
        self.single = linear(config.c_m, config.c_s)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch n n c_z"], Float[Tensor, "*batch n c_s"]]:
        """(m, z, s); s is a projection of the first row of m. Batch axes are free; masks are True where there is something."""
        return self._with_single(*self.run_blocks(m, z, msa_mask, pair_mask))

    @torch.no_grad()
    def run_(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch n n c_z"], Float[Tensor, "*batch n c_s"]]:
        """:meth:`forward` for inference, in little memory: uses up `m` and `z`, which are written over, and returned.

        Without gradients and without dropout. Beyond m and z it takes one more tensor of the size of z, and temporaries of slices.
        """
        return self._with_single(*self.run_blocks_(m, z, msa_mask, pair_mask))

    def _with_single(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if m.shape[-3] == 0:
            raise ShapeError(f"EvoformerStack: m has shape {tuple(m.shape)}, an alignment of no rows; the query sequence is its first row.")
        return m, z, self.single(m[..., 0, :, :].to(self.single.weight.dtype))  # representations may be narrower than parameters


class ExtraMSAStack(_EvoformerBlocks):
    """The extra-MSA stack: updates the pair representation from many more sequences (AlphaFold 2 supplement, algorithm 18).

    With ``profile.opm_first`` nobody reads what the last block makes of m, so that the parameters which make it get no gradient; they exist
    since the published ones do. Distributed training then has to look for unused parameters.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """The updated z. Batch axes are free, and m may have no rows; masks are True where there is something."""
        return self.run_blocks(m, z, msa_mask, pair_mask)[1]

    @torch.no_grad()
    def run_(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """:meth:`forward` for inference, in little memory: uses up `m` and `z`, which are written over; see :meth:`EvoformerStack.run_`."""
        return self.run_blocks_(m, z, msa_mask, pair_mask)[1]
