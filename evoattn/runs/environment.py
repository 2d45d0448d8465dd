"""What this machine offers: versions, devices, backends, optional packages."""

import platform
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from evoattn.ops import ATTENTION, Backend, explain
from evoattn.ops.devices import architecture
from evoattn.ops.verdicts import installed
from evoattn.runs.watch import versions


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
    Optional("tensorboard", "train", "writes metrics of training for TensorBoard"),
    Optional("cuequivariance-torch", "cuequivariance", "NVIDIA's triangle kernels"),
    Optional("pyhmmer", "msa", "searches sequence databases for an alignment"),
    Optional("pyfamsa", "msa", "aligns sequences"),
)


def environment() -> dict[str, Any]:
    """What ``evoattn info`` shows, as plain values."""
    return {
        "versions": versions(),
        "devices": _devices(),
        "threads": torch.get_num_threads(),
        "backends": [_backend(backend) for backend in ATTENTION.backends],
        "optional": [asdict(optional) | {"version": installed(optional.package)} for optional in OPTIONAL],
    }


def describe_environment(found: dict[str, Any]) -> str:
    """The same in words."""
    lines = [f"{name:<10} {text}" for name, text in found["versions"].items()]
    lines += [f"{'threads':<10} {found['threads']}", "", "Devices"]
    lines += [f"  {device['name']:<10} {device['description']}" for device in found["devices"]]
    lines += ["", "Attention backends, in order of preference, for MSA row attention of 128 x 256 in float32"]
    for backend in found["backends"]:
        found_as = f"found ({backend['version']})" if backend["found"] else f"not found: {backend['missing']}"
        lines.append(f"  {backend['name']:<14} {found_as}")
        for device, reasons in backend["why_not"].items():
            state = "not usable: " + "; ".join(reasons) if reasons else f"usable; {backend['doubts'].get(device, '')}".rstrip("; ")
            lines.append(f"  {'':<14} {device}: {state}")
    lines += ["", "Optional packages"]
    for optional in found["optional"]:
        state = f"found ({optional['version']})" if optional["version"] else f"missing; pip install 'evoattn[{optional['extra']}]'"
        lines.append(f"  {optional['package']:<22} {optional['purpose']}: {state}")
    return "\n".join(lines)


def _devices() -> list[dict[str, Any]]:
    devices: list[dict[str, Any]] = [{"name": "cpu", "description": platform.processor() or platform.machine()}]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        text = f"{card.name}, {card.total_memory / 2**30:.0f} GiB, {architecture(torch.device('cuda', index))}"
        devices.append({"name": f"cuda:{index}", "description": text})
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "torch finds no CUDA device" if built else "torch is a build without CUDA"
        devices.append({"name": "cuda", "description": f"none: {why}"})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "description": "Apple GPU"})
    return devices


def _backend(backend: Backend) -> dict[str, Any]:
    """Found or not, and for each kind of device here every reason against it, doubts of "auto" included."""
    with torch.device("meta"):
        q, bias = torch.empty(1, 128, 256, 8, 32), torch.empty(1, 1, 8, 256, 256)
    present = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), *(["mps"] if torch.backends.mps.is_available() else [])]
    explained = {device: explain(q, q, q, biases=[bias], device=device) for device in present}
    why_not = {device: found.reasons[backend.name] for device, found in explained.items()}
    missing = backend.missing()
    return {
        "name": backend.name, "found": missing is None, "version": None if missing else installed(backend.package or "torch"),
        "usable": any(not reasons for reasons in why_not.values()), "why_not": why_not, "missing": missing,
        "doubts": {device: found.doubts[backend.name] for device, found in explained.items() if backend.name in found.doubts},
    }  # fmt: skip
