"""What a run is asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from evoattn.config import TrunkConfig, preset
from evoattn.errors import ConfigError
from evoattn.ops import ATTENTION

DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
DEVICES: Final = ("auto", "cpu", "cuda")
FORMATS: Final = ("safetensors", "npz")
REPRESENTATIONS: Final = ("msa", "pair", "single")


def dtype_named(name: str) -> torch.dtype:
    """The dtype that a short name stands for. Raises ConfigError if there is none."""
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; allowed are {', '.join(DTYPES)}.")
    return DTYPES[name]


@dataclass(frozen=True)
class RunSettings:
    """One run of a trunk on an alignment file.

    Attributes:
        input: the alignment, in any format of :func:`evoattn.read_msa`.
        out: the folder to write; by default ``<stem of input>_evoattn`` in the present folder.
        preset: a name in :data:`evoattn.PRESETS`; by default "af2-4", or the whole "af2" with weights.
        blocks: Evoformer blocks, instead of the preset's.
        weights: a ``params_model_*.npz`` of AlphaFold 2; None draws random parameters from `seed`.
        max_seqs, max_extra: see :func:`evoattn.make_features`. recycles: see :class:`evoattn.EvoformerTrunk`.
        dtype: of parameters, features and results: "fp32", "bf16", "fp16" or "fp64". device: "cpu", "cuda", or "auto".
        backend: of every attention: "auto" or a name.
        save: which of "msa", "pair" and "single" are written. format: "safetensors" or "npz".
        force: replace an output folder of an earlier run.

    Raises:
        ConfigError: a value is not allowed. BackendError: there is no backend of that name.
    """

    input: Path
    out: Path | None = None
    preset: str | None = None
    blocks: int | None = None
    weights: Path | None = None
    max_seqs: int = 128
    max_extra: int = 1024
    recycles: int = 0
    dtype: str = "fp32"
    device: str = "auto"
    backend: str = "auto"
    seed: int = 0
    save: tuple[str, ...] = REPRESENTATIONS
    format: str = "safetensors"
    force: bool = False

    def __post_init__(self) -> None:
        dtype_named(self.dtype)
        for name, value, allowed in (("device", self.device, DEVICES), ("format", self.format, FORMATS)):
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; allowed are {', '.join(allowed)}.")
        if not self.save or set(self.save) - set(REPRESENTATIONS):
            raise ConfigError(f"save is {','.join(self.save)!r}; it is one or more of {', '.join(REPRESENTATIONS)}, separated by commas.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device is 'cuda', but torch finds no CUDA device here; use 'cpu', or 'auto' for whichever there is.")
        for name, least in (("blocks", 1), ("max_seqs", 1), ("max_extra", 0), ("recycles", 0)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ConfigError(f"{name} is {number}; it must be at least {least}.")
        if self.backend != "auto":
            ATTENTION.get(self.backend)
        preset(self.preset_name)

    @property
    def preset_name(self) -> str:
        return self.preset or ("af2-4" if self.weights is None else "af2")

    @property
    def config(self) -> TrunkConfig:
        """The trunk to build."""
        config = preset(self.preset_name)
        return config if self.blocks is None else config.with_blocks(self.blocks)

    @property
    def torch_dtype(self) -> torch.dtype:
        return dtype_named(self.dtype)

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu")

    @property
    def folder(self) -> Path:
        """The absolute path of the output folder."""
        name = self.input.name.removesuffix(".gz")
        return (self.out or Path(f"{Path(name).stem}_evoattn")).resolve()
