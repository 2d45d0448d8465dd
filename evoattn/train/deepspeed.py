"""The same updates by DeepSpeed, with optimiser state, gradients and parameters shared out among processes (ZeRO, stages 1 to 3)."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evoattn.errors import ConfigError
from evoattn.train.config import RunConfig
from evoattn.train.data import Share
from evoattn.train.engine import Engine, State
from evoattn.train.model import Logits, TrunkWithHeads
from evoattn.train.optimizer import MOMENTS, AveragingAdamW
from evoattn.train.world import World


def deepspeed_config(run: RunConfig, clip: float, processes: int) -> dict[str, Any]:
    """What DeepSpeed is given; nothing else about it is set."""
    return {
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": Share(run.batch, run.micro_batch, 0, processes).per_step,
        "gradient_clipping": clip if run.zero else 0.0,  # stage 0 does not tell the norm, so it is taken and clipped here
        "zero_optimization": {"stage": run.zero},
        "zero_allow_untested_optimizer": True,  # AdamW with a moving average beside its moments
        # gradients are added up in float32: no module is named whose gradients may travel in bfloat16
        "torch_autocast": {"enabled": run.precision == "bf16", "dtype": "bfloat16", "lower_precision_safe_modules": []},
        "steps_per_print": 10**9,
    }


class DeepSpeedEngine(Engine):
    """An :class:`evoattn.train.engine.Engine`. Arguments are those of :class:`evoattn.train.engine.PlainEngine`.

    Raises:
        ConfigError: DeepSpeed is not installed.
    """

    def __init__(
        self, model: TrunkWithHeads, optimizer: AveragingAdamW, run: RunConfig, clip: float, world: World, moments: State, steps: int
    ) -> None:
        deepspeed = _deepspeed(world)
        self.name = f"deepspeed {deepspeed.__version__}, ZeRO stage {run.zero}"
        self.run, self.clip, self.world, self.base = run, clip, world, optimizer
        self.trained = {name: x for name, x in model.named_parameters() if x.requires_grad}
        self.frozen = {name: x.detach().clone() for name, x in model.named_parameters() if not x.requires_grad}
        self.config = deepspeed_config(run, clip, world.processes)
        self.engine, self.optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=self.config)
        self.groups = self.optimizer.param_groups
        self.scale = float(world.processes * self.config["gradient_accumulation_steps"])
        """DeepSpeed takes means over processes and micro-batches; losses are divided by global counts already."""
        if moments:
            self._begin(moments, steps)

    def forward(self, features: Mapping[str, Tensor]) -> Logits:
        out: Logits = self.engine(features)
        return out

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss * self.scale)
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()  # only counts

    def update(self) -> float:
        if self.run.zero == 0:
            norm = float(torch.nn.utils.clip_grad_norm_(list(self.trained.values()), self.clip))
        self.engine.step()
        return float(self.engine.get_global_grad_norm()) if self.run.zero else norm

    def state(self) -> State | None:
        state: State = {f"weights.{name}": x for name, x in self.frozen.items()}
        for name, x in self.trained.items():
            for kind, value in [("weights", self._weight(x)), *((kind, self._moment(x, kind)) for kind in MOMENTS)]:
                if self.world.first:
                    state[f"{kind}.{name}"] = value.cpu()
        return state if self.world.first else None

    @contextmanager
    def averaged(self) -> Iterator[None]:
        held = {name: self._weight(x).clone() for name, x in self.trained.items()}
        try:
            self._set_weights({name: self._moment(x, "average") for name, x in self.trained.items()})
            yield
        finally:
            self._set_weights(held)

    def _weight(self, x: torch.nn.Parameter) -> Tensor:
        from deepspeed.utils import safe_get_full_fp32_param

        return x.detach() if self.run.zero == 0 else safe_get_full_fp32_param(x).view(self._shape(x))

    def _moment(self, x: torch.nn.Parameter, kind: str) -> Tensor:
        from deepspeed.utils import safe_get_full_optimizer_state

        return self.base.state[x][kind] if self.run.zero == 0 else safe_get_full_optimizer_state(x, kind).view(self._shape(x))

    def _shape(self, x: Any) -> torch.Size:
        """Of the whole parameter, of which a process may hold a part."""
        return x.ds_shape if self.run.zero == 3 else x.shape

    def _set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """What the forward pass sees; the optimiser keeps its own."""
        from deepspeed.runtime.zero import GatheredParameters

        whole = GatheredParameters(list(self.trained.values()), modifier_rank=0) if self.run.zero == 3 else nullcontext()
        with whole:
            for name, x in self.trained.items():
                x.data.copy_(weights[name])

    def _begin(self, moments: State, steps: int) -> None:
        """Fill the moments from a checkpoint, each process its part of them."""
        from deepspeed.utils import safe_set_full_optimizer_state, safe_set_local_optimizer_state

        own = [x for group in self.base.param_groups for x in group["params"]]
        flat = self.optimizer.fp32_partitioned_groups_flat if self.run.zero == 3 else own
        for x in flat:
            self.base.begin(x, steps)
        if self.run.zero in (1, 2):
            self.optimizer._lazy_init_hp_params_optimizer_state()  # else it links states to parameters after the first update
        for name, x in self.trained.items():
            for kind in MOMENTS:
                value = moments[f"{kind}.{name}"].to(self.world.device)
                if self.run.zero == 0:
                    self.base.state[x][kind].copy_(value)
                elif self.run.zero == 3:
                    safe_set_local_optimizer_state(x, _own_part(value, x, self.world.rank), kind)
                else:
                    safe_set_full_optimizer_state(x, value, kind)


def _own_part(value: Tensor, x: Any, rank: int) -> Tensor:
    """Of a value for the parameter `x`, which is cut into parts of equal size, the last padded: that of this process."""
    size = x.ds_tensor.numel()
    own = value.flatten()[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(own, (0, size - own.numel()))


def _deepspeed(world: World) -> Any:
    """The package, quiet, on the device of this process, and with a group of processes to talk in."""
    logging.disable(logging.WARNING)  # it announces at import which device it has found
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            f"the engine 'deepspeed' needs the package deepspeed, which cannot be loaded ({error}): pip install 'evoattn[train]', or "
            "choose engine = 'plain'."
        ) from error
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", ".*torch.distributed.*is deprecated", FutureWarning)  # of functions that DeepSpeed calls
    if world.device.type == "cpu":
        from deepspeed.accelerator import set_accelerator
        from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

        set_accelerator(CPU_Accelerator())
        # It would compile this all-reduce through shared memory at start, and fail without a compiler; gloo does as well.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    if not dist.is_initialized():  # a single process that torchrun did not start
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False)
    return deepspeed
