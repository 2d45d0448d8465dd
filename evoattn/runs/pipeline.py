"""From an alignment file to a folder of representations, a report and an account of how they came about."""

from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evoattn.execution import set_execution
from evoattn.io import MSA, FeatureDraw, draw_features, expand_copies, make_features, write_msa
from evoattn.io.search import OnProgress
from evoattn.model import EvoformerTrunk, Recycled, Representations
from evoattn.primitives import capture_attention
from evoattn.runs.build import build
from evoattn.runs.calls import Sizes, attention_calls
from evoattn.runs.figure import Maps, Report, draw, draw_contacts
from evoattn.runs.heads import read_heads
from evoattn.runs.inputs import read_input
from evoattn.runs.memory import plan_record, plan_run
from evoattn.runs.msa_transformer import run_msa_transformer
from evoattn.runs.output import new_folder, refuse_output, write_json, write_tensors
from evoattn.runs.presets import MSA_TRANSFORMERS
from evoattn.runs.record import counted, model_record, rows_record, run_record, warnings
from evoattn.runs.settings import REPRESENTATIONS, RunSettings
from evoattn.runs.watch import Added, OnBlock, Stopwatch


def run(settings: RunSettings, on_block: OnBlock | None = None, on_search: OnProgress | None = None) -> dict[str, Any]:
    """Run a trunk on an alignment, write the folder `settings.folder`, and return the record that its ``run.json`` holds.

    The folder appears when everything in it is written, or not at all.

    Args:
        settings: what to run.
        on_block: called with (blocks done, blocks in all) as the trunk advances.
        on_search: called with (done, in all) as a database is searched; the unit is a byte of it.

    Raises:
        EvoattnError: the input, the weights, the backend or the output folder is refused; nothing is left behind.
        MemoryLimitError: the run cannot keep its memory budget, by default the memory that is free; nothing was computed.
    """
    refuse_output(settings.folder, force=settings.force)
    if settings.preset_name in MSA_TRANSFORMERS:
        return run_msa_transformer(settings, on_block, on_search)
    device, watch = settings.torch_device, Stopwatch(settings.torch_device)
    with watch.stage("read alignment" if settings.database is None else "search database"):
        found = read_input(settings, on_search)
    msa = expand_copies(found) if settings.feature_config.copies == "all" else found
    with watch.stage("features"):
        made = Features(msa, settings)
    planned = plan_run(settings, made.sizes)
    calls = attention_calls(settings.config, made.sizes, dtype=settings.attention_dtype, device=device.type, backend=settings.backend)
    with watch.stage("build model"):
        model, weights = build(settings)
        heads = read_heads(settings)
        weights |= {} if settings.weights is None else {"heads": heads.names}
        set_execution(model, planned.execution)

    with new_folder(settings.folder, force=settings.force) as folder:
        can_draw = find_spec("matplotlib") is not None
        with Added(device) as added:
            out, maps = forward(model, made, watch, on_block, looking=can_draw)
        tensors = _tensors(out, made, settings.save) | heads.outputs(out)
        files = [folder / "alignment.a3m"] if settings.database else []
        with watch.stage("write"):
            if settings.database:
                write_msa(found, files[0])
            files.append(write_tensors(folder, settings.format, tensors, made.kept.names, msa.query, weights["source"]))
        if maps is not None:
            with watch.stage("draw report"):
                seed = weights.get("seed")
                title = _title(settings, msa, made.kept)
                files.append(draw(folder, Report(msa, made.kept, out, maps, title, seed)))
                if "contacts" in tensors:
                    files.append(draw_contacts(folder, tensors["contacts"], title))
        record = run_record(
            settings, found, watch, calls, files, tensors,
            rows=rows_record(msa, made.draw, settings),
            memory=plan_record(planned, added.peak),
            features={"preset": settings.features_name, **asdict(settings.feature_config)},
            model=model_record(settings, settings.config, model, weights),
            notes=warnings(settings, msa, made.sizes, weights, tensors, has_report=can_draw),
        )  # fmt: skip
        write_json(folder / "run.json", record)
    return record


class Features:
    """The features of each pass: drawn anew where they are drawn, else made once; and what the last pass was given."""

    def __init__(self, msa: MSA, settings: RunSettings) -> None:
        self.msa, self.passes = msa, settings.recycles + 1
        self.config, self.seed, self.dtype = settings.feature_config, settings.seed, settings.torch_dtype
        self.drawn = self.config.sampling == "random" or self.config.masking is not None
        self.draw = self._draw(settings.recycles)
        self.kept = msa.take(self.draw.centres, reason="no row of the MSA representation")
        self.sizes = Sizes(n_seq=len(self.draw.centres), n_extra=len(self.draw.extra), n_res=msa.n_res)
        self._made: tuple[int, dict[str, Tensor]] | None = None

    def _draw(self, recycle: int) -> FeatureDraw:
        return draw_features(self.msa, self.config, seed=self.seed, recycle=recycle)

    def of(self, recycle: int) -> dict[str, Tensor]:
        """The features of one pass, counted from 0."""
        if self._made is None or (self.drawn and self._made[0] != recycle):
            draw = self.draw if not self.drawn or recycle == self.passes - 1 else self._draw(recycle)
            self._made = recycle, make_features(self.msa, self.config, draw=draw, dtype=self.dtype)
        return self._made[1]


def forward(
    model: EvoformerTrunk, made: Features, watch: Stopwatch, on_block: OnBlock | None, *, looking: bool
) -> tuple[Representations, Maps | None]:
    """The representations; with `looking` also attention of the last block: of the query's MSA row, and round the middle residue."""
    last = f"evoformer.blocks.{len(model.evoformer.blocks) - 1}"
    middle, device = made.msa.n_res // 2, next(model.parameters()).device
    previous: Recycled | None = None
    for recycle in range(made.passes):
        with watch.stage("features"):
            features = {name: feature.to(device) for name, feature in made.of(recycle).items()}
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(watch.blocks(model, made.passes, on_block, earlier=recycle))
            if looking and recycle == made.passes - 1:
                row = stack.enter_context(capture_attention(model, layers=[f"{last}.msa_row"]))
                triangle = stack.enter_context(capture_attention(model, layers=[f"{last}.tri_attn_start"], index=middle))
            out = model.run_(features, previous=previous)
            if recycle < made.passes - 1:
                previous = Recycled(out.msa[0].clone(), out.pair)
                del out  # its MSA representation would stand beside that of the next pass
    if not looking:
        return out, None
    return out, Maps(block=last, row=row[f"{last}.msa_row.attn"], triangle=triangle[f"{last}.tri_attn_start.attn"], node=middle)


def _tensors(out: Representations, made: Features, save: tuple[str, ...]) -> dict[str, Tensor]:
    """What is written: the representations asked for, and what is needed to read them."""
    msa, features = made.msa, made.of(made.passes - 1)
    lengths = msa.chain_lengths or (msa.n_res,)
    return {name: getattr(out, name) for name in save if name in REPRESENTATIONS} | {
        "aatype": torch.from_numpy(msa.residues[0].copy()),
        "residue_index": features["residue_index"],
        "chain_id": torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        "msa_mask": features["msa_mask"],
    }


def _title(settings: RunSettings, msa: MSA, kept: MSA) -> str:
    name = msa.names[0] if len(msa.names[0]) <= 40 else msa.names[0][:37] + "..."
    rows = f"{kept.n_seq:,} of {msa.n_seq:,} rows" if kept.n_seq < msa.n_seq else counted(msa.n_seq, "row")
    files = " + ".join(path.name for path in settings.inputs)
    return f"{files}, query {name}: {rows} × {msa.n_res} residues, {settings.config.evoformer.n_blocks} Evoformer blocks"
