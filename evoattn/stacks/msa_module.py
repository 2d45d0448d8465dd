"""The MSA module of AlphaFold 3 and its kin: the pair representation learns from the alignment."""

from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.blocks import MSATransition, OuterProductMean, PairWeightedAveraging
from evoattn.config import MSAModuleConfig
from evoattn.errors import ConfigError, ShapeError
from evoattn.primitives import SharedDropout, linear
from evoattn.shapes import check_features
from evoattn.stacks.blocks import BlockStack
from evoattn.stacks.checks import check_msa_inputs
from evoattn.stacks.pair import PairUpdates


class MSAModuleBlock(PairUpdates):
    """One block of the MSA module (AlphaFold 3 supplement, algorithm 8, lines 6 to 13).

    Outer product mean, pair-weighted averaging, transition, pair updates; without ``profile.opm_first`` the outer product mean comes after
    the transition (Boltz).

    Args:
        update_msa: whether the block updates m; the last block of Protenix and OpenFold3 does not.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: MSAModuleConfig, *, update_msa: bool = True) -> None:
        super().__init__(config)
        c, p = config, config.profile
        self.config, self.update_msa = config, update_msa
        self.outer_product = OuterProductMean(c.c_m, c.c_z, c.c_hidden_opm, norm=p.opm_norm, proj_bias=p.opm_proj_bias)
        if update_msa:
            self.msa_average = PairWeightedAveraging(c.c_m, c.c_z, c.n_head_msa, d_head=c.c_head_msa, mask=p.pwa_mask)
            self.msa_transition = MSATransition(c.c_m, c.msa_transition_n, p.transition, zero_masked=p.mask_transition == "all")
            self.drop_msa = SharedDropout(c.dropout_msa, over=p.dropout_row)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch s n c_m"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (m, z); masks are True where there is something."""
        check_msa_inputs("MSAModuleBlock", self.config.c_m, self.config.c_z, m, z, msa_mask, pair_mask)
        update = self.update
        if self.config.profile.opm_first:
            z = update(z, self.outer_product, m, msa_mask)
        if self.update_msa:
            m = update(m, self.msa_average, z, msa_mask, pair_mask, drop=self.drop_msa)
            m = update(m, self.msa_transition, msa_mask)
        if not self.config.profile.opm_first:
            z = update(z, self.outer_product, m, msa_mask)
        return m, self.update_pair(z, pair_mask)


class MSAModule(BlockStack):
    """The MSA module (AlphaFold 3 supplement, algorithm 8): :meth:`embed` is its lines 1 to 4, calling it the blocks.

    With ``profile.share_msa_weights`` all blocks are one (RosettaFold 3).

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: MSAModuleConfig) -> None:
        p = config.profile
        n_blocks = min(1, config.n_blocks) if p.share_msa_weights else config.n_blocks
        updated = [p.last_msa_update or index < config.n_blocks - 1 for index in range(n_blocks)]
        super().__init__(
            [MSAModuleBlock(config, update_msa=here) for here in updated], repeats=config.n_blocks if p.share_msa_weights else 1
        )
        self.config = config
        if config.c_msa_feat is not None and config.c_single_inputs is not None:
            self.msa_feat = linear(config.c_msa_feat, config.c_m, bias=False)
            self.single_inputs = linear(config.c_single_inputs, config.c_m, bias=False)

    def check(self, m: Tensor, z: Tensor, msa_mask: Tensor | None, pair_mask: Tensor | None) -> None:
        check_msa_inputs("MSAModule", self.config.c_m, self.config.c_z, m, z, msa_mask, pair_mask)

    def embed(
        self, msa_feat: Float[Tensor, "*batch s n c_msa_feat"], single_inputs: Float[Tensor, "*batch n c_single_inputs"]
    ) -> Float[Tensor, "*batch s n c_m"]:
        """m: a projection of the features of the alignment, plus one of the inputs of the single representation for each row.

        Raises:
            ConfigError: the config has no widths for the features. ShapeError: they have others.
        """
        c_feat, c_inputs = self.config.c_msa_feat, self.config.c_single_inputs
        if c_feat is None or c_inputs is None:
            raise ConfigError(
                "MSAModule: config.c_msa_feat and config.c_single_inputs are None; give the widths of the features, or m itself."
            )
        check_features("MSAModule", "msa_feat", msa_feat, ["N_seq", "N_res", "c_msa_feat"], c_feat)
        check_features("MSAModule", "single_inputs", single_inputs, ["N_res", "c_single_inputs"], c_inputs)
        if single_inputs.shape[:-1] != (*msa_feat.shape[:-3], msa_feat.shape[-2]):
            raise ShapeError(
                f"MSAModule: single_inputs has shape {tuple(single_inputs.shape)}, which does not fit msa_feat {tuple(msa_feat.shape)}; "
                f"expected {(*msa_feat.shape[:-3], msa_feat.shape[-2], c_inputs)} = [*batch, N_res, c_single_inputs]."
            )
        return self.msa_feat(msa_feat) + self.single_inputs(single_inputs).unsqueeze(-3)

    def forward(
        self,
        m: Float[Tensor, "*batch s n c_m"],
        z: Float[Tensor, "*batch n n c_z"],
        msa_mask: Bool[Tensor, "*batch s n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> Float[Tensor, "*batch n n c_z"]:
        """The updated z. Batch axes are free; masks are True where there is something.

        Protenix and RosettaFold 3 have no mask of the alignment: give None to get their numbers.
        """
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
