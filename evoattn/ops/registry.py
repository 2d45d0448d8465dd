"""Backends and how one is chosen: an ordered list, and for every candidate the full list of reasons against it.

An op owns one :class:`Registry`. To add a backend, write a file that ends in a :class:`Backend` and add it to the op's list; nothing else
has to change. A backend asked for by name runs or raises; ``"auto"`` takes the first one that has no reason against it, and that nothing
has cast doubt on: a failed ``evoattn check``, or for a kernel that must be checked first, none on this kind of device.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evoattn.errors import BackendError
from evoattn.ops import verdicts


def _nothing_missing() -> None:
    return None


def _never(spec: Any) -> bool:
    return False


@dataclass(frozen=True)
class Backend:
    """One way to compute an op.

    Attributes:
        name: what users type, e.g. ``"sdpa"``.
        run: the computation. What it is called with is documented by the op.
        why_not: the reasons why it cannot serve a call, as full phrases; ``[]`` means it can, without casting anything. It sees metadata
            only (a spec), never a tensor, so every rule is testable on any machine. It never raises.
        missing: the part it needs that is not installed or does not load here, or None; found out once.
        package: the distribution it calls, if one beside torch.
        hides: whether, in a call that it can serve, it keeps by itself what stands behind the mask from everything else, NaN and incoming
            gradients included. Where it does not, the op puts 0 there before and after, for which it copies all operands.
        needs_check: it brings a kernel that is not torch's. ``"auto"`` takes it only where ``evoattn check`` has passed, which tries it in
            a process of its own, since a kernel may take its process down; `run` and `why_not` must then be functions of a module.
    """

    name: str
    run: Callable[..., Any]
    why_not: Callable[[Any], list[str]]
    missing: Callable[[], str | None] = _nothing_missing
    package: str | None = None
    hides: Callable[[Any], bool] = _never
    needs_check: bool = False

    def reasons(self, spec: Any) -> list[str]:
        """Everything that speaks against this backend for `spec`: what is not installed, and what it cannot do."""
        absent = self.missing()
        return ([absent] if absent else []) + self.why_not(spec)


@dataclass(frozen=True)
class Explanation:
    """What an op would do with a call, and why. ``print(explanation)`` shows it in full.

    `reasons` are why a backend cannot run the call; `doubts`, of one that can, why ``"auto"`` passes over it all the same.
    """

    op: str
    spec: Any
    chosen: str | None
    reasons: dict[str, list[str]]
    doubts: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.op} of {self.spec}", f"  -> {self.chosen or 'no backend can run this'}"]
        for name, reasons in self.reasons.items():
            standing = "chosen" if name == self.chosen else f"can run, {self.doubts.get(name, 'lower in the order')}"
            lines.append(f"  {name:<14} {'; '.join(reasons) or standing}")
        return "\n".join(lines)


class Registry:
    """The ordered backends of one op. The order is the preference; each backend says itself which devices it serves."""

    def __init__(self, op: str, backends: list[Backend]) -> None:
        self.op = op
        self.backends = backends

    @property
    def names(self) -> list[str]:
        return [backend.name for backend in self.backends]

    def get(self, name: str) -> Backend:
        """The backend called `name`.

        Raises:
            BackendError: when there is none; the message lists those there are.
        """
        for backend in self.backends:
            if backend.name == name:
                return backend
        known = ", ".join(self.names)
        raise BackendError(f"{self.op}: there is no backend {name!r}; there are {known}, and 'auto' for the first that can run.")

    def named(self, backend: str | Backend, default: Backend) -> Backend:
        """The backend asked for, or `default` for "auto", without a look at the call: for what a compiler traces."""
        if backend == "auto":
            return default
        return self.get(backend) if isinstance(backend, str) else backend

    def has(self, backend: str | Backend) -> bool:
        """Whether `backend` is "auto", a name, or one of the list: all but an object of the caller's own."""
        return isinstance(backend, str) or backend in self.backends

    def explain(self, spec: Any) -> Explanation:
        """Which backend ``"auto"`` takes for `spec`, and every reason against every other."""
        reasons = {backend.name: backend.reasons(spec) for backend in self.backends}
        able = [backend for backend in self.backends if not reasons[backend.name]]
        doubts = {backend.name: doubt for backend in able if (doubt := self.doubt(backend, spec))}
        chosen = next((backend.name for backend in able if backend.name not in doubts), None)
        return Explanation(self.op, spec, chosen, reasons, doubts)

    def doubt(self, backend: Backend, spec: Any) -> str | None:
        """Why ``"auto"`` leaves `backend` alone though it can run `spec`; None when it does not."""
        return verdicts.doubt(self.op, backend.name, backend.needs_check, spec)

    def select(self, spec: Any, backend: str | Backend = "auto") -> Backend:
        """The backend that runs `spec`: the first without reasons and doubts for ``"auto"``, else the one asked for.

        Raises:
            BackendError: when the backend asked for cannot run, with all its reasons; or when none can.
        """
        if backend == "auto":
            for candidate in self.backends:
                if not (candidate.why_not(spec) or self.doubt(candidate, spec) or candidate.missing()):  # the last may load a package
                    return candidate
            raise BackendError(f"{self.op}: no backend can run this call.\n{self.explain(spec)}")
        asked = self.get(backend) if isinstance(backend, str) else backend
        against = asked.reasons(spec)
        if against:
            others = ", ".join(name for name in self.names if name != asked.name)
            listed = "".join(f"\n  - {reason}" for reason in against)
            raise BackendError(
                f"{self.op}: backend {asked.name!r} cannot run {spec}:{listed}\nUse backend='auto', or another of {others}."
            )
        return asked
