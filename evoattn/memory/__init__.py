"""How much memory a trunk or a stack takes, before it is run: :func:`estimate`, and :func:`plan` under a budget."""

from evoattn.memory.estimation import Estimate, Sizes, estimate
from evoattn.memory.free import free_memory
from evoattn.memory.planning import Plan, plan

__all__ = ["Estimate", "Plan", "Sizes", "estimate", "free_memory", "plan"]
