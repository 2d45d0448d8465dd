"""torch's flex_attention (Dong et al. 2024, arXiv 2412.05496): a kernel compiled by torch for the biases and mask at hand.

It is compiled at the first call of each kind, which takes many seconds, and adds up the gradients of biases by atomic additions, so they
differ from run to run in the last bits. So it stands behind what needs neither, and is there to be asked for by name.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from evoattn.ops.packages import missing_package
from evoattn.ops.registry import Backend
from evoattn.ops.tiles import heads_first


def missing() -> str | None:
    """torch compiles it with Triton."""
    return missing_package(("triton",), "evoattn[triton]")


def why_not(spec: Any) -> list[str]:
    reasons = []
    if spec.device != "cuda":
        reasons.append(f"serves cuda, not {spec.device}; on a CPU it has no gradients, and its compilation takes minutes")
    if spec.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        reasons.append(f"serves float32, bfloat16 and float16, not {spec.dtype}")
    if min(spec.d, spec.dv) < 16:
        reasons.append(f"needs heads at least 16 wide, got d {spec.d} and dv {spec.dv}")
    return reasons


def run(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor], mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Attention [*batch, q, h, dv] and log-sum-exp [*batch, q, h]."""
    from torch.nn.attention.flex_attention import AuxRequest

    q, k, v = heads_first(q), heads_first(k), heads_first(v)
    batch = q.shape[:-3]
    steps = [prod(batch[axis + 1 :]) for axis in range(len(batch))]
    terms = [_Term(bias) for bias in biases]
    allowed = None if mask is None else _Term(mask | ~mask.any(-1, keepdim=True))  # rows with nothing allowed are for the caller to zero

    def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        place = [*(b // step % size for step, size in zip(steps, batch, strict=True)), h, i, j]
        for term in terms:
            score = score + term.at(place)
        return score if allowed is None else torch.where(allowed.at(place), score, -torch.inf)

    folded = (x.reshape(prod(batch), *x.shape[-3:]) for x in (q, k, v))
    out, aux = compiled()(
        *folded, score_mod=change, scale=scale, enable_gqa=k.shape[-3] != q.shape[-3], return_aux=AuxRequest(lse=True)
    )
    return heads_first(out.view(*batch, *out.shape[1:])), aux.lse.view(q.shape[:-1]).transpose(-1, -2)


@cache
def compiled() -> Callable[..., Any]:
    """As one graph or not at all: what torch does not compile of it, it would run with all logits in memory."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)


class _Term:
    """A bias or mask [*#batch, #h, #q, #k], read entry by entry; shared axes are never spelled out."""

    def __init__(self, x: Tensor) -> None:
        self.axes = [axis for axis, size in enumerate(x.shape) if size > 1]
        self.values = x.reshape([x.shape[axis] for axis in self.axes])

    def at(self, place: Sequence[Tensor]) -> Tensor:
        return self.values[tuple(place[axis] for axis in self.axes)]


FLEX = Backend("flex", run, why_not, missing, package="triton", needs_check=True)
