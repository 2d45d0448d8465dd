"""What a training run is: read from a TOML file, or built in Python. Every field decides numbers, but those of :class:`RunConfig`'s end."""

import json
import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

from evoattn.config import EvoformerConfig, TrunkConfig, preset
from evoattn.config.checks import check_sizes
from evoattn.errors import ConfigError
from evoattn.execution import Execution
from evoattn.io import FeatureConfig, MSAMasking
from evoattn.train.losses import BINS


def check_numbers(config: object, **least: float) -> None:
    """Raise ConfigError unless each named field is a number of at least `least`."""
    for name, lowest in least.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= lowest:
            raise ConfigError(f"{type(config).__name__}: {name} is {value!r}; it must be a number of at least {lowest:g}.")


def check_word(config: object, name: str, *allowed: str) -> None:
    """Raise ConfigError unless the field is one of `allowed`."""
    if getattr(config, name) not in allowed:
        raise ConfigError(f"{type(config).__name__}: {name} is {getattr(config, name)!r}; allowed are {', '.join(map(repr, allowed))}.")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What samples are made of.

    Attributes:
        families: folder of alignments, see :func:`evoattn.train.data.find_families`.
        held_out: names of families that are validated on and never trained on.
        max_rows: of an alignment, the query and the next in file order; bounds memory.
        crop: residues of a sample: a stretch drawn at random, or all there are.
        max_seqs, max_extra: rows of the MSA representation, and of the extra-MSA stack.
        mask, mask_uniform, mask_profile, mask_same: probabilities of :class:`evoattn.io.MSAMasking`.
        seed: of everything that is drawn: order, crops, rows, masks, dropout, initial parameters.
    """

    families: Path = Path("families")
    held_out: tuple[str, ...] = ()
    max_rows: int = 5000
    crop: int = 96
    max_seqs: int = 32
    max_extra: int = 64
    mask: float = 0.15
    mask_uniform: float = 0.1
    mask_profile: float = 0.1
    mask_same: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_sizes(self, "max_rows", "crop", "max_seqs")
        check_sizes(self, "max_extra", "seed", least=0)
        self.features()  # checks the probabilities

    def features(self) -> FeatureConfig:
        """The features of a sample: AlphaFold 2's of training."""
        masking = MSAMasking(self.mask, self.mask_uniform, self.mask_profile, self.mask_same)
        return FeatureConfig(
            max_seqs=self.max_seqs, max_extra=self.max_extra, sampling="random", masking=masking, cluster_epsilon=1e-6
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which trunk is trained.

    Attributes:
        preset: a name in :data:`evoattn.PRESETS`.
        evoformer, extra: fields of :class:`evoattn.EvoformerConfig` to be changed in either stack.
        extra_stack: whether there is an extra-MSA stack.
        bins: of the distogram: "alphafold2" or "boltz".
        weights: file of parameters to start from, as :func:`evoattn.load_weights` reads it; "" for random ones.
    """

    preset: str = "tiny"
    evoformer: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    extra_stack: bool = True
    bins: str = "alphafold2"
    weights: str = ""

    def __post_init__(self) -> None:
        check_word(self, "bins", *BINS)
        self.trunk()

    def trunk(self) -> TrunkConfig:
        """The architecture."""
        base = preset(self.preset)
        extra = base.extra if self.extra_stack else None
        if self.extra and extra is None:
            raise ConfigError("ModelConfig: extra changes a stack that this model has not; leave it out, or set extra_stack.")
        return replace(
            base,
            evoformer=_changed(base.evoformer, self.evoformer, "evoformer"),
            extra=None if extra is None else _changed(extra, self.extra, "extra"),
        )


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Weights of the losses (AlphaFold 2 supplement, 1.9, equation 7)."""

    masked_msa: float = 2.0
    distogram: float = 0.3

    def __post_init__(self) -> None:
        check_numbers(self, masked_msa=0.0, distogram=0.0)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, its schedule and the moving average; the defaults train something small within minutes.

    Attributes:
        lr: learning rate, after `warmup_steps` over which it rises linearly from 0; times `decay_factor` from `decay_after` steps on.
        beta1, beta2, eps, weight_decay: of AdamW. clip: largest norm of the gradient of a step.
        average_decay: of the moving average of the parameters, which validation and export take. Early on it is (1 + step) / (10 + step).
    """

    lr: float = 1e-3
    warmup_steps: int = 100
    decay_after: int = 50_000
    decay_factor: float = 0.95
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0
    clip: float = 0.1
    average_decay: float = 0.999

    def __post_init__(self) -> None:
        check_numbers(self, lr=0.0, decay_factor=0.0, beta1=0.0, beta2=0.0, eps=0.0, weight_decay=0.0, average_decay=0.0)
        check_sizes(self, "warmup_steps", "decay_after", least=0)
        if not self.clip > 0:
            raise ConfigError(f"OptimizerConfig: clip is {self.clip!r}; it must be positive, inf for none.")
        for name in ("beta1", "beta2", "average_decay"):
            if getattr(self, name) >= 1:
                raise ConfigError(f"OptimizerConfig: {name} is {getattr(self, name)!r}; it must be below 1.")

    @classmethod
    def alphafold2(cls) -> "OptimizerConfig":
        """As published (AlphaFold 2 supplement, 1.11.3), for 128 samples a step: 0.128 million to warm up, decay from 6.4 million on.

        AlphaFold 2 clips the gradient of each sample, here it is that of the step.
        """
        return cls(lr=1e-3, warmup_steps=1000, decay_after=50_000)


RECOMPUTE: Final[dict[str, Literal["updates", "blocks", "both", False]]] = {
    "nothing": False, "updates": "updates", "blocks": "blocks", "both": "both"
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How long, how much at once, and on what.

    Attributes:
        steps: updates of the parameters.
        batch: samples of a step, on all processes together.
        micro_batch: samples that go through the model at once. The numbers of a run depend on it, since they share padding and draws of
            dropout, but not on how many processes share the micro-batches out.
        precision: "bf16" computes under autocast; parameters, moments and losses are float32 in both.
        checkpoint_every, keep: steps between checkpoints, and how many of them are kept.
        validate_every, validate_samples: steps between validations (0 for none), and samples of the held-out families in each.
        engine: "deepspeed", "plain" torch, or "auto": DeepSpeed where it is installed and there are several processes.
        zero: DeepSpeed's ZeRO stage, 0 to 3.
        recompute: what the backward pass computes again instead of the forward pass keeping it: "nothing", or "updates", "blocks" or "both"
            as :class:`evoattn.Execution` has them for `checkpoint`.
        watch: look at the output of every module in each step, and stop at the first that is not finite.
        workers: processes that prepare samples, for each that trains; 0 prepares them in between.
        device: "auto" (cuda where there is one), "cpu" or "cuda".
    """

    steps: int = 1000
    batch: int = 4
    micro_batch: int = 1
    precision: str = "fp32"
    checkpoint_every: int = 100
    keep: int = 2
    validate_every: int = 0
    validate_samples: int = 16
    engine: str = "auto"
    zero: int = 1
    recompute: str = "nothing"
    watch: bool = False
    workers: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        check_sizes(self, "steps", "batch", "micro_batch", "checkpoint_every", "keep", "validate_samples")
        check_sizes(self, "validate_every", "workers", "zero", least=0)
        check_word(self, "precision", "fp32", "bf16")
        check_word(self, "engine", "auto", "plain", "deepspeed")
        check_word(self, "device", "auto", "cpu", "cuda")
        check_word(self, "recompute", *RECOMPUTE)
        if self.batch % self.micro_batch:
            raise ConfigError(f"RunConfig: batch is {self.batch}, micro_batch {self.micro_batch}; the first is a multiple of the second.")
        if self.zero > 3:
            raise ConfigError(f"RunConfig: zero is {self.zero}; DeepSpeed has ZeRO stages 0 to 3.")

    @property
    def execution(self) -> Execution:
        """How the model runs; bf16 is up to the engine, since it goes for the heads too."""
        return Execution(checkpoint=RECOMPUTE[self.recompute])


DECIDING: Final = ("steps", "batch", "micro_batch", "precision")
"""The fields of RunConfig that change numbers; `steps` only how many there are."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A whole run. `out` is the folder it writes."""

    out: Path = Path("run")
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def record(self) -> dict[str, Any]:
        """As plain values."""
        return json.loads(json.dumps(asdict(self), default=str))

    def deciding(self) -> dict[str, Any]:
        """What a run that goes on must have in common with the one it continues, flat: "optimizer.lr" and so on."""
        tables = self.record()
        run = {name: tables["run"][name] for name in DECIDING if name != "steps"}
        data = {name: value for name, value in tables["data"].items() if name != "families"}  # a folder may have moved
        chosen = {"data": data, "model": tables["model"], "loss": tables["loss"], "optimizer": tables["optimizer"], "run": run}
        return {f"{table}.{name}": value for table, values in chosen.items() for name, value in values.items()}


def read_config(path: str | Path) -> TrainConfig:
    """Read a TOML file; paths in it are relative to its folder.

    Raises:
        ConfigError: the file is not there or no TOML, or has an unknown table or field, or a value that is not allowed.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}; `evoattn train --init {path}` writes one to start from.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from error
    try:
        config = _table(TrainConfig, tables, "")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    here = path.parent
    model = replace(config.model, weights=str(here / config.model.weights)) if config.model.weights else config.model
    return replace(config, out=here / config.out, data=replace(config.data, families=here / config.data.families), model=model)


def _table(kind: type, values: dict[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    known = [one.name for one in fields(kind)]
    if unknown := sorted(values.keys() - set(known)):
        raise ConfigError(f"unknown {where}{unknown[0]}; there are {', '.join(where + name for name in known)}.")
    return kind(**{name: _value(hints[name], value, f"{where}{name}") for name, value in values.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and hasattr(hint, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise ConfigError(f"{where} is {value!r}; it is a table of settings, [{where}].")
        return _table(hint, value, f"{where}.")
    if hint == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f'{where} is {value!r}; it is a list of names, ["one", "two"].')
        return tuple(value)
    wanted = {Path: str, float: int | float, dict[str, Any]: dict}.get(hint, hint)
    if wanted in (str, int, bool, dict, int | float) and (not isinstance(value, wanted) or isinstance(value, bool) is not (wanted is bool)):
        kinds = {str: "text", int: "a whole number", bool: "true or false", dict: "a table"}
        raise ConfigError(f"{where} is {value!r}; it must be {kinds.get(wanted, 'a number')}.")
    return Path(value) if hint is Path else float(value) if hint is float else value


def _changed(config: EvoformerConfig, changes: dict[str, Any], where: str) -> EvoformerConfig:
    known = [one.name for one in fields(config) if one.name != "profile"]
    if unknown := sorted(changes.keys() - set(known)):
        raise ConfigError(f"ModelConfig: {where} has no {unknown[0]!r}; there are {', '.join(known)}.")
    return replace(config, **changes)
