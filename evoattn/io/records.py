"""An alignment out of rows that a program has made, by the reader's own rules."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from typing import Any

from evoattn.errors import ConfigError
from evoattn.io.msa import MSA
from evoattn.io.reader import SequenceSet, read_msa


def msa_of_rows(
    names: Sequence[str], descriptions: Sequence[str], rows: Sequence[str], format: str, *, source: str, notes: Sequence[str]
) -> MSA:
    """Return the alignment of `rows`, which are text of that format, the query first; the notes stand first in its account."""
    text = "".join(f">{number}\n{row}\n" for number, row in enumerate(rows))  # the headers need not be readable back
    msa = read_msa(BytesIO(text.encode()), format, alphabet="protein")
    account = replace(msa.account, notes=(*notes, *msa.account.notes))
    return replace(msa, names=tuple(names), descriptions=tuple(descriptions), source=source, account=account)


def refuse_other_than_protein(sequences: SequenceSet, purpose: str) -> None:
    """Raise ConfigError for RNA or DNA."""
    if sequences.alphabet != "protein":
        raise ConfigError(
            f"{sequences.source}: the sequences are of {sequences.alphabet}, and {purpose} takes proteins. If they are proteins, "
            "say so with alphabet 'protein'."
        )


def optional_package(name: str, purpose: str) -> Any:
    """Import a package of the extra ``msa``. Raises ConfigError, which names it and the extra, if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{purpose} needs the package {name} ({error}): pip install 'evoattn[msa]' brings it.") from None
