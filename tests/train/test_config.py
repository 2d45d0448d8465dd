"""The settings of a run, from a file and in Python, and the optimiser's schedule."""

from pathlib import Path

import pytest
import torch

from evoattn.errors import ConfigError
from evoattn.train.config import DataConfig, ModelConfig, OptimizerConfig, RunConfig, TrainConfig, read_config
from evoattn.train.optimizer import AveragingAdamW, learning_rate, set_schedule
from evoattn.train.template import TEMPLATE
from tests.train.families import config


def test_the_template_has_every_setting_at_its_default(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(TEMPLATE)
    read = read_config(path)
    expected = TrainConfig(out=tmp_path / "run", data=DataConfig(families=tmp_path / "families"))
    assert read == expected
    for table in ("data", "model", "loss", "optimizer", "run"):
        for name in vars(getattr(expected, table)):
            assert f"\n{name} = " in TEMPLATE, name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("steps = 3", "unknown steps; there are out, data, model, loss, optimizer, run"),
        ("[run]\nstep = 3", "unknown run.step; there are run.steps, run.batch"),
        ("[run]\nsteps = 2.5", "run.steps is 2.5; it must be a whole number"),
        ("[run]\nsteps = true", "run.steps is True; it must be a whole number"),
        ("[run]\nsteps = 0", "steps is 0; it must be an integer of at least 1"),
        ("[run]\nbatch = 3\nmicro_batch = 2", "batch is 3, micro_batch 2; the first is a multiple of the second"),
        ("[run]\nzero = 4", "zero is 4; DeepSpeed has ZeRO stages 0 to 3"),
        ("[run]\nprecision = 'fp16'", "precision is 'fp16'; allowed are 'fp32', 'bf16'"),
        ("[optimizer]\nlr = 'fast'", "optimizer.lr is 'fast'; it must be a number"),
        ("[optimizer]\nlr = -1", "lr is -1.0; it must be a number of at least 0"),
        ("[optimizer]\nclip = 0", "clip is 0.0; it must be positive"),
        ("[optimizer]\nbeta1 = 1", "beta1 is 1.0; it must be below 1"),
        ("[data]\nheld_out = 'one'", 'data.held_out is \'one\'; it is a list of names, ["one", "two"]'),
        ("[data]\nmask = 1.5", "MSAMasking: fraction is 1.5"),
        ("data = 3", "data is 3; it is a table of settings"),
        ("[model]\npreset = 'af4'", "there is no preset 'af4'"),
        ("[model]\nevoformer = { c_q = 3 }", "evoformer has no 'c_q'"),
        ("[model]\nextra_stack = false\nextra = { c_m = 8 }", "extra changes a stack that this model has not"),
        ("[model]\nbins = 'af4'", "bins is 'af4'; allowed are 'alphafold2', 'boltz'"),
        ("[model", "is no TOML"),
    ],
)
def test_what_a_file_may_not_say(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_config(path)
    assert str(path) in str(refused.value) and words in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evoattn train --init"):
        read_config(tmp_path / "absent.toml")


def test_published_schedule() -> None:
    """Linear over 1000 steps to 1e-3, and 0.95 of it after 50,000 (6.4 million samples of 128)."""
    c = OptimizerConfig.alphafold2()
    rates = {step: learning_rate(c, step) for step in (0, 499, 999, 1000, 49_999, 50_000)}
    assert rates == pytest.approx({0: 1e-6, 499: 5e-4, 999: 1e-3, 1000: 1e-3, 49_999: 1e-3, 50_000: 0.95e-3})
    assert (c.beta1, c.beta2, c.eps, c.clip, c.average_decay) == (0.9, 0.999, 1e-6, 0.1, 0.999)


def test_average_beside_adamw() -> None:
    """Parameters are those of torch's AdamW; the average starts at the first update and follows by hand."""
    c = OptimizerConfig(lr=0.1, warmup_steps=0, weight_decay=0.01, average_decay=0.5)
    ours, theirs = torch.nn.Parameter(torch.tensor([1.0, -2.0])), torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = AveragingAdamW([ours], c)
    reference = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01)
    average = None
    for step in range(4):
        set_schedule(optimizer.param_groups, c, step)
        for x, one in ((ours, optimizer), (theirs, reference)):
            one.zero_grad()
            (x**2).sum().backward()
            one.step()
        decay = min(0.5, (1 + step) / (10 + step))
        now = theirs.detach().clone()
        average = now if average is None else decay * average + (1 - decay) * now
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(optimizer.state[ours]["average"], average)


def test_what_a_continued_run_must_have_in_common(tmp_path: Path) -> None:
    """Everything that changes numbers, and nothing else."""
    base = config(tmp_path).deciding()
    assert config(tmp_path / "elsewhere", steps=99, engine="deepspeed", zero=3, workers=2, keep=1, recompute="both").deciding() == base
    assert config(tmp_path, micro_batch=2).deciding() != base and config(tmp_path, precision="bf16").deciding() != base


def test_model_of_a_config() -> None:
    trunk = ModelConfig(evoformer={"n_blocks": 5}, extra_stack=False).trunk()
    assert trunk.evoformer.n_blocks == 5 and trunk.extra is None
    assert RunConfig().engine == "auto"
