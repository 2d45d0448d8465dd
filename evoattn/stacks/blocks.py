"""Blocks one after another: with checkpointing, or in place."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evoattn.execution import Executable, update_
from evoattn.ops import hide_nonfinite, hide_nonfinite_
from evoattn.stacks.pair import PairUpdates


class BlockStack(Executable, ABC):
    """Blocks that map two representations and their masks to the two representations, updated.

    Under ``Execution(checkpoint=True)`` each is recomputed in the backward pass.
    """

    def __init__(self, blocks: list[PairUpdates], repeats: int = 1) -> None:
        """With `repeats` the blocks are gone through again, that many times in all: weights shared by all rounds."""
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.repeats = repeats

    @abstractmethod
    def check(self, *inputs: Any) -> None:
        """Refuse inputs that do not fit the config or each other."""

    def run_blocks(self, x: Tensor, z: Tensor, mask: Tensor | None, pair_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both representations after all blocks."""
        self.check(x, z, mask, pair_mask)
        # here and not only in each block, so that NaN in padding does not live on in the residual stream and its outputs
        x, z = hide_nonfinite(x, mask), hide_nonfinite(z, pair_mask)
        for block in list(self.blocks) * self.repeats:
            if self.execution.checkpoint:
                x, z = checkpoint(block, x, z, mask, pair_mask, use_reentrant=False)
            else:
                x, z = block(x, z, mask, pair_mask)
        return x, z

    @torch.no_grad()
    def run_blocks_(self, x: Tensor, z: Tensor, mask: Tensor | None, pair_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both representations after all blocks, written over the inputs."""
        self.check(x, z, mask, pair_mask)
        hide_nonfinite_(x, mask)
        hide_nonfinite_(z, pair_mask)
        for block in list(self.blocks) * self.repeats:
            assert isinstance(block, PairUpdates)
            block.update = update_
            try:
                x, z = block(x, z, mask, pair_mask)
            finally:
                del block.update
        return x, z
