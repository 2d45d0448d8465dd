"""What ``evoattn contacts`` is asked to do."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from evoattn.contacts.fit import FitConfig
from evoattn.errors import ConfigError
from evoattn.io.suffixes import stem

METHODS: Final = ("attention", "dca")


@dataclass(frozen=True)
class ContactSettings:
    """Contacts from one alignment, and what they are compared with.

    Attributes:
        input: the alignment, in any format of :func:`evoattn.read_msa`. msa_format, query, block: see there.
        structure: a PDB or mmCIF file of the query or a close homolog. chain: of it; None takes the one most like the query.
        method: "attention" (:class:`evoattn.contacts.FactoredAttention`) or "dca" (:func:`evoattn.contacts.mean_field_dca`).
        fit: of the attention.
        out: the folder to write; by default ``<stem of input>_contacts`` in the present folder. force: replace an earlier one.

    Raises:
        ConfigError: a value is not allowed.
    """

    input: Path
    structure: Path | None = None
    chain: str | None = None
    method: str = "attention"
    fit: FitConfig = field(default_factory=FitConfig)
    msa_format: str = "auto"
    query: str | None = None
    block: int | str | None = None
    out: Path | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method is {self.method!r}; allowed are {', '.join(METHODS)}.")
        if self.chain is not None and self.structure is None:
            raise ConfigError(f"chain is {self.chain!r}, and there is no structure; give its file too.")

    @property
    def folder(self) -> Path:
        """The absolute path of the output folder."""
        return (self.out or Path(f"{stem(self.input.resolve())}_contacts")).resolve()

    def record(self) -> dict[str, Any]:
        """All that decides the result, as plain values."""
        fit = dict(vars(self.fit)) if self.method == "attention" else None
        plain = {name: getattr(self, name) for name in ("method", "chain", "msa_format", "query", "block")}
        return {**plain, "fit": fit}
