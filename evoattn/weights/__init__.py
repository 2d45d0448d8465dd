"""Published parameters: one explicit name table per family, loaded strictly and with a full account."""

from evoattn.weights.load import Account, load_weights

__all__ = ["Account", "load_weights"]
