"""What a run leaves behind while it runs: metrics as JSON lines, TensorBoard events, a picture of the loss."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evoattn.errors import TrainingError
from evoattn.files import new_file

Metrics = Mapping[str, float]


class RunLog:
    """Writes ``metrics.jsonl``, one line per step, and ``tensorboard/`` where the package is installed; of one process only.

    Args:
        folder: of the run. step: the run goes on after so many; lines of later steps, which a run that died had written, are dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / "metrics.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_metrics(folder) if line["step"] <= step]
        with new_file(self.path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self.file = self.path.open("a", encoding="utf-8")
        self.board = _board(folder / "tensorboard", step)

    def write(self, step: int, metrics: Metrics) -> None:
        """Raises TrainingError if the disk is full."""
        try:
            self.file.write(json.dumps({"step": step, **metrics}) + "\n")
            self.file.flush()
        except OSError as error:
            raise TrainingError(f"{self.path} cannot be written ({error}). Make room, then go on with --resume.") from error
        if self.board is not None:
            for name, value in metrics.items():
                self.board.add_scalar(name, value, step)

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` in the folder of a run; a last line that a dying process left half-written is passed over."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def draw_loss(folder: Path) -> Path | None:
    """Draw the losses of ``metrics.jsonl`` as ``loss.png``; None where matplotlib (the extra ``viz``) is not installed."""
    lines = read_metrics(folder)
    if find_spec("matplotlib") is None or not lines:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    lines_drawn: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("loss", "training", {"color": "#0072B2", "alpha": 0.35, "linewidth": 1}),
        ("held_out_loss", "held-out families, averaged parameters", {"color": "#D55E00", "marker": "o", "markersize": 3}),
    )
    for name, label, style in lines_drawn:
        points = [(line["step"], line[name]) for line in lines if name in line]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    smooth = _smoothed([line["loss"] for line in lines if "loss" in line])
    axes.plot([line["step"] for line in lines if "loss" in line], smooth, color="#0072B2", label="training, smoothed")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats, weighted)")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / "loss.png"
    with new_file(path) as temporary:
        figure.savefig(temporary, dpi=120)
    return path


def _smoothed(values: list[float]) -> list[float]:
    """Exponential mean over about 20 steps, unbiased at the start."""
    mean, weight, out = 0.0, 0.0, []
    for value in values:
        mean, weight = 0.95 * mean + 0.05 * value, 0.95 * weight + 0.05
        out.append(mean / weight)
    return out


def _board(folder: Path, step: int) -> Any:
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1)
