"""What may stand in a config: the words of pair features, and the checks that configs share."""

from typing import Literal

from evoattn.errors import ConfigError

PairAs = Literal["bias", "keys", "values"]
PairMode = Literal["relative", "appended"]


def check_heads(owner: str, width_name: str, width: int, heads_name: str, heads: int) -> None:
    """Raise ConfigError unless `heads` divides `width`."""
    if heads < 1 or width % heads:
        raise ConfigError(
            f"{owner}: {heads_name} = {heads} does not divide {width_name} = {width}; "
            f"the width of a head is {width_name} / {heads_name}. Choose a divisor of {width}."
        )


def check_pair_as(owner: str, pair_as: tuple[str, ...], mode: str, name: str = "pair_as") -> None:
    """Raise ConfigError unless the pair features enter in a way that exists."""
    known = ("bias", "keys", "values")
    if not isinstance(pair_as, tuple) or not set(pair_as) <= set(known) or len(set(pair_as)) != len(pair_as):
        raise ConfigError(
            f"{owner}: {name} is {pair_as!r}; it is a tuple of distinct words out of 'bias', 'keys' and 'values', e.g. ('bias', 'values')."
        )
    if mode not in ("relative", "appended"):
        raise ConfigError(f"{owner}: pair_mode is {mode!r}; allowed are 'relative' and 'appended'.")
    if mode == "appended" and ("keys" in pair_as) != ("values" in pair_as):
        raise ConfigError(
            f"{owner}: {name} is {pair_as!r} with pair_mode 'appended'; an appended key needs its value: name both 'keys' and 'values'."
        )


def check_sizes(config: object, *names: str, least: int = 1) -> None:
    """Raise ConfigError unless these fields of `config` are integers of at least `least`."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{type(config).__name__}: {name} is {value!r}; it must be an integer of at least {least}.")


def check_bins(config: object, least: str, most: str) -> None:
    """Raise ConfigError unless these fields of `config` are the borders of bins of distances."""
    low, high = getattr(config, least), getattr(config, most)
    if not 0.0 <= low < high:
        raise ConfigError(
            f"{type(config).__name__}: {least} is {low!r} and {most} {high!r}; they are distances in Angstrom, the first below the second."
        )
