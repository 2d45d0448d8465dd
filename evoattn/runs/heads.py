"""The output heads of a parameter file, and what a run writes of them: contacts, and the letters of the alignment's cells."""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from evoattn.errors import WeightsError
from evoattn.heads import DistogramHead, MaskedMSAHead
from evoattn.model import Representations
from evoattn.runs.settings import RunSettings
from evoattn.weights import identify, load_weights
from evoattn.weights.canonical import KEPT
from evoattn.weights.families import FAMILIES
from evoattn.weights.sources import Source, open_source

Head = TypeVar("Head", DistogramHead, MaskedMSAHead)


@dataclass(frozen=True)
class Heads:
    """Those that a run needs and the parameter file has."""

    distogram: DistogramHead | None = None
    masked_msa: MaskedMSAHead | None = None

    @property
    def names(self) -> list[str]:
        return [name for name, head in vars(self).items() if head is not None]

    @torch.inference_mode()
    def outputs(self, out: Representations) -> dict[str, Tensor]:
        """`contacts` [N_res, N_res], the probability that two C-beta atoms are within 8 Angstrom, in float32 or better; and
        `masked_msa_logits` [N_seq, N_res, classes]."""
        made = {}
        if self.distogram is not None:
            logits = self.distogram(out.pair)
            made["contacts"] = self.distogram.contacts(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        if self.masked_msa is not None:
            made["masked_msa_logits"] = self.masked_msa(out.msa)
        return made


def read_heads(settings: RunSettings) -> Heads:
    """The heads that `settings.save` asks for, ready to run; none without a parameter file.

    Raises:
        WeightsError: logits of the masked alignment are asked for and the file has no head for them, or a head does not fit the trunk.
    """
    if settings.weights is None:
        return Heads()
    source, evoformer = open_source(settings.weights), settings.config.evoformer
    family = identify(source)[0].family
    distogram = masked_msa = None
    if "contacts" in settings.save and (arrays := _arrays(DistogramHead(evoformer.c_z), family, source)):
        distogram = _loaded(DistogramHead(evoformer.c_z), family, arrays, settings)
    if "masked_msa_logits" in settings.save:
        arrays = _arrays(MaskedMSAHead(evoformer.c_m), family, source)
        if not arrays:
            raise WeightsError(f"{settings.weights} has no masked MSA head; leave masked_msa_logits out of --save.")
        classes = next(array.shape[0] for array in arrays.values() if array.dim() == 1)  # 23 letters of the monomer, 22 of multimer
        masked_msa = _loaded(MaskedMSAHead(evoformer.c_m, classes), family, arrays, settings)
    return Heads(distogram, masked_msa)


def _arrays(head: nn.Module, family: str, source: Source) -> dict[str, Tensor]:
    """The head's arrays under the family's names; {} unless all are there. A converted file keeps them behind a prefix."""
    rules = FAMILIES[family].table(head, FAMILIES[family].scope(head), source.shapes)
    wanted = [name for rule in rules for name in rule.sources]
    for prefix in ("", KEPT):
        if all(prefix + name in source.shapes for name in wanted):
            return {name.removeprefix(prefix): array for name, array in source.read([prefix + name for name in wanted])}
    return {}


def _loaded(head: Head, family: str, arrays: dict[str, Tensor], settings: RunSettings) -> Head:
    load_weights(head, arrays, family)
    return head.eval().to(device=settings.torch_device, dtype=settings.torch_dtype)
