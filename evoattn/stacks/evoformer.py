"""The Evoformer stack and the extra-MSA stack: blocks wired by residual updates."""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evoattn.blocks import (
    MSAColumnAttention,
    MSAGlobalColumnAttention,
    MSARowAttention,
    MSATransition,
    OuterProductMean,
    PairTransition,
    TriangleAttention,
    TriangleMultiplication,
)
from evoattn.config import EvoformerConfig
from evoattn.errors import ConfigError, ShapeError
from evoattn.execution import Executable, Update, update, update_
from evoattn.ops import hide_nonfinite, hide_nonfinite_
from evoattn.primitives import SharedDropout, linear
from evoattn.shapes import check_features, check_mask


class EvoformerBlock(nn.Module):
    """One Evoformer block (AlphaFold 2 supplement, algorithm 6; with ``msa_column="global"`` one block of algorithm 18).

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    update: Update = staticmethod(update)
    """How an update is made; a stack that runs in place puts :func:`evoattn.execution.update_` here meanwhile."""

    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__()
        c = config
        column = MSAGlobalColumnAttention if c.msa_column == "global" else MSAColumnAttention
        triangle_attention = partial(TriangleAttention, c.c_z, pair_as=c.triangle_pair_as, pair_mode=c.pair_mode)
        self.config = config
        self.msa_row = MSARowAttention(c.c_m, c.c_z, c.n_head_msa_row, pair_as=c.msa_pair_as, pair_mode=c.pair_mode)
        self.msa_column = column(c.c_m, c.n_head_msa_column)
        self.msa_transition = MSATransition(c.c_m, c.msa_transition_n)
        self.outer_product = OuterProductMean(c.c_m, c.c_z, c.c_hidden_opm)
        self.tri_mul_out = TriangleMultiplication(c.c_z, c.c_hidden_mul, direction="outgoing")
        self.tri_mul_in = TriangleMultiplication(c.c_z, c.c_hidden_mul, direction="incoming")
        self.tri_attn_start = triangle_attention(c.n_head_tri_start, node="starting")
        self.tri_attn_end = triangle_attention(c.n_head_tri_end, node="ending")
        self.pair_transition = PairTransition(c.c_z, c.pair_transition_n)
        self.drop_msa = SharedDropout(c.dropout_msa, over="rows")
        self.drop_rows = SharedDropout(c.dropout_pair, over="rows")
        self.drop_columns = SharedDropout(c.dropout_pair, over="columns")

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (m, z); masks are True where there is something."""
        check_inputs("EvoformerBlock", self.config, m, z, msa_mask, pair_mask)
        update = self.update
        if self.config.profile.opm_first:
            z = update(z, self.outer_product, m, msa_mask)
        m = update(m, self.msa_row, z, msa_mask, pair_mask, drop=self.drop_msa)
        m = update(m, self.msa_column, msa_mask)
        m = update(m, self.msa_transition, msa_mask)
        if not self.config.profile.opm_first:
            z = update(z, self.outer_product, m, msa_mask)
        z = update(z, self.tri_mul_out, pair_mask, drop=self.drop_rows)
        z = update(z, self.tri_mul_in, pair_mask, drop=self.drop_rows)
        z = update(z, self.tri_attn_start, pair_mask, drop=self.drop_rows)
        z = update(z, self.tri_attn_end, pair_mask, drop=self.drop_columns)
        z = update(z, self.pair_transition, pair_mask)
        return m, z


class _Blocks(Executable):
    """Blocks one after another, recomputed in the backward pass under ``Execution(checkpoint=True)``."""

    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(EvoformerBlock(config) for _ in range(config.n_blocks))

    def run_blocks(self, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """m and z after all blocks."""
        check_inputs(type(self).__name__, self.config, m, z, msa_mask, pair_mask)
        # here and not only in each block, so that NaN in padding does not live on in the residual stream and its outputs
        m, z = hide_nonfinite(m, msa_mask), hide_nonfinite(z, pair_mask)
        for block in self.blocks:
            if self.execution.checkpoint:
                m, z = checkpoint(block, m, z, msa_mask, pair_mask, use_reentrant=False)
            else:
                m, z = block(m, z, msa_mask, pair_mask)
        return m, z

    @torch.no_grad()
    def run_blocks_(self, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """m and z after all blocks, written over the inputs."""
        check_inputs(type(self).__name__, self.config, m, z, msa_mask, pair_mask)
        for x, mask in ((m, msa_mask), (z, pair_mask)):
            hide_nonfinite_(x, mask)
        for block in self.blocks:
            assert isinstance(block, EvoformerBlock)
            block.update = update_
            try:
                block(m, z, msa_mask, pair_mask)
            finally:
                del block.update
        return m, z


class EvoformerStack(_Blocks):
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
        return m, z, self.single(m[..., 0, :, :])


class ExtraMSAStack(_Blocks):
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

    def run_(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """:meth:`forward` for inference, in little memory: uses up `m` and `z`, which are written over; see :meth:`EvoformerStack.run_`."""
        return self.run_blocks_(m, z, msa_mask, pair_mask)[1]


def check_inputs(owner: str, config: EvoformerConfig, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> None:
    """Refuse inputs that do not fit the config or each other.

    Raises:
        ShapeError: naming the owner, what was got and what is expected.
    """
    check_features(owner, "m", m, ["N_seq", "N_res", "c_m"], config.c_m)
    check_features(owner, "z", z, ["N_res", "N_res", "c_z"], config.c_z)
    *batch, _, n_res, _ = m.shape
    if z.shape[:-1] != (*batch, n_res, n_res):
        raise ShapeError(
            f"{owner}: z has shape {tuple(z.shape)}, which does not fit m {tuple(m.shape)} = [*batch, N_seq, N_res, c_m]; "
            f"expected {(*batch, n_res, n_res, config.c_z)} = [*batch, N_res, N_res, c_z], the batch axes included."
        )
    check_mask(owner, "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
    check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
