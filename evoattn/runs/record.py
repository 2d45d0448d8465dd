"""The parts of ``run.json``: plain values that say what was read, built, chosen and noticed."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from evoattn.io import MSA
from evoattn.runs.calls import Call, Sizes
from evoattn.runs.settings import RunSettings

NO_REPORT: Final = "report.png was not drawn, since matplotlib is not installed: pip install 'evoattn[viz]' brings it."


def input_record(settings: RunSettings, msa: MSA) -> dict[str, Any]:
    return {
        "path": str(settings.input),
        "sha256": file_sha256(settings.input),
        "format": msa.format,
        "rows": msa.n_seq,
        "columns": msa.n_res,
        "query": {"name": msa.names[0], "letters": msa.query},
        "chain_lengths": list(msa.chain_lengths),
        "account": asdict(msa.account),
    }


def rows_record(msa: MSA, sizes: Sizes, *, uses_extra: bool) -> dict[str, Any]:
    """What becomes of the rows: kept in the MSA representation, fed to the extra-MSA stack, or counted in profiles alone."""
    kept, extra = sizes.n_seq, sizes.n_extra if uses_extra else 0
    rest = msa.n_seq - kept - extra
    if kept == msa.n_seq:
        rule = "all rows are kept"
    else:
        rule = f"kept are the query and the next {counted(kept - 1, 'row')} in file order (search tools write the best hits first)"
        rule += f"; {counted(extra, 'row')} after them go to the extra-MSA stack" if extra else ""
        rule += f"; the last {rest:,} count only in the profiles of the kept rows" if rest else ""
    return {"kept": kept, "extra": extra, "profile_only": rest, "rule": rule}


def model_record(settings: RunSettings, model: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
    return {
        "preset": settings.preset_name,
        "config": asdict(settings.config),
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


def warnings(settings: RunSettings, sizes: Sizes, weights: dict[str, Any], tensors: dict[str, Tensor], *, has_report: bool) -> list[str]:
    """What a reader of the results should know."""
    found = list(weights.get("warnings", []))
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
