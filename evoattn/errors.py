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


class MSAError(EvoattnError, ValueError):
    """An alignment file cannot be read as it stands; the message names file, row, found and expected."""
