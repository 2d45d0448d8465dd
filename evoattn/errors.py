"""The errors that evoattn raises.

Every message says what is wrong, what was got, what is allowed and what to do next. All of them derive from :class:`EvoattnError`,
so ``except EvoattnError`` catches whatever the library refuses, and nothing else.
"""


class EvoattnError(Exception):
    """Base of every error that evoattn raises on purpose."""


class ShapeError(EvoattnError, ValueError):
    """A tensor has the wrong rank, size, dtype or device for the axes it stands for."""


class ConfigError(EvoattnError, ValueError):
    """A setting is outside what is allowed, or contradicts another one."""


class BackendError(EvoattnError, RuntimeError):
    """A backend that was asked for by name cannot run this call; the message lists every reason."""


class WeightsError(EvoattnError, ValueError):
    """Parameters do not fit the model they are loaded into; the message accounts for every array."""


class StructureError(EvoattnError, ValueError):
    """A structure file cannot be read, has no such chain, or is of another protein than the alignment; the message says which."""


class TrainingError(EvoattnError, RuntimeError):
    """Training cannot go on: a number is not finite, or a checkpoint cannot be written or read. The last good checkpoint is kept."""


class MemoryLimitError(EvoattnError, MemoryError):
    """What was asked for cannot fit the memory there is; nothing was computed. The message has both sizes."""


class MSAError(EvoattnError, ValueError):
    """An alignment file cannot be read as it stands.

    The message names the place, what was found, what was expected and what to do. The place is in the attributes too:
    ``file``, ``line`` and ``row`` (both from 1), ``name`` (of the row), ``found`` and ``expected``; None where there is none.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        line: int | None = None,
        row: int | None = None,
        name: str | None = None,
        found: object = None,
        expected: object = None,
    ) -> None:
        super().__init__(message)
        self.file, self.line, self.row, self.name, self.found, self.expected = file, line, row, name, found, expected

    def __str__(self) -> str:
        place = [] if self.file is None else [self.file]
        place += [] if self.line is None else [f"line {self.line}"]
        place += [] if self.row is None else [f"row {self.row}" + ("" if self.name is None else f" ({self.name!r})")]
        return ": ".join(filter(None, [", ".join(place), super().__str__()]))
