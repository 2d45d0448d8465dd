"""A run in words."""

from textwrap import wrap
from typing import Any, Final

from evoattn.runs.record import counted
from evoattn.units import show_bytes

WIDTH: Final = 120
INDENT: Final = 12


def summary(record: dict[str, Any]) -> str:
    """What a person wants to know of a run, from its record (see :func:`evoattn.runs.run`)."""
    sections = [
        ("Input", _input(record["input"])),
        ("Rows", [f"{record['rows']['kept']:,} of {record['input']['rows']:,}: {record['rows']['rule']}."]),
        ("Model", _model(record["model"], record["execution"])),
        ("Parameters", _parameters(record["model"])),
        *([("Attention", _attention(record["execution"]))] if record["execution"]["attention"] else []),
        ("Time", _time(record["seconds"])),
        ("Memory", _memory(record["peak_memory_bytes"], record.get("memory"))),
        ("Written", _written(record["output"])),
    ]
    if record["warnings"]:
        sections.append(("Notes", record["warnings"]))
    return "\n".join(section(title, lines) for title, lines in sections)


def section(title: str, lines: list[str]) -> str:
    """A title and its lines beside it, wrapped."""
    wrapped = [piece for line in lines for piece in wrap(line, WIDTH - INDENT, break_on_hyphens=False, break_long_words=False)]
    return f"{title:<{INDENT}}" + ("\n" + " " * INDENT).join(wrapped)


def _input(source: dict[str, Any]) -> list[str]:
    size = f"{counted(source['rows'], 'row')} x {counted(source['columns'], 'column')}"
    paths = " + ".join(file["path"] for file in source["files"])
    lines = [f"{paths} ({source['format']}): {size}, query {source['query']['name']!r}"]
    if source["chain_lengths"]:
        chains = zip(source["chain_lengths"], source["chain_copies"], strict=True)
        lines.append("chains: " + ", ".join(f"{length:,} residues" + (f" x{copies}" if copies > 1 else "") for length, copies in chains))
    return [*lines, *account_lines(source["account"])]


def account_lines(account: dict[str, Any]) -> list[str]:
    """What became of rows and letters, one sentence each; nothing where all of them were kept as they stood."""
    lines = [f"rows dropped, {reason}: {count:,}" for reason, count in account["dropped"].items()]
    if account["mapped"]:
        lines.append("letters read as another: " + ", ".join(f"{letter} x{count}" for letter, count in account["mapped"].items()))
    return [*lines, *account["notes"]]


def _model(model: dict[str, Any], execution: dict[str, Any]) -> list[str]:
    config = model["config"]
    if "evoformer" in config:
        extra = f"{config['extra']['n_blocks']} extra-MSA + " if config["extra"] else ""
        blocks = f"{extra}{config['evoformer']['n_blocks']} Evoformer blocks"
    else:
        blocks = counted(config["n_blocks"], "block")
    recycles = f", {counted(model['recycles'], 'recycle')}" if model["recycles"] else ""
    return [
        f"{model['preset']}: {blocks}, {model['parameters'] / 1e6:.1f} million "
        f"parameters, {execution['dtype']} on {execution['device']}, {counted(execution['threads'], 'thread')}{recycles}"
    ]


def _parameters(model: dict[str, Any]) -> list[str]:
    source = model["weights"]
    if source["source"] == "random":
        file = "params_model_*.npz" if "evoformer" in model["config"] else "esm_msa1b_*.pt"
        return [
            f"RANDOM, seed {source['seed']}: the numbers mean nothing biological, and no contacts are written. Trained ones come with "
            f"--weights {file}."
        ]
    account = source["account"]
    counts = f"{account['used']} arrays used, {account['unexpected']} of the trunk unused or in part, {account['outside']} outside it"
    return [f"{source['source']}: {counts}"]


def _attention(execution: dict[str, Any]) -> list[str]:
    """One line for each stack, backend and reason, with the kinds of attention that share them."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for call in execution["attention"]:
        groups.setdefault((call["stack"], call["backend"], _why(call, execution["backend"])), []).append(call["kind"])
    return [f"{stack}: {backend} for {', '.join(kinds)}: {why}" for (stack, backend, why), kinds in groups.items()]


def _why(call: dict[str, Any], asked: str) -> str:
    if asked != "auto":
        return "asked for by name"
    passed_over = []
    for name, reasons in call["reasons_against"].items():
        if name == call["backend"]:
            break
        passed_over.append(f"not {name}: {'; '.join(reasons)}")
    return " and ".join(passed_over) or "the first choice, nothing is against it"


def _time(seconds: dict[str, float]) -> list[str]:
    return [f"{sum(seconds.values()):.1f} s: " + ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())]


def _memory(peak: dict[str, int], planned: dict[str, Any] | None) -> list[str]:
    lines = [", ".join(f"{size / 2**30:.2f} GiB at most ({where})" for where, size in peak.items()) or "not known on this system"]
    if planned is not None:
        budget = "" if planned["budget"] is None else f" of a budget of {show_bytes(planned['budget'])}"
        measured = "" if planned["measured"] is None else f", measured {show_bytes(planned['measured'])}"
        lines.append(f"beyond parameters and features: planned {show_bytes(planned['planned'])}{budget}{measured}")
    return lines


def _written(output: dict[str, Any]) -> list[str]:
    shapes = ", ".join(f"{name} {tensor['shape']}" for name, tensor in output["tensors"].items())
    return [output["folder"], *(f"{name}: {shapes}" if name.startswith("representations") else name for name in output["files"])]
