"""The parts of ``run.json``: plain values that say what was read, built, chosen and noticed."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from evoattn.config import MSATransformerConfig, TrunkConfig
from evoattn.io import MSA, FeatureDraw
from evoattn.io.filters import first_occurrences
from evoattn.runs.calls import Call, Sizes
from evoattn.runs.settings import RunSettings
from evoattn.runs.watch import Stopwatch, peak_memory, versions

NO_REPORT: Final = "report.png was not drawn, since matplotlib is not installed: pip install 'evoattn[viz]' brings it."


def settings_record(settings: RunSettings) -> dict[str, Any]:
    """All that decides the results; the files themselves stand under "input", the memory budget under "memory"."""
    plain = {name: value for name, value in vars(settings).items() if name not in {"input", "chains", "out", "force", "memory_budget"}}
    plain |= {name: str(value) for name, value in plain.items() if isinstance(value, Path)}
    return plain | {"save": list(settings.save)}


def files_record(settings: RunSettings) -> list[dict[str, str]]:
    return [{"path": str(path), "sha256": file_sha256(path)} for path in settings.inputs]


def input_record(settings: RunSettings, msa: MSA) -> dict[str, Any]:
    return {
        "files": files_record(settings),
        "database": None if settings.database is None else str(settings.database),
        "format": msa.format,
        "rows": msa.n_seq,
        "columns": msa.n_res,
        "query": {"name": msa.names[0], "letters": msa.query},
        "chain_lengths": list(msa.chain_lengths),
        "chain_copies": list(msa.chain_copies),
        "account": asdict(msa.account),
    }


def run_record(
    settings: RunSettings, msa: MSA, watch: Stopwatch, calls: list[Call], files: list[Path], tensors: dict[str, Tensor], *,
    notes: list[str], **parts: Any,
) -> dict[str, Any]:  # fmt: skip
    """The whole of ``run.json``; `parts` are those that each kind of model has its own of: "rows", "features", "model"."""
    return {
        "started": watch.started,
        "versions": versions(),
        "settings": settings_record(settings),
        "input": input_record(settings, msa),
        **parts,
        "execution": {
            "dtype": settings.dtype,
            "device": str(watch.device),
            "threads": torch.get_num_threads(),
            "backend": settings.backend,
            "attention": [call_record(call) for call in calls],
        },
        "seconds": {stage: round(seconds, 4) for stage, seconds in watch.seconds.items()},
        "peak_memory_bytes": peak_memory(watch.device),
        "output": {
            "folder": str(settings.folder),
            "files": [*(file.name for file in files), "run.json"],
            "tensors": {name: {"shape": list(x.shape), "dtype": str(x.dtype).removeprefix("torch.")} for name, x in tensors.items()},
        },
        "warnings": notes,
    }


def rows_record(msa: MSA, draw: FeatureDraw, settings: RunSettings) -> dict[str, Any]:
    """What becomes of the rows: kept in the MSA representation, fed to the extra-MSA stack, counted in profiles alone, or left out."""
    features = settings.feature_config
    kept, extra = len(draw.centres), len(draw.extra) if settings.config.extra is not None else 0
    repeats = int((~first_occurrences(msa.residues)).sum()) if features.drop_repeats else 0
    rest = msa.n_seq - repeats - kept - extra
    if kept == msa.n_seq:
        rule = "all rows are kept"
    elif features.sampling == "first":
        rule = f"kept are the query and the {counted(kept - 1, 'row')} after it in file order (search tools write the best hits first)"
        rule += f"; to the extra-MSA stack: the {counted(extra, 'row')} after those" if extra else ""
    else:
        anew = ", anew for each pass" if settings.recycles else ""
        rule = f"kept are the query and {counted(kept - 1, 'row')} drawn at random (seed {settings.seed}{anew})"
        rule += f"; to the extra-MSA stack: {counted(extra, 'row')} of the others, drawn too" if extra else ""
    rule += f"; only in the profiles of the kept rows: the last {counted(rest, 'row')}" if rest else ""
    rule += f"; left out as repeats of an earlier row: {repeats:,}" if repeats else ""
    if features.masking is not None:
        rule += f"; {100 * features.masking.fraction:.0f} % of the cells of the kept rows are hidden, the query's too"
    return {"kept": kept, "extra": extra, "profile_only": rest, "repeats": repeats, "rule": rule}


def model_record(
    settings: RunSettings, config: TrunkConfig | MSATransformerConfig, model: nn.Module, weights: dict[str, Any]
) -> dict[str, Any]:
    return {
        "preset": settings.preset_name,
        "config": asdict(config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": weights,
        "recycles": settings.recycles,
    }


def call_record(call: Call) -> dict[str, Any]:
    return {
        "stack": call.stack,
        "kind": call.kind,
        "call": str(call.explanation.spec),
        "backend": call.backend,
        "reasons_against": call.explanation.reasons,
    }


def warnings(
    settings: RunSettings, msa: MSA, sizes: Sizes, weights: dict[str, Any], tensors: dict[str, Tensor], *, has_report: bool
) -> list[str]:
    """What a reader of the results should know."""
    found = list(weights.get("warnings", []))
    if "contacts" in settings.save and settings.weights is not None and "contacts" not in tensors:
        found.append("no contacts are written: the parameter file has no distogram head.")
    if max(msa.chain_copies, default=1) > 1:
        copies = ", ".join(map(str, msa.chain_copies))
        found.append(
            f"the alignment says how often each chain occurs ({copies}), and the features {settings.features_name!r} have columns for one "
            "copy of each; --features af2_model_1 has them for all."
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and (bad := int((~torch.isfinite(tensor)).sum())):
            hint = "; float16 ends at 65504: try --dtype bf16" if settings.dtype == "fp16" else ""
            found.append(f"{name} has {bad:,} values that are NaN or infinite{hint}.")
    if sizes.n_seq == 1:
        found.append("one row is run: the query, without relatives to learn from.")
    if sizes.n_extra == 0 and settings.config.extra is not None:
        found.append(
            "no rows are left for the extra-MSA stack; as in AlphaFold 2 its outer product mean then is its bias / 0.001 for every pair, "
            "so the pair representation is large and even, the more so with random parameters."
        )
    if settings.recycles:
        found.append("recycling passes on the first MSA row and the pair representation; AlphaFold 2 also has coordinates to pass on.")
    if settings.format == "npz" and settings.dtype == "bf16":
        found.append("numpy has no bfloat16: the representations in the npz are float32, with the same values.")
    return found if has_report else [*found, NO_REPORT]


def counted(n: int, noun: str) -> str:
    """A number with its noun, such as "1 row" and "1,024 rows"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
