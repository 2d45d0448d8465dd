"""The Pairformer layers of an existing model, replaced by evoattn's: weights carried over, same call, same numbers."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from evoattn import PairformerBlock, PairformerConfig, load_weights, profile
from evoattn.primitives import redraw_

INSTALL = "pip install --no-deps boltz==2.2.1; pip install scipy einops"


class DropIn(nn.Module):
    """Our block, called as theirs is."""

    def __init__(self, arrays: dict[str, Tensor], config: PairformerConfig) -> None:
        super().__init__()
        self.block = PairformerBlock(config)
        load_weights(self.block, arrays, family="boltz")

    def forward(self, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, *how: Any, **more: Any) -> Any:
        """`how` and `more` are about their kernels and chunks; for ours there is evoattn.set_execution."""
        return self.block(s, z, mask.bool(), pair_mask.bool())


@torch.no_grad()
def main() -> None:
    try:
        from boltz.model.layers.pairformer import PairformerModule
    except ImportError as error:
        raise SystemExit(f"{error}. This example replaces layers of Boltz: {INSTALL}") from None
    model: Any = PairformerModule(token_s=384, token_z=128, num_blocks=2, v2=True)
    redraw_(model.eval(), seed=0)  # random weights, for want of published ones
    masks = (torch.rand(1, 96) > 0.1).float(), (torch.rand(1, 96, 96) > 0.1).float()
    inputs = torch.randn(1, 96, 384), torch.randn(1, 96, 96, 128), *masks

    def run() -> tuple[tuple[Tensor, ...], float]:
        model(*inputs)  # once to warm up
        start = perf_counter()
        return model(*inputs), perf_counter() - start

    expected, before = run()
    model.layers = nn.ModuleList(DropIn(layer.state_dict(), PairformerConfig(profile=profile("boltz"))).eval() for layer in model.layers)
    got, after = run()
    difference = max((ours - theirs).abs().max().item() for ours, theirs in zip(got, expected, strict=True))
    print(f"largest difference {difference:.1e}; theirs {before:.2f} s, ours {after:.2f} s")
    assert difference < 1e-4


if __name__ == "__main__":
    main()
