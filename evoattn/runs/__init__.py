"""What the commands do: a trunk run on an alignment file, with its outputs, its report, and an account of everything."""

from evoattn.runs.calls import Call, Sizes, attention_calls
from evoattn.runs.environment import environment
from evoattn.runs.pipeline import run
from evoattn.runs.settings import RunSettings

__all__ = ["Call", "RunSettings", "Sizes", "attention_calls", "environment", "run"]
