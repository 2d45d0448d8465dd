"""From an alignment file to a folder of representations, a report and an account of how they came about."""

from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evoattn.execution import set_execution
from evoattn.io import MSA, make_features, read_msa, select_rows
from evoattn.model import EvoformerTrunk, Representations
from evoattn.primitives import capture_attention
from evoattn.runs.build import build
from evoattn.runs.calls import Sizes, attention_calls
from evoattn.runs.figure import Maps, Report, draw
from evoattn.runs.output import new_folder, refuse_output, write_json, write_tensors
from evoattn.runs.record import call_record, counted, input_record, model_record, rows_record, warnings
from evoattn.runs.settings import RunSettings
from evoattn.runs.watch import OnBlock, Stopwatch, peak_memory, versions


def run(settings: RunSettings, on_block: OnBlock | None = None) -> dict[str, Any]:
    """Run a trunk on an alignment, write the folder `settings.folder`, and return the record that its ``run.json`` holds.

    The folder appears when everything in it is written, or not at all.

    Args:
        settings: what to run.
        on_block: called with (blocks done, blocks in all) as the trunk advances.

    Raises:
        EvoattnError: the input, the weights, the backend or the output folder is refused; nothing is left behind.
    """
    refuse_output(settings.folder, force=settings.force)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    device, watch = settings.torch_device, Stopwatch(settings.torch_device)
    with watch.stage("read alignment"):
        msa = read_msa(settings.input)
    with watch.stage("features"):
        kept = select_rows(msa, settings.max_seqs)
        features = make_features(msa, max_seqs=settings.max_seqs, max_extra=settings.max_extra, dtype=settings.torch_dtype)
    sizes = Sizes(n_seq=kept.n_seq, n_extra=len(features["extra_msa_feat"]), n_res=msa.n_res)
    calls = attention_calls(settings.config, sizes, dtype=settings.torch_dtype, device=device.type, backend=settings.backend)
    with watch.stage("build model"):
        model, weights = build(settings)
        set_execution(model, backend=settings.backend)

    with new_folder(settings.folder, force=settings.force) as folder:
        moved = {name: feature.to(device) for name, feature in features.items()}
        can_draw = find_spec("matplotlib") is not None
        out, maps = forward(model, moved, settings.recycles, watch, on_block, looking=can_draw)
        tensors = _tensors(out, features, msa, settings.save)
        with watch.stage("write"):
            files = [write_tensors(folder, settings.format, tensors, kept.names, msa.query, weights["source"])]
        if maps is not None:
            with watch.stage("draw report"):
                seed = weights.get("seed")
                files.append(draw(folder, Report(msa, kept, out, maps, _title(settings, msa, kept), seed)))
        record = {
            "started": started,
            "versions": versions(),
            "input": input_record(settings, msa),
            "rows": rows_record(msa, sizes, uses_extra=settings.config.extra is not None),
            "model": model_record(settings, model, weights),
            "execution": {
                "dtype": settings.dtype,
                "device": str(device),
                "threads": torch.get_num_threads(),
                "backend": settings.backend,
                "attention": [call_record(call) for call in calls],
            },
            "seconds": {stage: round(seconds, 4) for stage, seconds in watch.seconds.items()},
            "peak_memory_bytes": peak_memory(device),
            "output": {
                "folder": str(settings.folder),
                "files": [*(file.name for file in files), "run.json"],
                "tensors": {name: {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")} for name, x in tensors.items()},
            },
            "warnings": warnings(settings, sizes, weights, tensors, has_report=can_draw),
        }
        write_json(folder / "run.json", record)
    return record


def forward(
    model: EvoformerTrunk, features: dict[str, Tensor], recycles: int, watch: Stopwatch, on_block: OnBlock | None, *, looking: bool
) -> tuple[Representations, Maps | None]:
    """The representations; with `looking` also attention of the last block: of the query's MSA row, and round the middle residue."""
    last = f"evoformer.blocks.{len(model.evoformer.blocks) - 1}"
    middle = features["target_feat"].shape[-2] // 2
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(watch.blocks(model, recycles + 1, on_block))
        if looking:
            row = stack.enter_context(capture_attention(model, layers=[f"{last}.msa_row"]))
            triangle = stack.enter_context(capture_attention(model, layers=[f"{last}.tri_attn_start"], index=middle))
        out = model(features, recycles=recycles)
    if not looking:
        return out, None
    return out, Maps(block=last, row=row[f"{last}.msa_row.attn"], triangle=triangle[f"{last}.tri_attn_start.attn"], node=middle)


def _tensors(out: Representations, features: dict[str, Tensor], msa: MSA, save: tuple[str, ...]) -> dict[str, Tensor]:
    """What is written: the representations asked for, and what is needed to read them."""
    lengths = msa.chain_lengths or (msa.n_res,)
    return {name: getattr(out, name) for name in save} | {
        "aatype": torch.from_numpy(msa.residues[0].copy()),
        "residue_index": features["residue_index"],
        "chain_id": torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        "msa_mask": features["msa_mask"],
    }


def _title(settings: RunSettings, msa: MSA, kept: MSA) -> str:
    name = msa.names[0] if len(msa.names[0]) <= 40 else msa.names[0][:37] + "..."
    rows = f"{kept.n_seq:,} of {msa.n_seq:,} rows" if kept.n_seq < msa.n_seq else counted(msa.n_seq, "row")
    return f"{settings.input.name}, query {name}: {rows} × {msa.n_res} residues, {settings.config.evoformer.n_blocks} Evoformer blocks"
