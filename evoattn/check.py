"""Every backend of every op on the user's own device, against the reference in float64: what ``evoattn check`` runs.

Outputs and all gradients, odd lengths, strided inputs, rows with nothing to attend, each dtype. The error may be four times that of plain
torch in the same dtype on the same device, plus eight roundings of the largest value: twice what the tests allow on inputs they know, so
that no device fails by chance, and far below what any wrong term makes. A backend that brings its own kernel is tried in a process of its
own, which it may take down. What was found is remembered (:mod:`evoattn.ops.verdicts`).
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from evoattn.check_cases import SUBJECTS, Case, Subject
from evoattn.ops import Backend, verdicts
from evoattn.ops.verdicts import Verdict, installed

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PATIENCE = 900  # seconds that one backend may take for one op in its own process: DeepSpeed compiles for minutes
REPEATS = 5


@dataclass(frozen=True)
class Trial:
    """One backend of one op in one dtype.

    Attributes:
        cases: how many calls it was compared on. why: what failed, or why it was not tried; empty when all is well.
        error: the largest error as a share of what is allowed. milliseconds: of one forward and backward pass of the first case.
    """

    op: str
    backend: str
    dtype: str
    cases: int = 0
    why: str = ""
    error: float | None = None
    milliseconds: float | None = None

    @property
    def verdict(self) -> str:
        return "failed" if self.why and self.cases else "not usable" if self.why else "passed"


def check(
    device: torch.device, ops: Sequence[str] = tuple(SUBJECTS), watch: Callable[[str, str], None] = lambda op, backend: None
) -> list[Trial]:
    """Try every backend of `ops` on `device`, and remember the verdicts; `watch` is told what comes next."""
    trials = []
    for op in ops:
        for backend in SUBJECTS[op].registry.backends:
            watch(op, backend.name)
            trials += try_apart(op, backend, device) if backend.needs_check else try_here(op, backend, device)
    verdicts.remember(_verdicts(trials, device))
    return trials


def _verdicts(trials: Sequence[Trial], device: torch.device) -> list[Verdict]:
    place = verdicts.place_of(device)
    packages = {(op, backend.name): backend.package for op, subject in SUBJECTS.items() for backend in subject.registry.backends}
    found = []
    for trial in trials:
        package = packages.get((trial.op, trial.backend))
        if trial.verdict != "not usable":
            found.append(Verdict(trial.op, trial.backend, trial.dtype, place, package, installed(package), trial.why))
    return found


def try_here(op: str, backend: Backend, device: torch.device) -> list[Trial]:
    """Each dtype in turn, in this process."""
    return [_try(SUBJECTS[op], backend, dtype, device) for dtype in DTYPES]


def try_apart(op: str, backend: Backend, device: torch.device, patience: float = PATIENCE) -> list[Trial]:
    """The same in a process of its own, whose end, however it comes, is only a failed trial. Nothing is started for what cannot run."""
    idle = [_not_usable(SUBJECTS[op], backend, dtype, device) for dtype in DTYPES]
    if all(idle):
        return [trial for trial in idle if trial]
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, op, backend, device))
    process.start()
    sender.close()
    trials: list[Trial] = []
    end = perf_counter() + patience
    try:
        while len(trials) < len(DTYPES) and receiver.poll(max(0.0, end - perf_counter())):
            trials.append(receiver.recv())
        why = f"no answer after {patience:g} s"
    except EOFError:
        process.join()
        why = f"its process ended with {_ending(process.exitcode)}"
    finally:
        process.kill()
        process.join()
        receiver.close()
    for dtype in DTYPES[len(trials) :]:  # the first of them met the end, and nothing is known of the others
        trials.append(Trial(op, backend.name, _name(dtype), cases=1, why=why))
    return trials


def _child(sender: Connection, op: str, backend: Backend, device: torch.device) -> None:
    for dtype in DTYPES:
        sender.send(_try(SUBJECTS[op], backend, dtype, device))
    sender.close()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _not_usable(subject: Subject, backend: Backend, dtype: torch.dtype, device: torch.device) -> Trial | None:
    """A trial that says why not one case can run, or None."""
    reasons = [backend.reasons(subject.spec(case, case.inputs(dtype, device))) for case in subject.cases]
    if not all(reasons):
        return None
    shared = [reason for reason in reasons[0] if all(reason in others for others in reasons)] or min(reasons, key=len)
    return Trial(subject.registry.op, backend.name, _name(dtype), why="; ".join(shared))


def _try(subject: Subject, backend: Backend, dtype: torch.dtype, device: torch.device) -> Trial:
    unusable = _not_usable(subject, backend, dtype, device)
    if unusable:
        return unusable
    trial = Trial(subject.registry.op, backend.name, _name(dtype))
    served = [case for case in subject.cases if not backend.reasons(subject.spec(case, case.inputs(dtype, device)))]
    for case in served:
        trial = replace(trial, cases=trial.cases + 1)
        try:
            name, share = _largest_error(subject, case, backend, dtype, device)
        except Exception as error:  # whatever a kernel raises is what was to be found out
            return replace(trial, why=f"{case.name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        trial = replace(trial, error=max(share, trial.error or 0.0))
        if not share <= 1:
            return replace(trial, why=f"{case.name}: error of {name} is {share:.2g} times what is allowed")
    return replace(trial, milliseconds=_milliseconds(subject, served[0], backend, dtype, device))


def _largest_error(subject: Subject, case: Case, backend: Backend, dtype: torch.dtype, device: torch.device) -> tuple[str, float]:
    """Which output or gradient is furthest off, and its error as a share of what is allowed."""
    reference = subject.registry.get("reference")
    exact = _results(subject, case, reference, case.inputs(torch.float64, torch.device("cpu")))
    usual = _results(subject, case, reference, case.inputs(dtype, device))
    got = _results(subject, case, backend, case.inputs(dtype, device))
    shares = {}
    for name, truth in exact.items():
        allowed = 4 * worst(usual[name], truth) + 8 * torch.finfo(dtype).eps * truth.abs().max().item()
        error = worst(got[name], truth)
        shares[name] = error / allowed if allowed else float("inf") if error else 0.0
    return max(shares.items(), key=lambda item: item[1])


def worst(got: Tensor, truth: Tensor) -> float:
    """Largest absolute difference; infinite where `got` is not finite."""
    return (got.detach().cpu().double() - truth).abs().nan_to_num(nan=torch.inf).max().item()


def _results(subject: Subject, case: Case, backend: Backend, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The output and the gradient of each input, by name."""
    out = subject.call(case, inputs, backend)
    wanted = {name: x for name, x in inputs.items() if x.requires_grad}
    grad_out = (torch.arange(out.numel()) * 37 % 61 / 64).view_as(out).to(out)  # the same numbers in every dtype
    grads = torch.autograd.grad(out, list(wanted.values()), grad_out)
    return {"the output": out.detach()} | {f"the gradient of {name}": grad for name, grad in zip(wanted, grads, strict=True)}


def _milliseconds(subject: Subject, case: Case, backend: Backend, dtype: torch.dtype, device: torch.device) -> float:
    inputs, times = case.inputs(dtype, device), []
    for _ in range(REPEATS):
        start = perf_counter()
        _results(subject, case, backend, inputs)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        times.append(perf_counter() - start)
    return 1e3 * median(times)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
