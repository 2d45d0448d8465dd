"""Calling the commands from tests, and what a run must equal."""

import json
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner, Result

from evoattn import EvoformerTrunk, make_features, preset, read_msa
from evoattn.cli import app
from evoattn.primitives import redraw_

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
GLOBINS = DATA / "globins4.a3m"
FAMILY = Path("../family.a3m")
"""4 rows x 14 columns, beside the folder in which a test runs."""

FAMILY_TEXT = """>query of a small family
MKVAWCDEFGHIKL
>second
MKV-WCDeeEFGHIKL
>third
MRVAWCD-FGHIKM
>fourth
-RVAWBDEFGHI--
"""


def evoattn(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="evoattn", terminal_width=200)


def run(input: Path, *options: object) -> dict[str, Any]:
    """A run that must succeed, on the tiny trunk; its record."""
    result = evoattn("run", input, "--preset", "tiny", "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def there(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def by_hand(input: Path, *, seed: int, max_seqs: int, max_extra: int = 1024, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The representations that the library gives, without the command."""
    model = redraw_(EvoformerTrunk(preset("tiny")), seed).eval().to(dtype)
    with torch.no_grad():
        return vars(model(make_features(read_msa(input), max_seqs=max_seqs, max_extra=max_extra, dtype=dtype)))
