"""What this machine offers: versions, devices, backends, optional packages."""

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import torch

from evoattn.ops import ATTENTION, explain
from evoattn.runs.watch import evoattn_version, versions


@dataclass(frozen=True)
class Optional:
    """A package that evoattn can use: which extra installs it, and for what."""

    package: str
    extra: str
    purpose: str


OPTIONAL: Final = (
    Optional("matplotlib", "viz", "draws report.png"),
    Optional("triton", "triton", "compiles GPU kernels"),
    Optional("deepspeed", "deepspeed", "DeepSpeed's attention kernel and training engine"),
    Optional("cuequivariance-torch", "cuequivariance", "NVIDIA's triangle kernels"),
    Optional("pyhmmer", "msa", "searches sequence databases for an alignment"),
    Optional("pyfamsa", "msa", "aligns sequences"),
)
PACKAGE_OF_BACKEND: Final = {"sdpa": "torch", "triton": "triton", "deepspeed": "deepspeed", "cuequivariance": "cuequivariance-torch"}


def environment() -> dict[str, Any]:
    """What ``evoattn info`` shows, as plain values."""
    return {
        "versions": versions(),
        "devices": _devices(),
        "threads": torch.get_num_threads(),
        "backends": [_backend(name) for name in ATTENTION.names],
        "optional": [asdict(optional) | {"version": _installed(optional.package)} for optional in OPTIONAL],
    }


def describe_environment(found: dict[str, Any]) -> str:
    """The same in words."""
    lines = [f"{name:<10} {text}" for name, text in found["versions"].items()]
    lines += [f"{'threads':<10} {found['threads']}", "", "Devices"]
    lines += [f"  {device['name']:<10} {device['description']}" for device in found["devices"]]
    lines += ["", "Attention backends, in order of preference, for MSA row attention of 128 x 256 in float32"]
    for backend in found["backends"]:
        found_as = f"found ({backend['version']})" if backend["found"] else "not found"
        lines.append(f"  {backend['name']:<14} {found_as}")
        for device, reasons in backend["why_not"].items():
            lines.append(f"  {'':<14} {device}: {'usable' if not reasons else 'not usable: ' + '; '.join(reasons)}")
    lines += ["", "Optional packages"]
    for optional in found["optional"]:
        state = f"found ({optional['version']})" if optional["version"] else f"missing; pip install 'evoattn[{optional['extra']}]'"
        lines.append(f"  {optional['package']:<22} {optional['purpose']}: {state}")
    return "\n".join(lines)


def _devices() -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = [{"name": "cpu", "description": platform.processor() or platform.machine()}]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        text = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, compute capability {card.major}.{card.minor}"
        devices.append({"name": f"cuda:{index}", "description": text})
    if len(devices) == 1:
        why = "torch is a build without CUDA" if torch.version.cuda is None else "torch finds no CUDA device"
        devices.append({"name": "cuda", "description": f"none: {why}"})
    return devices


def _backend(name: str) -> dict[str, Any]:
    """Found or not, and for each kind of device here every reason against it."""
    with torch.device("meta"):
        q, bias = torch.empty(1, 128, 256, 8, 32), torch.empty(1, 1, 8, 256, 256)
    present = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    why_not = {device: explain(q, q, q, biases=[bias], device=device).reasons[name] for device in present}
    missing = ATTENTION.get(name).missing()
    package = PACKAGE_OF_BACKEND.get(name)
    return {
        "name": name, "found": missing is None, "version": _installed(package) if package else evoattn_version(),
        "usable": any(not reasons for reasons in why_not.values()), "why_not": why_not, "missing": missing,
    }  # fmt: skip


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
