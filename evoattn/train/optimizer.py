"""AdamW that also keeps a moving average of what it optimises, and the published schedule of its learning rate."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn

from evoattn.train.config import OptimizerConfig

MOMENTS: Final = ("exp_avg", "exp_avg_sq", "average")
"""The state of each parameter, in the shape of it."""


class AveragingAdamW(torch.optim.AdamW):
    """AdamW with the exponential moving average of each parameter as a third state beside the two moments.

    As part of the state it is sharded, gathered and saved as the moments are, wherever the optimiser runs.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> None:
        c = config
        super().__init__(parameters, lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps, weight_decay=c.weight_decay)
        for group in self.param_groups:
            group["average_decay"] = c.average_decay

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter)
                if not state:  # it had no gradient
                    continue
                if "average" not in state:
                    state["average"] = parameter.detach().clone()
                state["average"].lerp_(parameter.detach(), 1 - group["average_decay"])
        return loss

    def begin(self, parameter: torch.Tensor, step: int) -> dict[str, torch.Tensor]:
        """Make the state of a parameter that has been updated `step` times, to be filled in."""
        self.state[parameter] = {"step": torch.tensor(float(step)), **{name: torch.zeros_like(parameter) for name in MOMENTS}}
        return self.state[parameter]


def set_schedule(groups: Iterable[dict[str, Any]], config: OptimizerConfig, step: int) -> float:
    """Set learning rate and decay of the average for the update number `step`, from 0; returns the rate."""
    rate = learning_rate(config, step)
    for group in groups:
        group["lr"] = rate
        group["average_decay"] = min(config.average_decay, (1 + step) / (10 + step))
    return rate


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Of the update number `step`, from 0 (AlphaFold 2 supplement, 1.11.3): a linear rise to `lr`, one drop later."""
    rise = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return config.lr * rise * (config.decay_factor if step >= config.decay_after else 1.0)
