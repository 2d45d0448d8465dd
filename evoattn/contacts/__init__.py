"""Contacts from one alignment: factored attention fitted to it, or mean-field direct coupling analysis."""

from evoattn.contacts.dca import mean_field_dca
from evoattn.contacts.factored import FactoredAttention
from evoattn.contacts.fit import Fit, FitConfig, fit_attention
from evoattn.contacts.pipeline import contacts
from evoattn.contacts.settings import ContactSettings

__all__ = ["ContactSettings", "FactoredAttention", "Fit", "FitConfig", "contacts", "fit_attention", "mean_field_dca"]
