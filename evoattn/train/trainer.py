"""The training loop."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from evoattn.errors import ConfigError, TrainingError
from evoattn.execution import set_execution
from evoattn.train.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from evoattn.train.config import TrainConfig
from evoattn.train.data import VALIDATION, MicroBatch, Samples, Share, micro_batches
from evoattn.train.deepspeed import DeepSpeedEngine
from evoattn.train.engine import Engine, PlainEngine
from evoattn.train.export import export_weights
from evoattn.train.families import Family, find_families, split_families
from evoattn.train.finite import first_bad, watch_finite
from evoattn.train.log import RunLog, draw_loss
from evoattn.train.losses import BINS, Sum, distogram_loss, masked_msa_loss
from evoattn.train.metrics import N_LETTERS, letter_errors
from evoattn.train.model import TrunkWithHeads, freeze_unread
from evoattn.train.optimizer import AveragingAdamW, set_schedule
from evoattn.train.world import join_world
from evoattn.weights import load_weights

TERMS = ("masked_msa", "distogram", "letters")
"""The sums of a step: two losses, and what perplexity is made of."""


@dataclass(frozen=True)
class Step:
    """What is told after each step: its number from 1, and its metrics."""

    step: int
    steps: int
    metrics: Mapping[str, float]


OnStep = Callable[[Step], None]
Say = Callable[[str], None]


def quiet(text: str) -> None:
    """Says nothing."""


@dataclass
class Result:
    """Of a run: the model after it, on the device where it was trained, and what was left behind."""

    model: TrunkWithHeads
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step, and of the last validation."""
    weights: Path | None = None
    """The exported moving average."""


def train(
    config: TrainConfig,
    families: Sequence[Family] | None = None,
    *,
    resume: bool = False,
    on_step: OnStep = lambda step: None,
    say: Say = quiet,
) -> Result:
    """Train a trunk on the masked-MSA and the distogram loss, and write the folder ``config.out``.

    The folder gets ``checkpoints/``, ``metrics.jsonl``, ``loss.png``, ``tensorboard/`` and, at the end, ``weights.safetensors``, the moving
    average of the parameters. Started by torchrun, the processes share out the micro-batches of each step; the numbers are those of one
    process but for rounding, which on a CPU is the same each time.

    Args:
        families: by default those in the folder ``config.data.families``.
        resume: go on after the newest checkpoint of the folder, or start where there is none.
        on_step: called after each step, on the first process. say: called with a line of text now and then, likewise.

    Raises:
        ConfigError: settings contradict each other, the data or the checkpoint; or the folder holds an earlier run without `resume`.
        TrainingError: a loss or gradient is not finite, or a file cannot be written; the message says which. Checkpoints stay.
    """
    trainer = Trainer(config, families, resume=resume, say=say)
    return trainer.run(on_step)


class Trainer:
    """A run that is set up; :meth:`run` does it. See :func:`train` for arguments and errors."""

    def __init__(self, config: TrainConfig, families: Sequence[Family] | None = None, *, resume: bool = False, say: Say = quiet) -> None:
        self.config = config
        self.world = join_world(config.run.device)
        self.say = say if self.world.first else quiet
        self.share = Share(config.run.batch, config.run.micro_batch, self.world.rank, self.world.processes)
        if families is None:
            families = find_families(config.data.families, max_rows=config.data.max_rows)
        training, held_out = split_families(families, config.data.held_out)
        self.samples = Samples(training, config.data)
        self.held_out = Samples(held_out, config.data, VALIDATION) if held_out else None
        self.bins = BINS[config.model.bins]
        self.checkpoints = config.out / "checkpoints"
        checkpoint = self._checkpoint(resume)
        self.step = 0 if checkpoint is None else checkpoint.step
        self.model = self._model(checkpoint)
        self.engine = self._engine(checkpoint)

    def _checkpoint(self, resume: bool) -> Checkpoint | None:
        if not resume:
            if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
                raise ConfigError(f"{self.config.out} holds an earlier run; go on with --resume (resume=True), or give another out.")
            return None
        found = latest_checkpoint(self.checkpoints, self.say)
        if found is None:
            return None
        now = self.config.deciding()
        then = found.deciding
        if changed := [f"{name} ({then.get(name)!r}, now {now[name]!r})" for name in now if then.get(name) != now[name]]:
            raise ConfigError(
                f"the run in {self.config.out} was made with another {', '.join(changed)}; it goes on as it began. For a new run from its "
                "parameters give another out, and model.weights."
            )
        self.say(f"going on after step {found.step}")
        return found

    def _model(self, checkpoint: Checkpoint | None) -> TrunkWithHeads:
        torch.manual_seed(self.config.data.seed)
        model = TrunkWithHeads(self.config.model.trunk(), self.bins)
        if checkpoint is not None:
            model.load_state_dict(checkpoint.of("weights"))
        elif self.config.model.weights:
            account = load_weights(model.trunk, self.config.model.weights)
            self.say(f"{self.config.model.weights}: {account}")
        if unread := freeze_unread(model):
            self.say(f"not trained, since no head reads them: {', '.join(unread)}")
        set_execution(model, self.config.run.execution)
        return model.to(self.world.device)

    def _engine(self, checkpoint: Checkpoint | None) -> Engine:
        kind = self.config.run.engine
        if kind == "auto":
            kind = "deepspeed" if self.world.processes > 1 and deepspeed_found() else "plain"
        optimizer = AveragingAdamW((x for x in self.model.parameters() if x.requires_grad), self.config.optimizer)
        moments = {} if checkpoint is None else dict(checkpoint.tensors)
        build = DeepSpeedEngine if kind == "deepspeed" else PlainEngine
        return build(self.model, optimizer, self.config.run, self.config.optimizer.clip, self.world, moments, self.step)

    def run(self, on_step: OnStep = lambda step: None) -> Result:
        """Train until ``config.run.steps``."""
        c = self.config.run
        log = RunLog(self.config.out, self.step) if self.world.first else None
        self.say(f"engine {self.engine.name}, {self.world.processes} process(es) on {self.world.device.type}, {c.precision}")
        last: dict[str, float] = {}
        batches = micro_batches(self.samples, list(self.share.numbers(self.step, c.steps)), workers=c.workers)
        try:
            while self.step < c.steps:
                metrics = self._one_step(batches)
                self.step += 1
                done = self.step == c.steps
                if self.held_out is not None and c.validate_every and (done or self.step % c.validate_every == 0):
                    metrics |= self.validate()
                last |= metrics
                if log is not None:
                    log.write(self.step, metrics)
                if done or self.step % c.checkpoint_every == 0:
                    self.save()
                if self.world.first:
                    on_step(Step(self.step, c.steps, metrics))
        finally:
            if log is not None:
                log.close()
        return self._finished(last)

    def rehearse(self) -> float:
        """Make two steps and write nothing; returns the seconds of the second. What the run had learnt is gone: use the trainer no more."""
        numbers = list(self.share.numbers(self.step, self.step + 2))
        batches = micro_batches(self.samples, numbers)
        self._one_step(batches)
        return self._one_step(batches)["seconds"]

    def save(self) -> None:
        """Write a checkpoint; every process has to call it, and the first writes."""
        state = self.engine.state()
        if state is not None:
            save_checkpoint(self.checkpoints, Checkpoint(self.step, state, self.config.deciding()), keep=self.config.run.keep)

    def _finished(self, metrics: dict[str, float]) -> Result:
        weights = None
        if self.world.first and (checkpoint := latest_checkpoint(self.checkpoints)) is not None:
            weights = export_weights(checkpoint, self.config.model, self.config.out / "weights.safetensors")
            draw_loss(self.config.out)
        return Result(self.model, self.step, metrics, weights)

    def _one_step(self, batches: Iterator[MicroBatch]) -> dict[str, float]:
        """One update: as many micro-batches as are this process's share."""
        started = time.perf_counter()
        rate = set_schedule(self.engine.groups, self.config.optimizer, self.step)
        own = [self._moved(next(batches)) for _ in range(self.share.per_step)]
        counts = self.world.add_up(torch.stack([counted(one.features) for one in own]).sum(0))
        totals = torch.zeros(len(TERMS), device=self.world.device)
        self.model.train()
        for one in own:
            terms = self._terms(one, watched=self.config.run.watch)
            loss = self._loss(torch.stack([term.total for term in terms]), counts)
            self.engine.backward(loss)
            totals += torch.stack([term.total.detach().float() for term in terms])
        totals = self.world.add_up(totals)
        loss_value = float(self._loss(totals, counts))
        if not abs(loss_value) < torch.inf:
            raise TrainingError(self._diagnosis(own, f"the loss of step {self.step + 1} is {loss_value}"))
        norm = self.engine.update()
        if not norm < torch.inf:
            raise TrainingError(self._diagnosis(own, f"the norm of the gradient of step {self.step + 1} is {norm}"))
        seconds = time.perf_counter() - started
        metrics = {"loss": loss_value, **_means(totals, counts), "gradient_norm": norm, "learning_rate": rate}
        return metrics | {"seconds": seconds, "tokens_per_second": float(counts[-1]) / seconds}

    def _loss(self, totals: Tensor, counts: Tensor) -> Tensor:
        """The weighted sum of the means over all that counts in this step, everywhere."""
        weights = torch.tensor([self.config.loss.masked_msa, self.config.loss.distogram, 0.0], device=totals.device)
        means = totals / counts[: len(TERMS)].clamp(min=1)
        return (weights * means)[:2].sum()

    def _terms(self, batch: MicroBatch, *, watched: bool = False) -> list[Sum]:
        """The sums of one micro-batch, as TERMS names them. What dropout draws follows from the number of its first sample."""
        f = batch.features
        torch.manual_seed(_seed(self.config.data.seed, batch.number))
        with watch_finite(self.model) if watched else nullcontext():
            out = self.engine.forward(f)
        return [
            masked_msa_loss(out.msa, f["true_msa"], f["bert_mask"]),
            distogram_loss(out.distogram, f["pseudo_beta"], f["pseudo_beta_mask"], self.bins),
            letter_errors(out.msa.detach(), f["true_msa"], f["bert_mask"]),
        ]

    def _moved(self, batch: MicroBatch) -> MicroBatch:
        return MicroBatch(batch.number, {name: x.to(self.world.device, non_blocking=True) for name, x in batch.features.items()})

    def _diagnosis(self, batches: Sequence[MicroBatch], what: str) -> str:
        """Goes through the step once more to find the first bad tensor. Every process does, since they may share out parameters."""
        found = ""
        for batch in batches:
            bad = first_bad({f"the feature {name}": x for name, x in batch.features.items()})
            torch.manual_seed(_seed(self.config.data.seed, batch.number))
            with torch.no_grad(), watch_finite(self.model, stop=False) as watch:
                self.engine.forward(batch.features)
            found = found or bad or watch.first
        bad_gradients = {f"the gradient of {name}": x.grad for name, x in self.model.named_parameters() if x.grad is not None}
        found = found or first_bad(bad_gradients) or "the forward pass of this process is finite throughout"
        return (
            f"{what}. First of all, {found}. The last checkpoint, in {self.checkpoints}, is good: look at the step's data, or start anew "
            "with a lower learning rate, or in fp32."
        )

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Losses and perplexity of the averaged parameters on the held-out families: the same samples each time."""
        if self.held_out is None:
            raise ConfigError("there is no held-out family to validate on; name one in data.held_out.")
        self.model.eval()
        numbers = [[number] for number in range(self.world.rank, self.config.run.validate_samples, self.world.processes)]
        rounds = -(-self.config.run.validate_samples // self.world.processes)
        padded = numbers + [[0]] * (rounds - len(numbers))  # processes that share out parameters do everything together
        totals, counts = torch.zeros(len(TERMS), device=self.world.device), torch.zeros(len(TERMS) + 1, device=self.world.device)
        with self.engine.averaged():
            for place, batch in enumerate(micro_batches(self.held_out, padded)):
                batch = self._moved(batch)
                terms = self._terms(batch)
                if place < len(numbers):
                    totals += torch.stack([term.total.float() for term in terms])
                    counts += counted(batch.features)
        totals, counts = self.world.add_up(totals), self.world.add_up(counts)
        means = {"loss": float(self._loss(totals, counts)), **_means(totals, counts)}
        return {f"held_out_{name}": value for name, value in means.items()}


def counted(features: Mapping[str, Tensor]) -> Tensor:
    """How many elements each of TERMS has in these features, and how many cells (tokens) the alignment has."""
    told, resolved = features["bert_mask"], features["pseudo_beta_mask"].sum(-1)
    letters = told & (features["true_msa"] < N_LETTERS)
    return torch.stack([told.sum(), resolved.square().sum(), letters.sum(), features["msa_mask"].sum()]).float()


def deepspeed_found() -> bool:
    """Whether DeepSpeed is installed."""
    return find_spec("deepspeed") is not None


def _means(totals: Tensor, counts: Tensor) -> dict[str, float]:
    """Those of which there are elements."""
    masked_msa, distogram, letters = totals / counts[: len(TERMS)]
    means = {"masked_msa": float(masked_msa), "distogram": float(distogram), "perplexity": float(letters.exp())}
    return {name: value for name, value in means.items() if isfinite(value)}


def _seed(seed: int, number: int) -> int:
    """Of what one micro-batch draws; far from the seeds of its neighbours."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0])
