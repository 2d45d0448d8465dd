"""Published parameters: one explicit name table per family, loaded strictly and with a full account."""

from evoattn.weights.account import Account
from evoattn.weights.conversion import Conversion, convert
from evoattn.weights.families import FAMILIES
from evoattn.weights.identify import Identity, identify
from evoattn.weights.load import load_weights

__all__ = ["FAMILIES", "Account", "Conversion", "Identity", "convert", "identify", "load_weights"]
