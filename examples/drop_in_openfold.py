"""The Evoformer blocks of an existing model, replaced by evoattn's: weights carried over, same call, same numbers."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from evoattn import EvoformerBlock, EvoformerConfig, load_weights, profile
from evoattn.primitives import redraw_

INSTALL = "pip install --no-deps openfold3==0.5.0; pip install scipy gemmi packaging ml_collections biotite"


class DropIn(nn.Module):
    """Our block, called as theirs is. `arrays` is the state dict of theirs, whose family its names tell."""

    def __init__(self, arrays: dict[str, Tensor], config: EvoformerConfig, version: str | None = None) -> None:
        super().__init__()
        self.block = EvoformerBlock(config)
        load_weights(self.block, arrays, version=version)

    def forward(self, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, *, _mask_trans: bool = True, **how: Any) -> Any:
        """`how` is about their kernels and chunks; for ours there is evoattn.set_execution."""
        if _mask_trans != (self.block.config.profile.mask_transition == "all"):
            raise ValueError(f"_mask_trans is {_mask_trans}; build the block for it, with mask_transition='all' in its profile or 'none'")
        return self.block(m, z, msa_mask.bool(), pair_mask.bool())


@torch.no_grad()
def main() -> None:
    try:
        from openfold3.core.model.latent.evoformer import EvoformerStack
    except ImportError as error:
        raise SystemExit(f"{error}. This example replaces blocks of OpenFold3's package: {INSTALL}") from None
    model: Any = EvoformerStack(
        c_m=256, c_z=128, c_s=384, c_hidden_msa_att=32, c_hidden_opm=32, c_hidden_mul=128, c_hidden_pair_att=32, no_heads_msa=8,
        no_heads_pair=4, no_blocks=2, transition_type="relu", transition_n=4, msa_dropout=0.15, pair_dropout=0.25, opm_first=False,
        no_column_attention=False, fuse_projection_weights=False, blocks_per_ckpt=None, inf=1e9, eps=1e-3,
    )  # fmt: skip
    redraw_(model.eval(), seed=0)  # random weights, for want of published ones
    masks = (torch.rand(1, 32, 64) > 0.1).float(), (torch.rand(1, 64, 64) > 0.1).float()
    inputs = torch.randn(1, 32, 64, 256), torch.randn(1, 64, 64, 128), *masks

    def run() -> tuple[tuple[Tensor, ...], float]:
        model(*inputs)  # once to warm up
        start = perf_counter()
        return model(*inputs), perf_counter() - start

    expected, before = run()
    config = EvoformerConfig(profile=profile("openfold3_evoformer"))
    model.blocks = nn.ModuleList(DropIn(block.state_dict(), config).eval() for block in model.blocks)
    got, after = run()
    difference = max((ours - theirs).abs().max().item() for ours, theirs in zip(got, expected, strict=True))
    print(f"largest difference {difference:.1e}; theirs {before:.2f} s, ours {after:.2f} s")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
