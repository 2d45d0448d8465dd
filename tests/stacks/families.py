"""The reference files of AlphaFold 3 and its kin: what each was made with, and how it is run through our blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evoattn import MSAModuleBlock, MSAModuleConfig, PairformerBlock, PairformerConfig, Profile, load_weights, profile
from evoattn.weights import alphafold3, boltz, openfold3, protenix, rosettafold3
from evoattn.weights.state_dict import StateDictNames

Arrays = Mapping[str, np.ndarray]

PAIR = ("tri_mul_out", "tri_mul_in", "tri_attn_start", "tri_attn_end", "pair_transition")
PAIRFORMER = (*PAIR, "single_attn", "single_transition")
OPM_FIRST = ("outer_product", "msa_average", "msa_transition", *PAIR)
OPM_LAST = ("msa_average", "msa_transition", "outer_product", *PAIR)
UPDATES_Z = (*PAIR, "outer_product")
SWITCHES = {each.name for each in fields(Profile)}


@dataclass(frozen=True)
class Reference:
    """A reference file of one block, and what its inputs, outputs, masks and sub-blocks are called there.

    Attributes:
        family, version, scope: of its parameters. profile: of the family. config: ours, of its sizes.
        x, z: the single or MSA representation, and the pair representation. masks: of the two; None where the system has none.
        order: our sub-blocks in the order of the updates. sub: their names in the file.
        version: of the family, where the names do not tell.
    """

    family: str
    profile: str
    config: dict[str, Any]
    x: str
    masks: tuple[str | None, str | None]
    sub: Mapping[str, str]
    order: tuple[str, ...] = PAIRFORMER
    z: str = "z"
    scope: str = ""
    version: str | None = None

    @property
    def block(self) -> type[PairformerBlock] | type[MSAModuleBlock]:
        return PairformerBlock if self.order == PAIRFORMER else MSAModuleBlock

    def build(self, **changes: Any) -> nn.Module:
        """The block of these sizes; `changes` are of its config or of its profile."""
        switches = {name: changes.pop(name) for name in list(changes) if name in SWITCHES}
        kind = PairformerConfig if self.block is PairformerBlock else MSAModuleConfig
        settings = {"n_blocks": 1, "profile": replace(profile(self.profile), **switches), **self.config, **changes}
        return self.block(kind(**settings)).eval()

    def load(self, block: nn.Module, arrays: Arrays, prefix: str = "param/") -> nn.Module:
        """`block` with the file's arrays below `prefix`."""
        parameters = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        load_weights(block, parameters, self.family, version=self.version, scope=self.scope)
        return block

    def inputs(self, arrays: Arrays) -> list[Tensor]:
        """Both representations, ready for gradients."""
        return [torch.from_numpy(arrays[f"in/{name}"]).requires_grad_() for name in (self.x, self.z)]

    def given_masks(self, arrays: Arrays, case: str) -> list[Tensor | None]:
        return [None if name is None else torch.from_numpy(arrays[f"{case}/{name}"]).bool() for name in self.masks]

    def valid(self, arrays: Arrays, case: str) -> list[np.ndarray | None]:
        """Where both representations are compared: under padding where their masks are, otherwise everywhere."""
        return [arrays[f"pad/{name}"].astype(bool) if case == "pad" and name is not None else None for name in self.masks]

    def weighted_sum(self, out: list[Tensor], arrays: Arrays, valid: list[np.ndarray | None]) -> Tensor:
        """The scalar whose gradients the file holds."""
        total = torch.zeros(())
        for name, y, where in zip((self.x, self.z), out, valid, strict=True):
            weights = torch.from_numpy(arrays[f"in/r_{name}"])
            total = total + (y * (weights if where is None else weights * torch.from_numpy(where.astype(np.float32))[..., None])).sum()
        return total


def names_in(names: StateDictNames, block: type[nn.Module], **others: str) -> dict[str, str]:
    """Our sub-blocks and theirs, from the name table, where the table has them in a scope of their own."""
    return {ours: theirs for ours, theirs in names.names[block].items() if isinstance(theirs, str)} | others


SINGLE_AF3 = alphafold3.SINGLE_SCOPES | {"single_attn": "single_attention_transition2"}
PAIR_HEADS = {"n_head_tri_start": 5, "n_head_tri_end": 5, "c_head_tri": 6, "c_hidden_mul": 20}
AF3_PAIR = {"c_z": 32, "n_head_tri_start": 2, "n_head_tri_end": 2, "c_hidden_mul": 32, "pair_transition_n": 2}
BOLTZ_PAIR = {"c_z": 24, "n_head_tri_start": 3, "n_head_tri_end": 3, "c_head_tri": 6, "c_hidden_mul": 24}
AF3_SINGLE = {**AF3_PAIR, "c_s": 40, "n_head_single": 4, "single_transition_n": 3}
AF3_MSA = {**AF3_PAIR, "c_m": 24, "n_head_msa": 3, "c_hidden_opm": 10, "msa_transition_n": 3}
BOLTZ_SINGLE = {**BOLTZ_PAIR, "c_s": 40, "n_head_single": 4}
BOLTZ_MSA = {**BOLTZ_PAIR, "c_m": 32, "n_head_msa": 4, "c_head_msa": 6, "c_hidden_opm": 10}
OPENFOLD3_SINGLE = {
    **PAIR_HEADS, "c_z": 24, "pair_transition_n": 2, "c_s": 40, "n_head_single": 3, "c_head_single": 8, "single_transition_n": 2,
}  # fmt: skip

REFERENCES = {
    "af3_pairformer_block": Reference(
        "alphafold3", "alphafold3", AF3_SINGLE, "single", ("seq_mask", "pair_mask"),
        {ours: f"{theirs}/out" for ours, theirs in SINGLE_AF3.items()}, z="pair", scope="trunk_pairformer",
    ),
    "af3_msa_stack_block": Reference(
        "alphafold3", "alphafold3", AF3_MSA, "msa", ("msa_mask", "pair_mask"),
        {ours: f"{theirs}/out" for ours, theirs in alphafold3.MSA_SCOPES.items()}, OPM_FIRST, z="pair", scope="msa_stack",
    ),
    "boltz1_pairformer_layer": Reference(
        "boltz", "boltz", BOLTZ_SINGLE, "s", ("mask", "pair_mask"), names_in(boltz.BOLTZ1, PairformerBlock, single_attn="attention"),
    ),
    "boltz2_pairformer_layer": Reference(
        "boltz", "boltz", BOLTZ_SINGLE, "s", ("mask", "pair_mask"), names_in(boltz.BOLTZ2, PairformerBlock, single_attn="attention"),
    ),
    "boltz2_pairformer_layer_postnorm": Reference(
        "boltz", "boltz", {**BOLTZ_SINGLE, "single_post_norm": True}, "s", ("mask", "pair_mask"), {},
    ),
    "boltz1_msa_layer": Reference("boltz", "boltz", BOLTZ_MSA, "m", ("msa_mask", "token_mask"), {}, OPM_LAST),
    "boltz2_msa_layer": Reference(
        "boltz", "boltz", BOLTZ_MSA, "m", ("msa_mask", "token_mask"), names_in(boltz.BOLTZ2, MSAModuleBlock), OPM_LAST,
    ),
    "protenix_pairformer_block": Reference(
        "protenix", "protenix", {**PAIR_HEADS, "c_z": 24, "pair_transition_n": 2, "c_s": 40, "n_head_single": 4}, "s",
        (None, "pair_mask"), names_in(protenix.NAMES, PairformerBlock),
    ),
    "protenix_msa_block": Reference(
        "protenix", "protenix", {**PAIR_HEADS, "c_z": 24, "c_m": 32, "n_head_msa": 8, "c_head_msa": 8, "c_hidden_opm": 10}, "m",
        (None, "pair_mask"), names_in(protenix.NAMES, MSAModuleBlock), OPM_FIRST,
    ),
    "openfold3_pairformer_block": Reference(
        "openfold3", "openfold3_transposed", OPENFOLD3_SINGLE, "s", ("single_mask", "pair_mask"),
        names_in(openfold3.NAMES, PairformerBlock), version="bias_ik",
    ),
    "openfold3_pairformer_block_0.4.5": Reference(
        "openfold3", "openfold3", OPENFOLD3_SINGLE, "s", ("single_mask", "pair_mask"), {}, version="bias_ki",
    ),
    "openfold3_msa_module_block": Reference(
        "openfold3", "openfold3_transposed",
        {**PAIR_HEADS, "c_z": 24, "pair_transition_n": 2, "c_m": 32, "n_head_msa": 3, "c_head_msa": 8, "c_hidden_opm": 10,
         "msa_transition_n": 2},
        "m", ("msa_mask", "pair_mask"), names_in(openfold3.NAMES, MSAModuleBlock), OPM_FIRST, version="bias_ik",
    ),
    "rf3_pairformer_block": Reference(
        "rosettafold3", "rosettafold3",
        {"c_z": 32, "n_head_tri_start": 4, "n_head_tri_end": 4, "c_head_tri": 6, "c_hidden_mul": 32, "pair_transition_n": 2, "c_s": 40,
         "n_head_single": 5, "single_transition_n": 2},
        "s", (None, None), names_in(rosettafold3.NAMES, PairformerBlock),
    ),
}  # fmt: skip
MAIN_CASE = {name: "ones" if name.startswith("rf3") else "rand" for name in REFERENCES}
"""The case that has sub-blocks and gradients."""
