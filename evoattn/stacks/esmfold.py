"""The trunk of ESMFold: a sequence and a pair representation that learn from each other, without an alignment."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from evoattn.blocks import AttentionPairBias, SequenceToPair
from evoattn.config import ESMFoldConfig
from evoattn.errors import ShapeError
from evoattn.ops import hide_nonfinite
from evoattn.primitives import Transition
from evoattn.shapes import check_features
from evoattn.stacks.blocks import BlockStack
from evoattn.stacks.checks import check_single_inputs
from evoattn.stacks.pair import PairUpdates


class ESMFoldBlock(PairUpdates):
    """One block of ESMFold's trunk (Lin et al. 2023; ``TriangularSelfAttentionBlock`` of its code).

    Attention along s with a bias from z, transition, both of s; then z learns from s, and the pair updates follow.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: ESMFoldConfig) -> None:
        super().__init__(config)
        c, p = config, config.profile
        self.config = config
        self.single_attn = AttentionPairBias(
            c.c_s, c.c_z, c.n_head_single, d_head=c.c_head_single, q_bias=p.single_q_bias, bias=p.single_bias
        )
        self.single_transition = Transition(c.c_s, c.single_transition_n, p.transition, zero_masked=p.mask_transition == "all")
        self.sequence_to_pair = SequenceToPair(c.c_s, c.c_z)

    def forward(
        self,
        s: Float[Tensor, "*batch n c_s"],
        z: Float[Tensor, "*batch n n c_z"],
        mask: Bool[Tensor, "*batch n"] | None = None,
        pair_mask: Bool[Tensor, "*batch n n"] | None = None,
    ) -> tuple[Float[Tensor, "*batch n c_s"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (s, z); masks are True where there is something. s, which is small, is never updated in place."""
        check_single_inputs("ESMFoldBlock", self.config.c_s, self.config.c_z, s, z, mask, pair_mask)
        s = self.update_whole(s, self.single_attn, z, mask, pair_mask)
        s = self.update_whole(s, self.single_transition, mask)
        z = self.update(z, self.sequence_to_pair, s, mask)
        return s, self.update_pair(z, pair_mask)


@dataclass(frozen=True)
class ESMFoldRecycled:
    """What a pass hands to the next.

    Attributes:
        s, z: that the pass returned. positions: of the C-beta atoms, in Angstrom, [*batch, N_res, 3]; None puts all pairs into the first
            bin, as before the first pass.
    """

    s: Float[Tensor, "*batch n c_s"]
    z: Float[Tensor, "*batch n n c_z"]
    positions: Float[Tensor, "*batch n 3"] | None = None


class ESMFoldTrunk(BlockStack):
    """ESMFold's trunk without the structure module: recycling, relative positions, blocks (Lin et al. 2023; ``FoldingTrunk`` of its code).

    s and z come from ESM-2, a language model that is not part of evoattn.

    Raises:
        ShapeError: inputs do not fit the config or each other.
    """

    def __init__(self, config: ESMFoldConfig) -> None:
        super().__init__([ESMFoldBlock(config) for _ in range(config.n_blocks)])
        c = config
        self.config = config
        self.relative_position = nn.Embedding(2 * c.max_relative + 2, c.c_z)  # the first is that of masked pairs
        self.recycled_s_norm = nn.LayerNorm(c.c_s)
        self.recycled_z_norm = nn.LayerNorm(c.c_z)
        self.recycled_distance = nn.Embedding(c.recycle_bins, c.c_z)
        with torch.no_grad():
            self.recycled_distance.weight[0].zero_()

    def check(self, s: Tensor, z: Tensor, mask: Tensor | None, pair_mask: Tensor | None) -> None:
        check_single_inputs("ESMFoldTrunk", self.config.c_s, self.config.c_z, s, z, mask, pair_mask)

    def forward(
        self,
        s: Float[Tensor, "*batch n c_s"],
        z: Float[Tensor, "*batch n n c_z"],
        mask: Bool[Tensor, "*batch n"] | None = None,
        *,
        residue_index: Int[Tensor, "*batch n"] | None = None,
        recycled: ESMFoldRecycled | None = None,
    ) -> tuple[Float[Tensor, "*batch n c_s"], Float[Tensor, "*batch n n c_z"]]:
        """The updated (s, z) of one pass.

        Args:
            s, z: what the language model and its attention maps were projected to; the same in each pass.
            mask: True where there is a residue. residue_index: 0, 1, 2, ... by default.
            recycled: from the pass before; zeros by default, as the first pass of the published model has.
        """
        pair_mask = None if mask is None else mask.unsqueeze(-1) & mask.unsqueeze(-2)
        self.check(s, z, mask, pair_mask)
        s, z = hide_nonfinite(s, mask), hide_nonfinite(z, pair_mask)
        if recycled is None:
            recycled = ESMFoldRecycled(torch.zeros_like(s), torch.zeros_like(z))
        else:
            self._check_recycled(recycled, s, z)
        s = s + self.recycled_s_norm(hide_nonfinite(recycled.s, mask))
        z = z + self.recycled_z_norm(hide_nonfinite(recycled.z, pair_mask)) + self.recycled_distance(self._bins(recycled.positions, z))
        z = z + self._relative(residue_index, s, pair_mask)
        in_place = not (torch.is_grad_enabled() or self.training)  # both are the trunk's own: they may be used up
        return (self.run_blocks_ if in_place else self.run_blocks)(s, z, mask, pair_mask)

    def _relative(self, residue_index: Tensor | None, s: Tensor, pair_mask: Tensor | None) -> Tensor:
        """The encoding of j - i, clipped, at [..., i, j]."""
        if residue_index is None:
            residue_index = torch.arange(s.shape[-2], device=s.device).expand(s.shape[:-1])
        if residue_index.shape != s.shape[:-1] or residue_index.is_floating_point():
            raise ShapeError(
                f"ESMFoldTrunk: residue_index is {residue_index.dtype} of shape {tuple(residue_index.shape)}; expected integers "
                f"[*batch, N_res] = {tuple(s.shape[:-1])}."
            )
        bound = self.config.max_relative
        offset = (residue_index.unsqueeze(-2) - residue_index.unsqueeze(-1)).clamp(-bound, bound) + bound + 1
        return self.relative_position(offset if pair_mask is None else offset.masked_fill(~pair_mask, 0))

    def _bins(self, positions: Tensor | None, z: Tensor) -> Tensor:
        """How many boundaries each distance exceeds."""
        if positions is None:
            return torch.zeros(z.shape[:-1], dtype=torch.long, device=z.device)
        c = self.config
        boundaries = torch.linspace(c.recycle_min, c.recycle_max, c.recycle_bins - 1, device=z.device, dtype=positions.dtype).square()
        squared = (positions.unsqueeze(-2) - positions.unsqueeze(-3)).square().sum(-1, keepdim=True)
        return (squared > boundaries).sum(-1)

    def _check_recycled(self, recycled: ESMFoldRecycled, s: Tensor, z: Tensor) -> None:
        check_features("ESMFoldTrunk", "recycled.s", recycled.s, ["N_res", "c_s"], self.config.c_s)
        check_features("ESMFoldTrunk", "recycled.z", recycled.z, ["N_res", "N_res", "c_z"], self.config.c_z)
        for name, expected in (("s", s.shape), ("z", z.shape), ("positions", (*s.shape[:-1], 3))):
            got = getattr(recycled, name)
            if got is not None and tuple(got.shape) != tuple(expected):
                raise ShapeError(
                    f"ESMFoldTrunk: recycled.{name} has shape {tuple(got.shape)}; expected {tuple(expected)}, as this pass has it."
                )
