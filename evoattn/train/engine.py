"""What turns losses into updates: plain torch, here, or DeepSpeed (:mod:`evoattn.train.deepspeed`), through the same few methods."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from evoattn.train.config import RunConfig
from evoattn.train.model import Logits, TrunkWithHeads
from evoattn.train.optimizer import MOMENTS, AveragingAdamW
from evoattn.train.world import World

State = dict[str, Tensor]
"""Tensors of a checkpoint: "weights.<parameter>", and "exp_avg.", "exp_avg_sq." and "average." of those that are trained."""


class Engine(ABC):
    """The gradient of a step is the sum over its micro-batches and all processes; losses are divided by global counts beforehand."""

    name: str
    groups: list[dict[str, Any]]
    """Of the optimiser, for the schedule."""

    @abstractmethod
    def forward(self, features: Mapping[str, Tensor]) -> Logits:
        """What the heads say, in the precision of the run."""

    @abstractmethod
    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch."""

    @abstractmethod
    def update(self) -> float:
        """Change the parameters by the gradient, clipped; returns its norm before that. After one that is not finite they are void."""

    @abstractmethod
    def state(self) -> State | None:
        """Weights, moments and average of all parameters, on the first process; None on the others. Every process has to call it."""

    @abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """While the body runs, the parameters are their moving average. Every process has to enter it."""


class PlainEngine(Engine):
    """torch alone; of several processes each holds everything, and gradients are added up.

    Args:
        moments: of a checkpoint, after `steps` updates.
    """

    name = "plain"

    def __init__(
        self, model: TrunkWithHeads, optimizer: AveragingAdamW, run: RunConfig, clip: float, world: World, moments: State, steps: int
    ) -> None:
        self.model, self.optimizer, self.run, self.clip, self.world = model, optimizer, run, clip, world
        self.trained = {name: x for name, x in model.named_parameters() if x.requires_grad}
        self.groups = optimizer.param_groups
        if moments:
            for name, parameter in self.trained.items():
                for kind, value in optimizer.begin(parameter, steps).items():
                    if kind in MOMENTS:
                        value.copy_(moments[f"{kind}.{name}"])

    def forward(self, features: Mapping[str, Tensor]) -> Logits:
        with torch.autocast(self.world.device.type, torch.bfloat16, enabled=self.run.precision == "bf16"):
            return self.model(features)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self) -> float:
        parameters = list(self.trained.values())
        if self.world.processes > 1:
            self._add_up_gradients()
        norm = torch.nn.utils.get_total_norm([x.grad for x in parameters if x.grad is not None])
        if norm < torch.inf:  # otherwise the gradients are left to be looked at
            torch.nn.utils.clip_grads_with_norm_(parameters, self.clip, norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return float(norm)

    def _add_up_gradients(self) -> None:
        """In one message, which is as long on every process: a parameter without a gradient here may have one elsewhere."""
        gradients = []
        for x in self.trained.values():
            x.grad = torch.zeros_like(x) if x.grad is None else x.grad
            gradients.append(x.grad)
        total = self.world.add_up(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def state(self) -> State | None:
        if not self.world.first:
            return None
        state = {f"weights.{name}": x.detach() for name, x in self.model.named_parameters()}
        for name, x in self.trained.items():
            state |= {f"{kind}.{name}": self.optimizer.state[x][kind] for kind in MOMENTS}
        return state

    @contextmanager
    def averaged(self) -> Iterator[None]:
        held = {name: x.detach().clone() for name, x in self.trained.items()}
        try:
            for x in self.trained.values():
                x.data.copy_(self.optimizer.state[x]["average"])
            yield
        finally:
            for name, x in self.trained.items():
                x.data.copy_(held[name])
