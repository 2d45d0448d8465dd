"""The peak memory of a trunk or a stack, by part, without computing anything.

Without gradients everything is updated in place, slice by slice: each update states its cost (:mod:`evoattn.blocks.cost`), and here the
largest is found. With gradients it is what the recorded steps keep that counts: the model itself is run on tensors without data
(:mod:`evoattn.memory.recorded`).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from evoattn.blocks.cost import OVERHEAD, UpdateCost
from evoattn.blocks.slices import AT_ONCE
from evoattn.config import EvoformerConfig, TemplateConfig, TrunkConfig
from evoattn.errors import ConfigError
from evoattn.execution import Execution, set_execution
from evoattn.memory.recorded import Recorded, recorded
from evoattn.model import EvoformerTrunk
from evoattn.stacks import EvoformerStack, ExtraMSAStack
from evoattn.stacks.blocks import BlockStack
from evoattn.stacks.template import RESIDUES as TEMPLATE_RESIDUES
from evoattn.updates import SLICE

Config = TrunkConfig | EvoformerConfig
Model = EvoformerTrunk | EvoformerStack | ExtraMSAStack
Mode = Literal["inference", "training"]

SCATTERED = 0.08
"""What the allocator leaves unused between tensors that are kept for a backward pass, as a part of these (benchmarks/memory.py)."""

LEFT_BY_BLOCKS = 8 * SLICE
"""What the allocator keeps, at most, of what blocks that are recomputed have taken: slices in the forward pass, and then one block after
another. It differs from run to run, by nearly 200 MiB of 2.3 GiB (benchmarks/memory.py)."""

ONE_BLOCK = "one block's backward pass, gradients"


@dataclass(frozen=True)
class Sizes:
    """Of one alignment: rows of the MSA representation, residues, rows of the extra-MSA stack, templates, and batch entries."""

    n_seq: int
    n_res: int
    n_extra: int = 0
    n_templates: int = 0
    batch: int = 1

    def __post_init__(self) -> None:
        for name, least in (("n_seq", 1), ("n_res", 1), ("n_extra", 0), ("n_templates", 0), ("batch", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"memory: {name} is {value!r}; it must be a whole number, at least {least}.")


@dataclass(frozen=True)
class Estimate:
    """Bytes at the peak, by part.

    Attributes:
        parts: what stands in memory at the peak; "parameters" and "features" among them are there before the model runs.
        at: what is computed then.
    """

    parts: dict[str, int]
    at: str

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def working(self) -> int:
        """What the run adds to parameters and features: what a memory budget is compared with."""
        return self.total - self.parts["parameters"] - self.parts["features"]


def estimate(
    config: Config,
    n_seq: int,
    n_res: int,
    *,
    n_extra: int = 0,
    n_templates: int = 0,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    mode: Mode = "inference",
    execution: Execution | None = None,
) -> Estimate:
    """The peak memory of one pass through the trunk or stack of `config`.

    Args:
        config: of a trunk, or of an Evoformer or extra-MSA stack, whose inputs are m and z.
        n_seq, n_res, n_extra, n_templates: rows of the MSA representation, residues, rows of the extra-MSA stack, and templates.
        batch: alignments at a time.
        dtype: of parameters, features and representations.
        mode: "inference": without gradients, in eval mode; a stack in place (``run_``). "training": forward and backward, with the
            gradients of all parameters; an optimizer's state is not counted.
        execution: with its memory budget, dtype of products and checkpointing.

    Raises:
        ConfigError: a size, the mode or the kind of config is not allowed.
    """
    sizes, execution = Sizes(n_seq, n_res, n_extra, n_templates, batch), execution or Execution()
    if not isinstance(config, TrunkConfig | EvoformerConfig):
        raise ConfigError(f"memory: config is a {type(config).__name__}; give a TrunkConfig or an EvoformerConfig.")
    if mode not in ("inference", "training"):
        raise ConfigError(f"memory: mode is {mode!r}; allowed are 'inference' and 'training'.")
    model = model_of(config, replace(execution, memory_budget=None), dtype)
    parts = {"parameters": parameter_bytes(config, model), "features": feature_bytes(config, sizes, dtype)}
    if mode == "training":
        recorded = _training(config, sizes, dtype, execution)
        scattered = int(SCATTERED * sum(recorded.values()))
        if execution.recomputes_blocks:
            scattered += min(LEFT_BY_BLOCKS, recorded[ONE_BLOCK] // 4)
        return Estimate(parts | recorded | {"kernels and allocator": OVERHEAD + scattered}, "backward pass")
    budget = execution.budget
    worst = max(updates(model, sizes, dtype), key=lambda cost: cost.peak(budget))
    return Estimate(parts | parts_of(worst, budget), worst.name)


@lru_cache(maxsize=16)
def model_of(config: Config, execution: Execution, dtype: torch.dtype) -> Model:
    """The model on the device "meta", shapes without data, with at most one block in each stack: all blocks of one are alike."""
    with torch.device("meta"):
        model = build(with_blocks(config, {name: min(1, n) for name, n in block_counts(config).items()}))
    set_execution(model.to(dtype).eval(), execution)
    return model


def build(config: Config) -> Model:
    """The trunk or stack of `config`."""
    if isinstance(config, TrunkConfig):
        return EvoformerTrunk(config)
    return ExtraMSAStack(config) if config.c_s is None else EvoformerStack(config)


def parameter_bytes(config: Config, model: Model) -> int:
    """Of all blocks, told from a model with one of each kind."""
    found = sum(p.nbytes for p in model.parameters())
    for name, n in block_counts(config).items():
        blocks = model.get_submodule(f"{name}.blocks" if name else "blocks") if n else None
        found += 0 if blocks is None else (n - 1) * sum(p.nbytes for p in blocks.parameters())
    return found


def block_counts(config: Config) -> dict[str, int]:
    """Blocks of each stack, by its name in the model."""
    if isinstance(config, EvoformerConfig):
        return {"": config.n_blocks}
    extra = {} if config.extra is None else {"extra_stack": config.extra.n_blocks}
    return {"evoformer": config.evoformer.n_blocks, **extra}


def with_blocks(config: Config, counts: dict[str, int]) -> Config:
    """The config with other numbers of blocks."""
    if isinstance(config, EvoformerConfig):
        return replace(config, n_blocks=counts[""])
    extra = None if config.extra is None else replace(config.extra, n_blocks=counts["extra_stack"])
    return replace(config, evoformer=replace(config.evoformer, n_blocks=counts["evoformer"]), extra=extra)


def feature_bytes(config: Config, sizes: Sizes, dtype: torch.dtype) -> int:
    """Of what is handed to the model; of a stack nothing, since it uses up what it is given."""
    if isinstance(config, EvoformerConfig):
        return 0
    rows = config.c_msa_feat * sizes.n_seq + config.c_target_feat + (config.c_extra_feat * sizes.n_extra if config.extra else 0)
    masks = sizes.n_seq + sizes.n_extra + 1
    return sizes.batch * sizes.n_res * (rows * dtype.itemsize + masks + 8)


def _training(config: Config, sizes: Sizes, dtype: torch.dtype, execution: Execution) -> dict[str, int]:
    """Blocks are alike, so one or two of each stack are run, and the rest is a straight line."""
    counts = block_counts(config)
    few = {name: min(1, n) for name, n in counts.items()}
    shape = vars(sizes)

    def run(blocks: dict[str, int]) -> Recorded:
        return recorded(build(with_blocks(config, blocks)), shape, dtype, execution)

    first = total = run(few)
    for name, n in counts.items():
        if n > 1:
            total = total.plus(n - 1, run(few | {name: 2}).minus(first))
    return {"kept for the backward pass": total.kept, ONE_BLOCK: total.peak - total.kept}


def updates(model: Model, sizes: Sizes, dtype: torch.dtype) -> list[UpdateCost]:
    """Every kind of update that is made to the representations, in the order of the model, with the name of its stack."""
    s = sizes
    if not isinstance(model, EvoformerTrunk):
        z = _meta(s, s.n_res, s.n_res, model.config.c_z, dtype=dtype)
        return _named(model, _meta(s, s.n_seq, s.n_res, model.config.c_m, dtype=dtype), z)
    z = _meta(s, s.n_res, s.n_res, model.config.evoformer.c_z, dtype=dtype)
    found = [_embedding(z)]
    if model.config.templates is not None:
        found.append(_templates(model.config.templates, z, s.n_templates))
    if model.extra_stack is not None:
        found += _named(model.extra_stack, _meta(s, s.n_extra, s.n_res, model.extra_stack.config.c_m, dtype=dtype), z)
    torsions = s.n_templates if model.template_rows is not None else 0
    return found + _named(model.evoformer, _meta(s, s.n_seq + torsions, s.n_res, model.config.evoformer.c_m, dtype=dtype), z)


def _named(stack: BlockStack, x: Tensor, z: Tensor) -> list[UpdateCost]:
    title = "extra-MSA stack" if isinstance(stack, ExtraMSAStack) else "Evoformer"
    costs = stack.update_costs(x, z) or [UpdateCost("no block", (x.nbytes, z.nbytes), 0, 0, 0, 1)]
    return [replace(cost, name=f"{title}, {cost.name}") for cost in costs]


def _embedding(z: Tensor) -> UpdateCost:
    """z is made by rows: four temporaries of their size."""
    row = z.nbytes // max(1, z.shape[-2])
    return UpdateCost("embedding", (0, z.nbytes), 0, 4 * max(row, AT_ONCE * z.element_size()), 0, 1)


def _templates(config: TemplateConfig, z: Tensor, n_templates: int) -> UpdateCost:
    """The embedded templates beside z; and one of them while it is embedded, which is not done by rows: one-hot features, their
    concatenation, and that with unknown pairs taken out."""
    positions = z.nbytes // z.shape[-1]
    kept = n_templates + 1 if config.form == "pointwise" else 3  # one after another, or the query, the mean and the present one
    features = config.bins + 2 * TEMPLATE_RESIDUES + 5
    making = positions * (3 * features + 2 * config.c_z) if n_templates or config.form == "average" else 0
    return UpdateCost("templates", (0, z.nbytes), positions * kept * config.c_z if making else 0, making, 0, 1)


def _meta(sizes: Sizes, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(sizes.batch, *shape, dtype=dtype, device="meta")


def parts_of(cost: UpdateCost, budget: int | None) -> dict[str, int]:
    """The peak of an update, by part."""
    x, z = cost.representations
    rows = "extra-MSA representation" if cost.name.startswith("extra") else "MSA representation"
    parts = {
        "pair representation": z,
        rows: x,
        f"kept by {cost.name}": cost.context,
        "slices": cost.working(budget),
        "kernels and allocator": OVERHEAD,
    }
    return {name: size for name, size in parts.items() if size}
