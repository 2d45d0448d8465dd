"""What the commands do: a trunk run on an alignment file, with its outputs, its report, and an account of everything."""

from evoattn.runs.batch import Batch, run_folder
from evoattn.runs.calls import Call, Sizes, attention_calls
from evoattn.runs.environment import environment
from evoattn.runs.inputs import join_alignments
from evoattn.runs.pipeline import run
from evoattn.runs.settings import RunSettings

__all__ = ["Batch", "Call", "RunSettings", "Sizes", "attention_calls", "environment", "join_alignments", "run", "run_folder"]
