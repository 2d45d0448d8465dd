"""Samples of families, drawn by number: the same number gives the same sample, whoever draws it and whatever was drawn before."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from evoattn.errors import ConfigError
from evoattn.io import make_features, pad_features
from evoattn.io.chains import crop_columns
from evoattn.train.config import DataConfig
from evoattn.train.families import Family

Features = dict[str, Tensor]
VALIDATION = 1
"""What tells the draws of validation from those of training, whose seeds have a 0 in this place."""


class Samples(Dataset[Features]):
    """Random stretches and rows of families, with hidden cells; sample `number` follows from the seed and its number alone.

    Every family comes once in each round, in an order of its own.

    Args:
        families: to draw from. config: how. stream: 0, or another number for samples that have nothing to do with those.

    Raises:
        ConfigError: there is no family.
    """

    def __init__(self, families: Sequence[Family], config: DataConfig, stream: int = 0) -> None:
        if not families:
            raise ConfigError("Samples: there is no family to draw from.")
        self.families = list(families)
        self.config = config
        self.stream = stream

    def __getitem__(self, number: int) -> Features:
        """Features of :func:`evoattn.make_features`, and pseudo_beta [N_res, 3] with pseudo_beta_mask [N_res]; without a batch axis."""
        c = self.config
        round_, place = divmod(number, len(self.families))
        order = np.random.default_rng([c.seed, self.stream, 0, round_]).permutation(len(self.families))
        family = self.families[order[place]]
        rng = np.random.default_rng([c.seed, self.stream, 1, number])
        length = min(c.crop, family.msa.n_res)
        start = int(rng.integers(family.msa.n_res - length + 1))
        columns = slice(start, start + length)
        msa = family.msa if length == family.msa.n_res else crop_columns(family.msa, columns)
        features = make_features(msa, c.features(), seed=int(rng.integers(2**62)))
        features["residue_index"] = features["residue_index"] + start
        return features | _positions(family, columns)


def _positions(family: Family, columns: slice) -> Features:
    """In AlphaFold 2's names."""
    if family.pseudo_beta is None:
        x = torch.full((columns.stop - columns.start, 3), torch.nan)
    else:
        x = torch.from_numpy(family.pseudo_beta[columns])
    resolved = ~x.isnan().any(dim=-1)
    return {"pseudo_beta": x.nan_to_num(0.0), "pseudo_beta_mask": resolved}


def collate(samples: Sequence[Mapping[str, Tensor]]) -> Features:
    """Samples side by side, padded to the largest; the masks say what is padding."""
    sizes = {
        "n_res": max(one["seq_mask"].shape[0] for one in samples),
        "n_seq": max(one["msa_mask"].shape[0] for one in samples),
        "n_extra": max(one["extra_msa_mask"].shape[0] for one in samples),
    }
    padded = [pad_features(one, **sizes) for one in samples]
    return {name: torch.stack([one[name] for one in padded]) for name in padded[0]}


@dataclass(frozen=True)
class MicroBatch:
    """Samples that go through the model at once; `number` is that of the first."""

    number: int
    features: Features


@dataclass(frozen=True)
class Share:
    """Which micro-batches are whose: of each step's, one after the other in turn."""

    batch: int
    micro_batch: int
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        if (self.batch // self.micro_batch) % self.processes:
            raise ConfigError(
                f"a step has {self.batch // self.micro_batch} micro-batches (batch {self.batch} / micro_batch {self.micro_batch}), which "
                f"{self.processes} processes cannot share out evenly; choose a batch that is a multiple of "
                f"{self.micro_batch * self.processes}."
            )

    @property
    def per_step(self) -> int:
        """Micro-batches of a step for each process: how many gradients are accumulated."""
        return self.batch // self.micro_batch // self.processes

    def numbers(self, first_step: int, last_step: int) -> Iterator[list[int]]:
        """The numbers of the samples of each micro-batch of this process."""
        for step in range(first_step, last_step):
            for own in range(self.per_step):
                start = step * self.batch + (own * self.processes + self.rank) * self.micro_batch
                yield list(range(start, start + self.micro_batch))


def micro_batches(samples: Samples, numbers: Sequence[Sequence[int]], *, workers: int = 0) -> Iterator[MicroBatch]:
    """The micro-batches of the given sample numbers, in that order; with `workers`, prepared ahead by that many processes."""
    loader = DataLoader(
        samples, batch_sampler=[list(one) for one in numbers], collate_fn=collate, num_workers=workers,
        worker_init_fn=_one_thread,
    )  # fmt: skip
    for own, features in zip(numbers, loader, strict=True):
        yield MicroBatch(own[0], features)


def _one_thread(worker: int) -> None:
    """Several workers side by side have the processors; threads in each would only wait for each other."""
    torch.set_num_threads(1)
