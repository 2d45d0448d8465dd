"""From an alignment file to the representation and the contacts of the MSA Transformer, with the same folder and account as a trunk's."""

from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from evoattn.errors import WeightsError
from evoattn.execution import set_execution
from evoattn.io import MSA, select_rows, write_msa
from evoattn.io.esm_tokens import esm_tokens
from evoattn.io.search import OnProgress
from evoattn.primitives import redraw_
from evoattn.runs.calls import Sizes, attention_calls
from evoattn.runs.figure import draw_contacts
from evoattn.runs.inputs import read_input
from evoattn.runs.memory import refuse_msa_transformer
from evoattn.runs.output import new_folder, write_json, write_tensors
from evoattn.runs.presets import MSA_TRANSFORMERS
from evoattn.runs.record import NO_REPORT, counted, file_sha256, model_record, run_record
from evoattn.runs.settings import RunSettings
from evoattn.runs.watch import OnBlock, Stopwatch
from evoattn.stacks.msa_transformer import MSATransformer, MSATransformerOutput
from evoattn.weights import load_weights
from evoattn.weights.sources import open_source

HEAD = "contact_head."


def run_msa_transformer(settings: RunSettings, on_block: OnBlock | None, on_search: OnProgress | None) -> dict[str, Any]:
    """As :func:`evoattn.runs.run`, which calls it, for the preset "msa_transformer"."""
    config, device, watch = MSA_TRANSFORMERS[settings.preset_name], settings.torch_device, Stopwatch(settings.torch_device)
    with watch.stage("read alignment" if settings.database is None else "search database"):
        msa = read_input(settings, on_search)
        kept = select_rows(msa, settings.feature_config.max_seqs)
    sizes = Sizes(n_seq=kept.n_seq, n_extra=0, n_res=kept.n_res)
    refuse_msa_transformer(config, sizes, settings.torch_dtype, device)
    calls = attention_calls(config, sizes, dtype=settings.attention_dtype, device=device.type, backend=settings.backend)
    with watch.stage("build model"):
        model, weights = build(settings)
        set_execution(model, backend=settings.backend, dtype=settings.products)
    with new_folder(settings.folder, force=settings.force) as folder:
        with watch.stage("MSA Transformer"):
            out = forward(model, esm_tokens(kept, None).to(device), on_block, contacts="contact_head" in weights.get("heads", ()))
        tensors = _tensors(out, kept, settings.save)
        files = [folder / "alignment.a3m"] if settings.database else []
        with watch.stage("write"):
            if settings.database:
                write_msa(msa, files[0])
            files.append(write_tensors(folder, settings.format, tensors, kept.names, msa.query, weights["source"]))
        can_draw = find_spec("matplotlib") is not None
        if "contacts" in tensors and can_draw:
            title = f"{settings.input.name}: {counted(kept.n_seq, 'row')} of {msa.n_seq:,}, the MSA Transformer"
            files.append(draw_contacts(folder, tensors["contacts"], title))
        record = run_record(
            settings, msa, watch, calls, files, tensors,
            rows={"kept": kept.n_seq, "rule": _rule(msa, kept)},
            model=model_record(settings, config, model, weights),
            notes=_warnings(settings, tensors, can_draw),
        )  # fmt: skip
        write_json(folder / "run.json", record)
    return record


def build(settings: RunSettings) -> tuple[MSATransformer, dict[str, Any]]:
    """The model, ready to run, and the record of its parameters' source."""
    model = MSATransformer(MSA_TRANSFORMERS[settings.preset_name])
    if settings.weights is None:
        redraw_(model, settings.seed)
        source: dict[str, Any] = {"source": "random", "seed": settings.seed}
    else:
        source = load(model, settings)
    return model.eval().to(device=settings.torch_device, dtype=settings.torch_dtype), source


def load(model: MSATransformer, settings: RunSettings) -> dict[str, Any]:
    """Load the encoder's file, and the contact head's in whichever order they are given; or the one file that has both.

    Raises:
        WeightsError: a file does not fit, no file has the encoder, or both files have one part.
    """
    parts: dict[str, nn.Module] = {"encoder": model.encoder, "contact_head": model.contact_head}
    used: dict[str, int] = {}
    paths = [path for path in (settings.weights, settings.contact_weights) if path is not None]
    for path in paths:
        source = open_source(path)
        there = {"contact_head" if name.startswith(HEAD) else "encoder" for name in source.shapes}
        for part in sorted(there):
            if part in used:
                raise WeightsError(f"both files of parameters have the {part.replace('_', ' ')}; give each part once. Nothing was run.")
            used[part] = len(load_weights(parts[part], source).used)
    if "encoder" not in used:
        raise WeightsError(
            f"{paths[0]} has the contact head alone; give the encoder's file (esm_msa1b_t12_100M_UR50S.pt) with --weights too."
        )
    return {
        "source": " + ".join(map(str, paths)),
        "sha256": {str(path): file_sha256(path) for path in paths},
        "account": {"used": sum(used.values()), "unexpected": 0, "outside": 0},
        "heads": [part for part in used if part != "encoder"],
    }


@torch.inference_mode()
def forward(model: MSATransformer, tokens: Tensor, on_block: OnBlock | None, *, contacts: bool) -> MSATransformerOutput:
    done, total = 0, len(model.encoder.blocks)

    def ended(*_: Any) -> None:
        nonlocal done
        done += 1
        if on_block:
            on_block(done, total)

    with ExitStack() as stack:
        for block in model.encoder.blocks:
            stack.callback(block.register_forward_hook(ended).remove)
        return model(tokens, contacts=contacts)


def _tensors(out: MSATransformerOutput, kept: MSA, save: tuple[str, ...]) -> dict[str, Tensor]:
    """Of residues: the first token of each row is left out."""
    tensors = {"msa": out.msa[:, 1:]} if "msa" in save else {}
    if "contacts" in save and out.contacts is not None:
        tensors["contacts"] = out.contacts.to(torch.promote_types(out.contacts.dtype, torch.float32))
    return tensors | {"aatype": torch.from_numpy(kept.residues[0].copy()), "residue_index": torch.arange(kept.n_res)}


def _rule(msa: MSA, kept: MSA) -> str:
    if kept.n_seq == msa.n_seq:
        return "all rows are kept"
    return f"kept are the query and the {counted(kept.n_seq - 1, 'row')} after it in file order; the others are left out"


def _warnings(settings: RunSettings, tensors: dict[str, Tensor], can_draw: bool) -> list[str]:
    found = []
    if "contacts" in settings.save and settings.weights is not None and "contacts" not in tensors:
        found.append(
            "no contacts are written: the contact head has a file of its own (*-contact-regression.pt); give it with a second --weights."
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and (bad := int((~torch.isfinite(tensor)).sum())):
            found.append(f"{name} has {bad:,} values that are NaN or infinite.")
    return found if can_draw or "contacts" not in tensors else [*found, NO_REPORT.replace("report.png", "contacts.png")]
