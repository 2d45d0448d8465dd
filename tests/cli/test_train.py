"""`evoattn train`."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from evoattn import EvoformerTrunk, load_weights
from evoattn.train.config import read_config
from tests.cli.commands import evoattn
from tests.train.families import TINY

CONFIG = f"""
out = "out"
[data]
families = "families"
held_out = ["other"]
crop = 8
max_seqs = 3
max_extra = 2
[model]
evoformer = {{ {", ".join(f"{name} = {value}" for name, value in TINY.items())} }}
extra = {{ {", ".join(f"{name} = {value}" for name, value in TINY.items())} }}
[run]
steps = 4
batch = 2
checkpoint_every = 2
validate_every = 4
validate_samples = 1
engine = "plain"
"""


@pytest.fixture(autouse=True)
def family_folder(work: Path) -> None:
    """Two families, of one alignment each, and the settings of a small run."""
    (work / "families").mkdir()
    for name, letter in (("one", "M"), ("other", "L")):
        text = (work.parent / "family.a3m").read_text().replace("MKV", f"{letter}KV")
        (work / "families" / f"{name}.a3m").write_text(text)
    (work / "small.toml").write_text(CONFIG)


def test_init_writes_a_file_that_is_read(work: Path) -> None:
    assert evoattn("train", "--init", "new.toml").exit_code == 0
    assert read_config("new.toml").run.steps == 1000
    again = evoattn("train", "--init", "new.toml")
    assert again.exit_code == 1 and "new.toml exists, and is left as it is" in again.stderr


def test_dry_run_tells_what_it_takes(work: Path) -> None:
    told = evoattn("train", "small.toml", "--dry-run")
    assert told.exit_code == 0, told.stderr
    assert "one: MSA(4 rows x 14 columns" in told.stdout
    assert "1 alignments of 1 families, 0 with a structure" in told.stdout and "min for 4 steps" in told.stdout
    assert not (work / "out").exists()
    plain = json.loads(evoattn("train", "small.toml", "--dry-run", "--json").stdout)
    assert plain["steps"] == 4 and plain["parameters"] > 1000 and plain["seconds"] > 0
    assert plain["peak_bytes"] > plain["estimated_bytes"] > 10**5


def test_train_then_resume(work: Path) -> None:
    done = evoattn("train", "small.toml")
    assert done.exit_code == 0, done.stderr
    assert "step 4 of 4: loss" in done.stderr and "tokens/s" in done.stderr
    assert "4 steps: out" in done.stdout and "held-out families: loss" in done.stdout
    account = load_weights(EvoformerTrunk(read_config("small.toml").model.trunk()), "out/weights.safetensors")
    assert not account.missing
    before = load_file("out/weights.safetensors")
    refused = evoattn("train", "small.toml")
    assert refused.exit_code == 1 and "out holds an earlier run" in refused.stderr
    (work / "small.toml").write_text(CONFIG.replace("steps = 4", "steps = 5"))
    more = evoattn("train", "small.toml", "--resume", "--json")
    assert more.exit_code == 0, more.stderr
    assert json.loads(more.stdout)["step"] == 5 and "going on after step 4" in more.stderr
    assert any((x != before[name]).any() for name, x in load_file("out/weights.safetensors").items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[data]", "[date]"), "unknown date"),
        (('"families"', '"absent"'), "there is no folder absent"),
        (('["other"]', '["third"]'), "held_out has 'third', which is no family; there are one, other"),
        (("plain", "fast"), "engine is 'fast'; allowed are"),
    ],
)
def test_what_is_refused_in_words(change: tuple[str, str], words: str, work: Path) -> None:
    (work / "small.toml").write_text(CONFIG.replace(*change))
    refused = evoattn("train", "small.toml")
    assert refused.exit_code == 1 and words in refused.stderr and "Traceback" not in refused.stderr
    assert not (work / "out").exists()


def test_no_config(work: Path) -> None:
    refused = evoattn("train", "absent.toml")
    assert refused.exit_code == 1 and "`evoattn train --init absent.toml` writes one" in refused.stderr
