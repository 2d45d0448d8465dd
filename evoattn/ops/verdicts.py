"""What ``evoattn check`` has found out about backends on the devices of this machine, remembered between processes.

A verdict belongs to one backend of one op in one dtype, on one kind of device under one driver, torch, evoattn and (for a foreign kernel)
package version: where any of them is another, nothing is known. The file is in torch's cache folder (``~/.cache/torch/evoattn`` by
default), which TORCH_HOME and XDG_CACHE_HOME move.
"""

import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from evoattn.files import new_file
from evoattn.ops.devices import architecture

DRIVERS = (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version"))


@dataclass(frozen=True)
class Place:
    """Where a verdict holds."""

    device: str
    arch: str | None
    card: str
    driver: str
    torch: str
    evoattn: str


@dataclass(frozen=True)
class Verdict:
    """The outcome of the check of one backend of one op in one dtype; `why` says what failed, and is empty when nothing did."""

    op: str
    backend: str
    dtype: str
    place: Place
    package: str | None
    package_version: str | None
    why: str = ""


def place_of(device: torch.device) -> Place:
    """The kind of `device`, with the versions of what stands between it and a kernel."""
    card, driver = platform.machine(), ""
    if device.type == "cuda":
        card = torch.cuda.get_device_name(device)
        driver = next((path.read_text().strip() for path in DRIVERS if path.exists()), "")
    return Place(device.type, architecture(device), card, driver, torch.__version__, str(sys.modules["evoattn"].__version__))


def installed(package: str | None) -> str | None:
    """The version of a distribution, None where it is not installed."""
    try:
        return None if package is None else version(package)
    except PackageNotFoundError:
        return None


def file() -> Path:
    return Path(torch.hub.get_dir()).parent / "evoattn" / "verdicts.json"


def read() -> list[Verdict]:
    """All that is remembered, of other devices and versions too; nothing where the file is missing or not one of ours."""
    try:
        entries = json.loads(file().read_text(encoding="utf-8"))
        return [Verdict(**{**entry, "place": Place(**entry["place"])}) for entry in entries]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def remember(verdicts: Iterable[Verdict]) -> None:
    """Add to the file; of two verdicts on the same matter the later one stays."""
    matters = {(v.op, v.backend, v.dtype, v.place, v.package_version): v for v in [*read(), *verdicts]}
    file().parent.mkdir(parents=True, exist_ok=True)
    with new_file(file()) as temporary:
        temporary.write_text(json.dumps([asdict(verdict) for verdict in matters.values()], indent=1), encoding="utf-8")
    known.cache_clear()


@cache
def known() -> dict[tuple[str, str, str, str, str | None], list[Verdict]]:
    """(op, backend, dtype, device, arch) -> the verdicts that hold here and now."""
    found: dict[tuple[str, str, str, str, str | None], list[Verdict]] = {}
    remembered = read()
    if not remembered:
        return found
    devices = [torch.device("cpu"), *(torch.device("cuda", index) for index in range(torch.cuda.device_count()))]
    here = {place_of(device) for device in devices}
    for v in remembered:
        if v.place in here and v.package_version == installed(v.package):
            found.setdefault((v.op, v.backend, v.dtype, v.place.device, v.place.arch), []).append(v)
    return found


def doubt(op: str, backend: str, needs_check: bool, spec: Any) -> str | None:
    """Why "auto" should leave a backend alone that can run `spec`: its check failed, or it needs one and has had none. None: no doubt."""
    if not needs_check and not known():
        return None
    verdicts = known().get((op, backend, str(spec.dtype).removeprefix("torch."), spec.device, spec.arch), [])
    failed = next((verdict for verdict in verdicts if verdict.why), None)
    if failed is not None:
        return f"failed `evoattn check` on {failed.place.card}: {failed.why}"
    if needs_check and not verdicts:
        where = spec.arch or spec.device
        return f"unverified on {where} in {str(spec.dtype).removeprefix('torch.')}; `evoattn check` compares it with the reference there"
    return None
