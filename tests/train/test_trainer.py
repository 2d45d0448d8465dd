"""The training loop in one process: what it learns, how it goes on, where it stops."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from evoattn import EvoformerTrunk, load_weights
from evoattn.errors import ConfigError, TrainingError
from evoattn.primitives import redraw_
from evoattn.train.config import OptimizerConfig
from evoattn.train.data import micro_batches
from evoattn.train.engine import PlainEngine
from evoattn.train.finite import watch_finite
from evoattn.train.log import read_metrics
from evoattn.train.trainer import OnStep, Step, Trainer, counted, train
from evoattn.weights import convert
from tests.train.families import NO_DROPOUT, config, families


def same(a: Path, b: Path) -> bool:
    one, other = load_file(a), load_file(b)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_one_batch_is_learnt_by_heart(tmp_path: Path, no_type_checks: None) -> None:
    """The same sample again and again: both losses go nearly to zero."""
    c = config(tmp_path, NO_DROPOUT | {"c_z": 16}, batch=1)
    c = replace(c, optimizer=OptimizerConfig(lr=2e-2, warmup_steps=5, clip=1.0))
    trainer = Trainer(c, families())
    batch = list(micro_batches(trainer.samples, [[0]]))
    losses = [trainer._one_step(iter(batch))["loss"] for _ in range(80)]
    assert losses[0] > 7 and losses[-1] < 0.01 * losses[0]


def test_gradient_of_the_whole_step(tmp_path: Path) -> None:
    """Against central differences in float64: over accumulated micro-batches, both losses, dropout and clipping aside."""
    c = config(tmp_path)
    trainer = Trainer(c, families())
    model = redraw_(trainer.model, seed=3).double()
    engine = trainer.engine
    assert isinstance(engine, PlainEngine)
    own = [trainer._moved(one) for one in micro_batches(trainer.samples, [[0], [1], [2], [3]])]
    for one in own:
        one.features.update({name: x.double() for name, x in one.features.items() if x.is_floating_point()})
    counts = torch.stack([counted(one.features) for one in own]).sum(0).double()

    def loss() -> Tensor:
        """With dropout, whose draws follow from the numbers of the samples."""
        return torch.stack([trainer._loss(torch.stack([term.total for term in trainer._terms(one)]), counts) for one in own]).sum()

    model.train()
    for one in own:
        engine.backward(trainer._loss(torch.stack([term.total for term in trainer._terms(one)]), counts))
    parameters = {name: x for name, x in model.named_parameters() if x.requires_grad}
    assert all(x.grad is not None and x.grad.isfinite().all() for x in parameters.values())
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        direction = {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in parameters.items()}
        expected = sum(float((x.grad * direction[name]).sum()) for name, x in parameters.items() if x.grad is not None)
        ends = []
        with torch.no_grad():
            for sign in (1, -2):
                for name, x in parameters.items():
                    x += sign * 1e-6 * direction[name]
                ends.append(float(loss()))
            for name, x in parameters.items():
                x += 1e-6 * direction[name]
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(expected, rel=1e-6)


def test_a_run_in_two_parts_is_the_whole(tmp_path: Path) -> None:
    """Bit for bit: weights, both moments, the average and the metrics; with workers or without; what is seen on the way too."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    seen: list[Step] = []
    settings = {"steps": 6, "checkpoint_every": 3, "validate_every": 2, "validate_samples": 1}
    train(config(whole, **settings), families(), on_step=seen.append)
    assert [one.step for one in seen] == list(range(1, 7))
    with pytest.raises(KeyboardInterrupt):
        Trainer(config(parts, **settings), families()).run(stop_after(5))
    said: list[str] = []
    train(config(parts, workers=1, **settings), families(), resume=True, say=said.append)
    assert "going on after step 3" in said
    for name in ("checkpoints/step-00000006.safetensors", "weights.safetensors"):
        assert same(whole / name, parts / name), name
    assert without_times(parts) == without_times(whole)


def without_times(folder: Path) -> list[dict[str, float]]:
    return [{name: x for name, x in line.items() if name not in ("seconds", "tokens_per_second")} for line in read_metrics(folder)]


def stop_after(step: int) -> OnStep:
    def on_step(now: Step) -> None:
        if now.step == step:
            raise KeyboardInterrupt

    return on_step


def test_what_a_run_leaves(tmp_path: Path) -> None:
    result = train(config(tmp_path, steps=4, batch=2, checkpoint_every=1, keep=2, validate_every=3, validate_samples=2), families())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003.safetensors", "step-00000004.safetensors"]
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    told = {"loss", "masked_msa", "distogram", "perplexity", "gradient_norm", "learning_rate", "seconds", "tokens_per_second"}
    assert set(lines[0]) == {"step", *told}
    assert "held_out_loss" in lines[2] and "held_out_perplexity" in lines[3] and "held_out_loss" not in lines[1]
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents*"))
    assert result.step == 4 and result.metrics["loss"] == lines[-1]["loss"] and result.weights == tmp_path / "weights.safetensors"


def test_the_loss_is_the_weighted_mean_over_the_step(tmp_path: Path) -> None:
    """2 x masked MSA + 0.3 x distogram, each over all its elements, and not a mean of means of micro-batches."""
    one = Trainer(config(tmp_path / "1", NO_DROPOUT), families())  # whose draws are per micro-batch
    together = Trainer(config(tmp_path / "2", NO_DROPOUT, micro_batch=4), families())
    for trainer in (one, together):
        redraw_(trainer.model, seed=1)
    apart = one._one_step(micro_batches(one.samples, [[0], [1], [2], [3]]))
    padded = together._one_step(micro_batches(together.samples, [[0, 1, 2, 3]]))
    for name in ("loss", "masked_msa", "distogram", "perplexity", "gradient_norm"):
        assert apart[name] == pytest.approx(padded[name], rel=1e-5), name
    assert apart["loss"] == pytest.approx(2 * apart["masked_msa"] + 0.3 * apart["distogram"], rel=1e-6)


def test_bf16_and_recomputing(tmp_path: Path) -> None:
    """bf16 is near fp32; recomputing changes nothing, dropout included."""
    runs = {}
    recompute: list[dict[str, str]] = [{"recompute": name} for name in ("blocks", "updates")]
    for name, changes in zip(["plain", "blocks", "updates", "bf16"], [{}, *recompute, {"precision": "bf16"}], strict=True):
        runs[name] = [line["loss"] for line in _lines(tmp_path / name, **changes)]
    assert runs["blocks"] == runs["plain"]
    assert runs["updates"] == pytest.approx(runs["plain"], rel=1e-5)  # its slices are summed in another order
    assert runs["bf16"] != runs["plain"] and runs["bf16"] == pytest.approx(runs["plain"], rel=2e-2)


def _lines(out: Path, **changes: object) -> list[dict[str, float]]:
    train(config(out, steps=2, **changes), families())
    return read_metrics(out)


def test_exported_weights_load_into_a_trunk(tmp_path: Path) -> None:
    c = config(tmp_path, steps=3)
    result = train(c, families())
    assert result.weights is not None
    trunk = EvoformerTrunk(c.model.trunk())
    account = load_weights(trunk, result.weights)
    assert not account.missing and not account.wrong_shape
    average = load_file(tmp_path / "checkpoints/step-00000003.safetensors")
    for name, x in trunk.named_parameters():
        if f"average.trunk.{name}" in average:
            assert torch.equal(x.detach(), average[f"average.trunk.{name}"]), name
    convert(result.weights, tmp_path / "params.npz")  # under AlphaFold 2's names
    again = EvoformerTrunk(c.model.trunk())
    load_weights(again, tmp_path / "params.npz", "alphafold2")
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), trunk.parameters(), strict=True))


def test_every_parameter_that_is_read_is_trained(tmp_path: Path) -> None:
    trainer = Trainer(config(tmp_path), families())
    frozen = [name for name, x in trainer.model.named_parameters() if not x.requires_grad]
    assert frozen == ["trunk.evoformer.single.weight", "trunk.evoformer.single.bias"]
    redraw_(trainer.model, seed=2)
    before = {name: x.detach().clone() for name, x in trainer.model.named_parameters()}
    for _ in range(3):
        trainer._one_step(micro_batches(trainer.samples, [[0], [1], [2], [3]]))
        trainer.step += 1
    same_still = {name for name, x in trainer.model.named_parameters() if torch.equal(x, before[name])}
    nothing_recycled = {f"trunk.recycling.{name}.weight" for name in ("distance", "msa_norm", "pair_norm")}  # zeros times them
    assert same_still == {*frozen, *nothing_recycled}


def test_a_run_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    train(config(tmp_path, steps=2), families())
    with pytest.raises(ConfigError, match="holds an earlier run; go on with --resume"):
        train(config(tmp_path, steps=2), families())
    changed = replace(config(tmp_path, steps=3), optimizer=replace(config(tmp_path).optimizer, lr=0.5))
    with pytest.raises(ConfigError, match=r"another optimizer.lr \(0.01, now 0.5\)"):
        train(changed, families(), resume=True)
    again = train(config(tmp_path, steps=2), families(), resume=True)
    assert again.step == 2 and again.weights is not None  # nothing was left to do


def test_starting_from_a_file_of_weights(tmp_path: Path) -> None:
    first = train(config(tmp_path / "first", steps=2), families())
    c = config(tmp_path / "second", steps=1)
    trainer = Trainer(replace(c, model=replace(c.model, weights=str(first.weights))), families())
    average = load_file(tmp_path / "first/checkpoints/step-00000002.safetensors")
    for name, x in trainer.model.trunk.named_parameters():
        if x.requires_grad:
            assert torch.equal(x, average[f"average.trunk.{name}"]), name


def broken(trainer: Trainer, where: str) -> None:
    dict(trainer.model.named_parameters())[where].data.view(-1)[0] = math.nan


def test_a_loss_that_is_nan_stops_and_says_where(tmp_path: Path) -> None:
    """The first bad tensor is named, the checkpoint before is kept, and going on from it works."""
    c = config(tmp_path, checkpoint_every=2, batch=1)
    trainer = Trainer(c, families())
    where = next(name for name, _ in trainer.model.named_parameters() if name.startswith("trunk.evoformer.blocks.0.msa_transition"))

    def spoil(now: Step) -> None:
        if now.step == 3:
            broken(trainer, where)

    with pytest.raises(TrainingError) as stopped:
        trainer.run(spoil)
    text = str(stopped.value)
    assert "the loss of step 4 is nan" in text and f"the parameter {where}" in text and "1 NaN, 0 infinite" in text
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000002.safetensors"]
    assert train(replace(c, run=replace(c.run, steps=4)), families(), resume=True).step == 4


def test_the_hook_stops_at_the_module(tmp_path: Path) -> None:
    trainer = Trainer(config(tmp_path, watch=True), families())
    broken(trainer, "trunk.msa.weight")
    with pytest.raises(TrainingError, match=r"the parameter trunk.msa.weight, float32 \[8, 49\], is not finite: 1 NaN, 0 infinite"):
        trainer.run()
    with watch_finite(trainer.model, stop=False) as watch, torch.no_grad():
        trainer.model({name: x for name, x in next(micro_batches(trainer.samples, [[0]])).features.items()})
    assert "trunk.msa" in watch.first


def test_a_gradient_that_is_infinite(tmp_path: Path) -> None:
    trainer = Trainer(config(tmp_path), families())
    parameter = trainer.model.masked_msa.logits.bias
    parameter.register_hook(lambda gradient: gradient * math.inf)
    words = r"the norm of the gradient of step 1 is .* the gradient of masked_msa.logits.bias, float32 \[23\]"
    with pytest.raises(TrainingError, match=words):
        trainer.run()


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    trainer = Trainer(config(tmp_path / "run"), families())
    assert trainer.rehearse() > 0 and not (tmp_path / "run").exists()


def test_held_out_families_are_needed_to_validate(tmp_path: Path) -> None:
    c = config(tmp_path)
    trainer = Trainer(replace(c, data=replace(c.data, held_out=())), families())
    with pytest.raises(ConfigError, match="there is no held-out family"):
        trainer.validate()


def test_metrics_of_a_dying_process(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert [line["step"] for line in read_metrics(tmp_path)] == [1]
