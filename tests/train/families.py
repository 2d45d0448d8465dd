"""Small protein families made up on the spot, and a model and run that fit them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from evoattn.io import MSA, MSAAccount, SparseLetters
from evoattn.train.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig
from evoattn.train.families import Family

TINY = {
    "n_blocks": 1, "c_m": 8, "c_z": 8, "c_s": 8, "n_head_msa_row": 2, "n_head_msa_column": 2, "n_head_tri_start": 2, "n_head_tri_end": 2,
    "c_hidden_mul": 8, "c_hidden_opm": 4, "msa_transition_n": 2, "pair_transition_n": 2,
}  # fmt: skip


def alignment(n_seq: int, n_res: int, seed: int = 0, *, gaps: float = 0.1) -> MSA:
    """Rows that differ from the query in a third of the columns."""
    rng = np.random.default_rng(seed)
    residues = np.tile(rng.integers(20, size=n_res), (n_seq, 1))
    changed = rng.random(residues.shape) < 1 / 3
    residues[changed] = rng.integers(20, size=changed.sum())
    residues[rng.random(residues.shape) < gaps] = 21
    residues[0] = np.where(residues[0] == 21, 0, residues[0])
    names = tuple(f"row {i}" for i in range(n_seq))
    return MSA(names, ("",) * n_seq, residues.astype(np.uint8), SparseLetters.none(n_seq), MSAAccount(n_seq, n_seq))


def family(name: str, n_seq: int, n_res: int, seed: int = 0, *, structure: bool = True) -> Family:
    """With a random walk for a structure, of which one residue is not resolved."""
    rng = np.random.default_rng(seed + 100)
    walk = np.cumsum(rng.normal(size=(n_res, 3)) * 2, axis=0).astype(np.float32)
    walk[1] = np.nan
    return Family(name, alignment(n_seq, n_res, seed), walk if structure else None)


def families() -> list[Family]:
    """Of different lengths and depths; the third has no structure, and no rows for the extra-MSA stack."""
    return [
        family("one", 9, 13, 1), family("two", 7, 8, 2), family("three", 4, 11, 3, structure=False), family("held out", 8, 12, 4),
    ]  # fmt: skip


NO_DROPOUT = {"dropout_msa": 0.0, "dropout_pair": 0.0}


def config(out: Path, model: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> TrainConfig:
    """A run of 20 steps; `model` changes fields of EvoformerConfig, `changes` those of RunConfig."""
    return TrainConfig(
        out=out,
        data=DataConfig(held_out=("held out",), crop=10, max_seqs=4, max_extra=3, seed=5),
        model=ModelConfig(evoformer=TINY | model, extra=TINY | model),
        optimizer=OptimizerConfig(lr=1e-2, warmup_steps=5, decay_after=15, decay_factor=0.5, average_decay=0.9),
        run=RunConfig(**{"steps": 20, "batch": 4, "checkpoint_every": 10, "keep": 3, "engine": "plain", "device": "cpu", **changes}),
    )
