"""Blocks one after another: with checkpointing, or in place."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from evoattn.blocks.cost import UpdateCost, update_cost
from evoattn.errors import MemoryLimitError
from evoattn.execution import Executable
from evoattn.ops import hide_nonfinite, hide_nonfinite_
from evoattn.stacks.checkpointing import checkpointed
from evoattn.stacks.pair import PairUpdates
from evoattn.units import show_bytes
from evoattn.updates import SlicedBlock, Update, update_


class BlockStack(Executable, ABC):
    """Blocks that map two representations and their masks to the two representations, updated.

    Under ``Execution(checkpoint="blocks")`` each is recomputed in the backward pass.
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
        if self.execution.budget is not None and not (torch.is_grad_enabled() or self.training):
            return self.run_blocks_(x.clone(), z.clone(), mask, pair_mask)
        self.check(x, z, mask, pair_mask)
        # here and not only in each block, so that NaN in padding does not live on in the residual stream and its outputs
        x, z = hide_nonfinite(x, mask), hide_nonfinite(z, pair_mask)
        for block in list(self.blocks) * self.repeats:
            assert isinstance(block, PairUpdates)
            if self.execution.recomputes_blocks:
                x, z = checkpointed(block, (x, z), mask, pair_mask)
            else:
                x, z = block(x, z, mask, pair_mask)
        return x, z

    @torch.no_grad()
    def run_blocks_(self, x: Tensor, z: Tensor, mask: Tensor | None, pair_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Both representations after all blocks, written over the inputs.

        Raises:
            MemoryLimitError: they do not fit ``Execution(memory_budget=...)``; nothing was computed.
        """
        self.check(x, z, mask, pair_mask)
        update = self._planned_update(x, z)
        hide_nonfinite_(x, mask)
        hide_nonfinite_(z, pair_mask)
        for block in list(self.blocks) * self.repeats:
            assert isinstance(block, PairUpdates)
            with block.updating(update):
                x, z = block(x, z, mask, pair_mask)
        return x, z

    def _planned_update(self, x: Tensor, z: Tensor) -> Update:
        """How the blocks update in place: in slices that are fast, or in shorter ones where the memory budget asks for it."""
        budget, held, itemsize = self.execution.budget, (x.nbytes, z.nbytes), self._itemsize(z)
        if budget is None:
            return update_
        most = max(self.update_costs(x, z), key=lambda cost: cost.floor, default=None)
        if most is not None and most.floor > budget:
            raise MemoryLimitError(
                f"{type(self).__name__}: a memory budget of {show_bytes(budget)} is too little for representations of {tuple(x.shape)} and "
                f"{tuple(z.shape)}; the least is {show_bytes(most.floor)}: {show_bytes(sum(held))} of them, {show_bytes(most.context)} "
                f"that {most.name} keeps, and its slices. Give that much, or take fewer rows or residues."
            )

        def planned(x: Tensor, block: SlicedBlock, *inputs: Any, drop: Any = None) -> Tensor:
            cost = update_cost("", block, held, itemsize, x, *inputs)
            return update_(x, block, *inputs, memory=cost.slice_memory(budget))

        return planned

    def update_costs(self, x: Tensor, z: Tensor) -> list[UpdateCost]:
        """What each update in place of a block takes. The wiring of the block itself is asked, without computing anything; only shape and
        dtype of the representations are looked at."""
        costs: list[UpdateCost] = []
        if not len(self.blocks):
            return costs
        block, held, itemsize = self.blocks[0], (x.nbytes, z.nbytes), self._itemsize(z)
        assert isinstance(block, PairUpdates)
        names = {part: name for name, part in block.named_children()}

        def record(x: Tensor, part: nn.Module, *inputs: Any, drop: Any = None) -> Tensor:
            if isinstance(part, SlicedBlock):
                costs.append(update_cost(names[part], part, held, itemsize, x, *inputs))
            return x

        with block.updating(record, whole=True):
            block.forward(*(torch.empty_like(y, device="meta") for y in (x, z)), None, None)
        return costs

    def _itemsize(self, z: Tensor) -> int:
        """Bytes of a number in a matrix product."""
        return z.element_size() if self.execution.dtype is None else torch.bfloat16.itemsize
