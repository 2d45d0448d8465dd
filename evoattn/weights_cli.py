"""``evoattn weights``: what a parameter file holds, conversion, and where the published ones come from."""

import json
from collections import Counter
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer

from evoattn.errors import WeightsError
from evoattn.terminal import EXIT_CODES, SETTINGS, Force, Json, reported
from evoattn.weights import FAMILIES, convert, identify
from evoattn.weights.sources import Source, open_source

weights_app = typer.Typer(
    name="weights", no_args_is_help=True, rich_markup_mode=None, context_settings=SETTINGS,
    help="Published parameters: look into a file, convert it, or see where it comes from.",
)  # fmt: skip

File = Annotated[Path, typer.Argument(metavar="FILE", help="npz, torch checkpoint, safetensors or AlphaFold 3's .bin.zst; never executed.")]
Target = Annotated[Path, typer.Argument(metavar="DST", help="File to write: .safetensors; or what the family uses, for a converted SRC.")]
Entry = Annotated[str | None, typer.Option(metavar="NAME", help="Which set of parameters in a checkpoint. [default: the moving average]")]
Family = Annotated[str | None, typer.Option(metavar="NAME", help=f"{', '.join(FAMILIES)}. [default: told by the names in the file]")]
Version = Annotated[str | None, typer.Option(metavar="NAME", help="Of the family, where the names in the file cannot tell.")]
Names = Annotated[bool, typer.Option("--names", help="List every array with its shape.")]


@weights_app.command("inspect", epilog=EXIT_CODES)
def inspect_command(file: File, entry: Entry = None, names: Names = False, as_json: Json = False) -> None:
    """Show what FILE holds: its format, family and version, numerics, parts and sizes. Only headers are read, where the format allows."""
    with reported():
        found = contents(open_source(file, entry), names)
        typer.echo(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


@weights_app.command("convert", epilog=EXIT_CODES)
def convert_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="As for `inspect`; or a file that this command wrote.")],
    target: Target,
    family: Family = None,
    version: Version = None,
    entry: Entry = None,
    force: Force = False,
) -> None:
    """Convert a published file to safetensors under evoattn's names, or such a file back, every bit as it was.

    Family, version, numerics and config are written into the file; arrays that evoattn has no module for are kept under their own names.
    """
    with reported():
        done = convert(source, target, family=family, version=version, entry=entry, force=force)
        counts = f"{done.converted} arrays converted, {done.kept} kept as they are"
        typer.echo(f"{target}: {done.identity.family} {done.identity.version}, {counts}")
        if done.notice:
            typer.secho(f"evoattn: {done.notice}", fg=typer.colors.YELLOW, err=True)


@weights_app.command("list")
def list_command(as_json: Json = False) -> None:
    """Show for each family where its files come from, under which licence, and the line that loads them."""
    rows = [
        {"family": f.name, "title": f.title, "versions": list(f.versions), "source": f.source, "licence": f.licence, "line": f.line}
        for f in FAMILIES.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo(f"{row['title']}: --family {row['family']}, versions {', '.join(row['versions'])}")
        typer.echo(f"  files    {row['source']}\n  licence  {row['licence']}\n  load     {row['line']}\n")
    typer.echo("evoattn ships no parameters; every file is used under the terms of those who made it.")


def contents(source: Source, names: bool = False) -> dict[str, Any]:
    """What `inspect` says, as plain data."""
    try:
        answers = [{**asdict(answer), "profile": answer.profile.name} for answer in identify(source)]
    except WeightsError:
        answers = []
    families = [FAMILIES[name] for name in dict.fromkeys(answer["family"] for answer in answers)]
    parts = Counter(families[0].part(name) or "of evoattn's modules" for name in source.shapes) if len(families) == 1 else Counter()
    found: dict[str, Any] = {
        "file": source.name,
        "format": source.kind,
        "read": source.taken,
        "converted_by_evoattn": "evoattn_family" in source.metadata,
        "identity": answers,
        "arrays": len(source.shapes),
        "numbers": sum(prod(shape) for shape in source.shapes.values()),
        "dtypes": dict(Counter(source.dtypes.values())),
        "parts": dict(parts),
    }
    return {**found, "shapes": {name: list(shape) for name, shape in source.shapes.items()}} if names else found


def _lines(found: dict[str, Any]) -> list[str]:
    how = " converted by evoattn" if found["converted_by_evoattn"] else ""
    lines = [f"{found['file']}: {found['format']}{how}"]
    lines += [f"  read      {found['read']}"] if found["read"] else []
    for answer in found["identity"]:
        lines.append(f"  is        {FAMILIES[answer['family']].title} {answer['version']}, numerics {answer['profile']!r}")
    if len(found["identity"]) > 1:
        lines.append("            the names cannot tell which; loading asks for version=")
    if not found["identity"]:
        lines.append(f"  is        of no family known ({', '.join(FAMILIES)}), or a part of one")
    dtypes = ", ".join(f"{n} {dtype}" for dtype, n in found["dtypes"].items())
    lines.append(f"  holds     {found['arrays']} arrays ({dtypes}), {found['numbers']:,} numbers")
    lines += [f"            {n} {part}" for part, n in sorted(found["parts"].items())]
    lines += [f"  {name}  {tuple(shape)}" for name, shape in found.get("shapes", {}).items()]
    return lines
