"""What a run is asked to do."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import torch

from evoattn.config import TrunkConfig, preset
from evoattn.errors import ConfigError
from evoattn.io import FEATURE_PRESETS, FeatureConfig, feature_preset
from evoattn.io.suffixes import stem
from evoattn.ops import ATTENTION
from evoattn.runs.presets import MSA_TRANSFORMERS, refuse_preset
from evoattn.units import parse_bytes

DTYPES: Final = {"fp32": torch.float32, "mixed": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
DTYPE_HELP: Final = "Of parameters, features and results. mixed: fp32, with the matrix products of all blocks in bf16."
DEVICES: Final = ("auto", "cpu", "cuda", "mps")
FORMATS: Final = ("safetensors", "npz")
REPRESENTATIONS: Final = ("msa", "pair", "single")
OUTPUTS: Final = (*REPRESENTATIONS, "contacts", "masked_msa_logits")
PAIRINGS: Final = ("none", "best", "rank", "row")

_NOT_OF_MSA_TRANSFORMER: Final = {
    "chains": (), "pair": "none", "blocks": None, "features": None, "max_extra": None, "recycles": 0, "memory_budget": None,
}  # fmt: skip
"""Settings that must stand at their defaults."""


def dtype_named(name: str) -> torch.dtype:
    """The dtype that a short name stands for. Raises ConfigError if there is none."""
    if name not in DTYPES:
        raise ConfigError(f"dtype is {name!r}; allowed are {', '.join(DTYPES)}.")
    return DTYPES[name]


def products_named(name: str) -> Literal["bf16"] | None:
    """What a short name means for :class:`evoattn.Execution`."""
    return "bf16" if name == "mixed" else None


@dataclass(frozen=True)
class RunSettings:
    """One run of a trunk on an alignment file.

    Attributes:
        input: the alignment, in any format of :func:`evoattn.read_msa`; with `database`, the sequence to search with.
        chains: as `input`, of the further chains of a complex. pair: how rows of different chains are matched
            (:func:`evoattn.runs.join_alignments`).
        msa_format, query, block: see :func:`evoattn.read_msa`; the last two are for a single file.
        database, iterations, evalue: where homologs are searched, and how (:func:`evoattn.io.search_database`).
        out: the folder to write; by default ``<stem of input>_evoattn`` in the present folder.
        preset: a name in :data:`evoattn.PRESETS`, or "msa_transformer"; by default "af2-4", or the whole "af2" with weights.
        blocks: Evoformer blocks, instead of the preset's.
        weights: parameters of AlphaFold 2 or OpenFold that fit the preset; None draws random parameters from `seed`.
        contact_weights: of the MSA Transformer's contact head, which has a file of its own.
        features: a name in :data:`evoattn.io.FEATURE_PRESETS`; by default those of the preset, and "plain" where it has none.
        max_seqs, max_extra: rows, instead of those of `features`.
        recycles: further passes (:class:`evoattn.EvoformerTrunk`); features that are drawn are drawn anew for each.
        dtype: of parameters, features and results: "fp32", "bf16", "fp16" or "fp64"; "mixed" is fp32 with products in bf16.
        device: "cpu", "cuda" (AMD's cards too), "mps" (Apple's), or "auto": cuda where there is one.
        backend: of every attention: "auto" or a name.
        memory_budget: what the run may add to parameters and features, e.g. "8GiB"; by default the memory that is free.
        seed: of random parameters and of features that are drawn.
        save: which of "msa", "pair", "single", "contacts" and "masked_msa_logits" are written. The last two are of heads in the parameter
            file: contacts are left out without one, logits are refused. format: "safetensors" or "npz".
        force: replace an output folder of an earlier run.

    Raises:
        ConfigError: a value is not allowed. BackendError: there is no backend of that name.
    """

    input: Path
    chains: tuple[Path, ...] = ()
    pair: str = "none"
    msa_format: str = "auto"
    query: str | None = None
    block: int | str | None = None
    database: Path | None = None
    iterations: int = 1
    evalue: float = 1e-3
    out: Path | None = None
    preset: str | None = None
    blocks: int | None = None
    weights: Path | None = None
    contact_weights: Path | None = None
    features: str | None = None
    max_seqs: int | None = None
    max_extra: int | None = None
    recycles: int = 0
    dtype: str = "fp32"
    device: str = "auto"
    backend: str = "auto"
    memory_budget: str | None = None
    seed: int = 0
    save: tuple[str, ...] = (*REPRESENTATIONS, "contacts")
    format: str = "safetensors"
    force: bool = False

    def __post_init__(self) -> None:
        dtype_named(self.dtype)
        words = ("device", self.device, DEVICES), ("format", self.format, FORMATS), ("pair", self.pair, PAIRINGS)
        for name, value, allowed in words:
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; allowed are {', '.join(allowed)}.")
        if not self.save or set(self.save) - set(OUTPUTS):
            raise ConfigError(f"save is {','.join(self.save)!r}; it is one or more of {', '.join(OUTPUTS)}, separated by commas.")
        if "masked_msa_logits" in self.save and self.weights is None:
            raise ConfigError("save asks for masked_msa_logits, which are of a head in the parameter file; give --weights too.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device is 'cuda', but torch finds no CUDA device here; use 'cpu', or 'auto' for whichever there is.")
        if self.device == "mps" and not torch.backends.mps.is_available():
            raise ConfigError("device is 'mps', but torch finds no Apple GPU here; use 'cpu', or 'auto' for whichever there is.")
        if self.device == "mps" and self.dtype == "fp64":
            raise ConfigError("device is 'mps' and dtype 'fp64'; Apple's GPUs have no float64. Use another dtype, or 'cpu'.")
        for name, least in (("blocks", 1), ("max_seqs", 1), ("max_extra", 0), ("recycles", 0)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ConfigError(f"{name} is {number}; it must be at least {least}.")
        if self.memory_budget is not None:
            parse_bytes(self.memory_budget)
        if self.backend != "auto":
            ATTENTION.get(self.backend)
        if self.chains and not (self.query is None and self.block is None):
            raise ConfigError("query and block are for a single file; write the alignment that you mean of each file to one of its own.")
        refuse_preset(self.preset_name)
        if self.preset_name in MSA_TRANSFORMERS:
            self._refuse_for_msa_transformer()
            return
        if self.contact_weights is not None:
            raise ConfigError(f"two files of parameters are for the preset msa_transformer; {self.preset_name!r} takes one.")
        self._refuse_features()

    def _refuse_for_msa_transformer(self) -> None:
        """It takes the alignment of one chain as it stands, and has no pair or single representation."""
        unlike = {name: value for name, value in _NOT_OF_MSA_TRANSFORMER.items() if getattr(self, name) != value}
        if unlike:
            raise ConfigError(f"the preset {self.preset_name!r} takes one chain and no {', '.join(unlike)}; leave them out.")
        if not set(self.save) & {"msa", "contacts"} or "masked_msa_logits" in self.save:
            raise ConfigError(f"save is {','.join(self.save)!r}; the preset {self.preset_name!r} gives msa and contacts.")

    def _refuse_features(self) -> None:
        """Features and trunk must be made for each other: AlphaFold-Multimer's are of other widths, and name the chains."""
        features, trunk = self.feature_config, self.config
        wanted = (trunk.c_target_feat, trunk.max_chain is not None)
        if _target(features) != wanted:
            fitting = ", ".join(name for name, config in FEATURE_PRESETS.items() if _target(config) == wanted)
            there, taken = (f"{width} channels and {'chain ids' if ids else 'no chain ids'}" for width, ids in (_target(features), wanted))
            raise ConfigError(
                f"the features {self.features_name!r} are not for the trunk {self.preset_name!r}: they have a target_feat of {there}, "
                f"and it takes {taken}. Fitting are {fitting or 'none of those there are'}."
            )

    @property
    def inputs(self) -> tuple[Path, ...]:
        """One file for each chain."""
        return (self.input, *self.chains)

    @property
    def features_name(self) -> str:
        """What was asked for, or what the preset was published with."""
        published = {"af2_multimer_v3": "af2_multimer_1"}.get(self.preset_name, self.preset_name)
        return self.features or (published if published in FEATURE_PRESETS else "plain")

    @property
    def feature_config(self) -> FeatureConfig:
        """The features to make."""
        of_preset = feature_preset(self.features_name)
        return replace(
            of_preset,
            max_seqs=of_preset.max_seqs if self.max_seqs is None else self.max_seqs,
            max_extra=of_preset.max_extra if self.max_extra is None else self.max_extra,
        )

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
    def products(self) -> Literal["bf16"] | None:
        return products_named(self.dtype)

    @property
    def attention_dtype(self) -> torch.dtype:
        """What attention is called in."""
        return torch.bfloat16 if self.products else self.torch_dtype

    @property
    def torch_device(self) -> torch.device:
        if self.device != "auto":
            return torch.device(self.device)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    @property
    def folder(self) -> Path:
        """The absolute path of the output folder."""
        name = "+".join(stem(path.resolve()) for path in self.inputs)  # "." has no name
        return (self.out or Path(f"{name}_evoattn")).resolve()


def _target(features: FeatureConfig) -> tuple[int, bool]:
    """Channels of target_feat, and whether chains are told by ids."""
    return (22 if features.break_channel else 21, features.chains == "ids")
