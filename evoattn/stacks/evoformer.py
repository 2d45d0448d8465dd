"""The Evoformer stack and the extra-MSA stack: blocks wired by residual updates."""

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
from evoattn.errors import ConfigError
from evoattn.execution import Executable, update
from evoattn.primitives import SharedDropout, linear
from evoattn.shapes import check_features, check_mask


class EvoformerBlock(nn.Module):
    """One Evoformer block (AlphaFold 2 supplement, algorithm 6; with ``msa_column="global"`` one block of algorithm 18)."""

    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__()
        c, column = config, MSAGlobalColumnAttention if config.msa_column == "global" else MSAColumnAttention
        self.opm_first = c.opm_first
        self.msa_row = MSARowAttention(c.c_m, c.c_z, c.n_head_msa_row, pair_as=c.msa_pair_as, pair_mode=c.pair_mode)
        self.msa_column = column(c.c_m, c.n_head_msa_column)
        self.msa_transition = MSATransition(c.c_m, c.msa_transition_n)
        self.outer_product = OuterProductMean(c.c_m, c.c_z, c.c_hidden_opm)
        self.tri_mul_out = TriangleMultiplication(c.c_z, c.c_hidden_mul, direction="outgoing")
        self.tri_mul_in = TriangleMultiplication(c.c_z, c.c_hidden_mul, direction="incoming")
        self.tri_attn_start = TriangleAttention(c.c_z, c.n_head_tri_start, node="starting", pair_as=c.triangle_pair_as, pair_mode=c.pair_mode)
        self.tri_attn_end = TriangleAttention(c.c_z, c.n_head_tri_end, node="ending", pair_as=c.triangle_pair_as, pair_mode=c.pair_mode)
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
        if self.opm_first:
            z = z + self.outer_product(m, msa_mask)
        m = update(m, self.msa_row, z, msa_mask, pair_mask, drop=self.drop_msa)
        m = update(m, self.msa_column, msa_mask)
        m = update(m, self.msa_transition, msa_mask)
        if not self.opm_first:
            z = z + self.outer_product(m, msa_mask)
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
        owner = type(self).__name__
        check_features(owner, "m", m, ["N_seq", "N_res", "c_m"], self.config.c_m)
        check_features(owner, "z", z, ["N_res", "N_res", "c_z"], self.config.c_z)
        check_mask(owner, "msa_mask", msa_mask, m.shape[:-1], ["N_seq", "N_res"])
        check_mask(owner, "pair_mask", pair_mask, z.shape[:-1], ["N_res", "N_res"])
        for block in self.blocks:
            if self.execution.checkpoint:
                m, z = checkpoint(block, m, z, msa_mask, pair_mask, use_reentrant=False)
            else:
                m, z = block(m, z, msa_mask, pair_mask)
        return m, z


class EvoformerStack(_Blocks):
    """Evoformer blocks and the single representation (AlphaFold 2 supplement, algorithm 6).

    Raises:
        ConfigError: the config has no width for the single representation. ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: EvoformerConfig) -> None:
        super().__init__(config)
        if config.c_s is None:
            raise ConfigError("EvoformerStack: config.c_s is None; give the channels of the single representation, e.g. 384, or use ExtraMSAStack.")
        self.single = linear(config.c_m, config.c_s)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch n n c_z"], Float[Tensor, "*batch n c_s"]]:
        """(m, z, s); s is a projection of the first row of m. Batch axes are free; masks are True where there is something."""
        m, z = self.run_blocks(m, z, msa_mask, pair_mask)
        return m, z, self.single(m[..., 0, :, :])


class ExtraMSAStack(_Blocks):
    """The extra-MSA stack: updates the pair representation from many more sequences (AlphaFold 2 supplement, algorithm 18)."""

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        return self.run_blocks(m, z, msa_mask, pair_mask)[1]
