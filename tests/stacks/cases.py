"""Small stacks and inputs for them, shared by the tests of stacks, trunk and weights."""

import json
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from evoattn import PRESETS, PROFILES, EvoformerBlock, EvoformerConfig, EvoformerStack, ExtraMSAStack, load_weights
from evoattn.primitives.init import redraw_
from tests.helpers import golden

SMALL = replace(PRESETS["tiny"].evoformer, n_head_tri_end=4)  # another number of heads per axis, as in the golden files
EXTRA = replace(SMALL, c_m=16, c_s=None, msa_column="global")
CONFIGS = {
    "monomer": SMALL,
    "opm first": replace(SMALL, profile=PROFILES["alphafold2_multimer"]),
    "extra": EXTRA,
    "relative": replace(SMALL, msa_pair_as=("bias", "keys", "values"), triangle_pair_as=("keys",)),
    "appended": replace(SMALL, msa_pair_as=("bias", "keys", "values"), triangle_pair_as=("keys", "values"), pair_mode="appended"),
    "no pair": replace(SMALL, msa_pair_as=(), triangle_pair_as=("values",)),
}

GOLDEN_BLOCKS = {  # file -> scope of its parameters
    "af2_evoformer_iteration": "evoformer_iteration",
    "af2_evoformer_iteration_opmfirst": "evoformer_iteration",
    "af2_evoformer_iteration_fused_opmfirst": "evoformer_iteration",
    "af2_extra_msa_iteration": "extra_msa_stack",
    "af2_extra_msa_iteration_fused_opmfirst": "extra_msa_stack",
}


def build(config: EvoformerConfig, dtype: torch.dtype = torch.float64) -> EvoformerStack | ExtraMSAStack:
    """A stack with no parameter at zero, in evaluation mode."""
    stack = ExtraMSAStack(config) if config.c_s is None else EvoformerStack(config)
    redraw_(stack, seed=1)
    return stack.to(dtype).eval()


def outputs(stack: nn.Module, *inputs: Tensor | None) -> tuple[Tensor, ...]:
    """What the stack returns, as a tuple also where it is one tensor."""
    out = stack(*inputs)
    return out if isinstance(out, tuple) else (out,)


def representations(
    config: EvoformerConfig, n_seq: int = 5, n_res: int = 7, batch: tuple[int, ...] = (), dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Random m and z."""
    return torch.randn(*batch, n_seq, n_res, config.c_m, dtype=dtype), torch.randn(*batch, n_res, n_res, config.c_z, dtype=dtype)


def scattered_masks(m: Tensor) -> tuple[Tensor, Tensor]:
    """Masks for m and its pair representation with holes anywhere; the query sequence is whole."""
    *batch, n_seq, n_res, _ = m.shape
    msa_mask = torch.rand(*batch, n_seq, n_res) > 0.2
    msa_mask[..., 0, :] = True
    return msa_mask, torch.rand(*batch, n_res, n_res) > 0.2


def golden_config(file: dict[str, np.ndarray]) -> EvoformerConfig:
    """The config that a golden file of one block was made with."""
    meta = json.loads(str(file["meta_json"]))
    c = meta["config"]
    return EvoformerConfig(
        n_blocks=1, c_m=meta["c_m"], c_z=meta["c_z"], c_s=None,
        n_head_msa_row=c["msa_row_attention_with_pair_bias"]["num_head"], n_head_msa_column=c["msa_column_attention"]["num_head"],
        n_head_tri_start=c["triangle_attention_starting_node"]["num_head"], n_head_tri_end=c["triangle_attention_ending_node"]["num_head"],
        c_hidden_mul=c["triangle_multiplication_outgoing"]["num_intermediate_channel"],
        c_hidden_opm=c["outer_product_mean"]["num_outer_channel"],
        msa_transition_n=c["msa_transition"]["num_intermediate_factor"], pair_transition_n=c["pair_transition"]["num_intermediate_factor"],
        msa_column="global" if meta["is_extra_msa"] else "attention",
        profile=PROFILES["alphafold2_multimer" if c["outer_product_mean"]["first"] else "alphafold2"],
    )  # fmt: skip


def golden_arrays(file: dict[str, np.ndarray], prefix: str = "param/") -> dict[str, np.ndarray]:
    """AlphaFold 2's arrays in a golden file, under their own names."""
    return {key.removeprefix(prefix): array for key, array in file.items() if key.startswith(prefix)}


def golden_version(name: str) -> str:
    """The version of AlphaFold 2 whose block a golden file has; the names in it may not tell."""
    return "multimer_v3" if "fused" in name else "multimer_v1_v2" if "opmfirst" in name else "monomer"


def golden_block(name: str) -> tuple[EvoformerBlock, dict[str, np.ndarray]]:
    """The block of a golden file with its parameters, in evaluation mode, and the file."""
    file = golden(name)
    block = EvoformerBlock(golden_config(file)).eval()
    load_weights(block, golden_arrays(file), version=golden_version(name), scope=GOLDEN_BLOCKS[name])
    return block, file
