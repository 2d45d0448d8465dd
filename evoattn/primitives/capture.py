"""Looking at attention maps: of any module, whatever backend computes it, without a forward argument."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch

import torch
from torch import Tensor, nn

from evoattn.errors import ConfigError, ShapeError
from evoattn.ops import attention_weights
from evoattn.primitives.attention import GatedAveraging, GlobalGatedAttention, MultiHeadAttention, TiedAttention

ATTENTION_MODULES = (MultiHeadAttention, GlobalGatedAttention, GatedAveraging, TiedAttention)


@contextmanager
def capture_attention(
    model: nn.Module, layers: Sequence[str] | None = None, heads: Sequence[int] | None = None, index: int = 0
) -> Iterator[dict[str, Tensor]]:
    """Collect attention probabilities while the body runs, as ``{module name: [*batch, heads, q, k]}`` on the CPU.

    Only what is asked for is computed, beside whatever backend runs. A module that is called again overwrites its entry.

    Args:
        model: a stack, a trunk, or any module with attention in it.
        layers: names of modules as in ``model.named_modules()``, with wildcards; naming a block means the attention in it
            (``"blocks.0.msa_row"``, ``"*tri_start*"``). All by default, which is a lot for a deep stack.
        heads: which heads; all by default.
        index: which entry of the last batch axis: the alignment row in row attention (0 is the query), the alignment column in column
            attention, the first residue of the triangle around the starting node (the last one around the ending node).

    Raises:
        ConfigError: no attention module matches `layers`. ShapeError: a head, or `index`, is out of range.
    """
    found = {name: module for name, module in model.named_modules() if isinstance(module, ATTENTION_MODULES) and _wanted(name, layers)}
    if not found:
        there = [name for name, module in model.named_modules() if isinstance(module, ATTENTION_MODULES)]
        listed = ", ".join(there[:12]) + (" ..." if len(there) > 12 else "")
        raise ConfigError(f"capture_attention: no attention module matches {layers}; there are {listed or 'none in this model'}.")
    maps: dict[str, Tensor] = {}
    try:
        for name, module in found.items():
            module.look = _Looker(maps, name, heads, index)
        yield maps
    finally:
        for module in found.values():
            module.look = None


def _wanted(name: str, layers: Sequence[str] | None) -> bool:
    return layers is None or any(fnmatch(name, pattern) or fnmatch(name, f"{pattern}.attn") for pattern in layers)


class _Looker:
    """What a module calls with its queries and keys."""

    def __init__(self, maps: dict[str, Tensor], name: str, heads: Sequence[int] | None, index: int) -> None:
        self.maps, self.name, self.heads, self.index = maps, name, heads, index
        self.seen: tuple[int, int] | None = None
        """Where a slice of the last batch axis starts, and how long the whole is; None when all of it is seen."""

    @torch.no_grad()
    def __call__(
        self, q: Tensor, k: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, pair: Tensor | None = None,
        pair_queries: Tensor | None = None, appended: bool = False, heads_as_queries: bool = False,
    ) -> None:  # fmt: skip
        batch_rank = q.dim() - 3
        entries = q.shape[batch_rank - 1] if batch_rank else 1
        start, whole = self.seen or (0, entries)
        if not -whole <= self.index < whole:
            raise ShapeError(
                f"capture_attention: index {self.index} is out of range for {self.name!r}; its last batch axis has {whole} entries."
            )
        here = self.index % whole - start
        if not 0 <= here < entries:
            return

        def at(x: Tensor) -> Tensor:
            """The entry `index` of the last batch axis, kept as an axis of size 1."""
            return x if batch_rank == 0 or x.shape[batch_rank - 1] == 1 else x.narrow(batch_rank - 1, here, 1)

        q, k, biases = at(q), at(k), [at(bias) for bias in biases]
        mask = None if mask is None else at(mask)
        if pair is not None and pair_queries is not None:
            pair_logits = torch.einsum("...qhc,...qkc->...hqk", at(pair_queries), at(pair)) * q.shape[-1] ** -0.5
            if appended:  # 2 N keys: those of the sequence, then those of the pair features, whose logits come in as a bias of zero keys
                k = torch.cat([k, torch.zeros_like(k)], dim=-3)
                total = sum(biases, start=torch.zeros_like(pair_logits))
                biases = [torch.cat([total, pair_logits], dim=-1)]
                mask = None if mask is None else mask.expand(*mask.shape[:-1], pair.shape[-2]).repeat(*[1] * (mask.dim() - 1), 2)
            else:
                biases = [*biases, pair_logits]
        if heads_as_queries:  # one query per head under one head axis: report them as heads
            weights = attention_weights(q, k, mask=mask, rows=self.heads).transpose(-2, -3)
        else:
            weights = attention_weights(q, k, biases=biases, mask=mask, heads=self.heads)
        self.maps[self.name] = (weights if batch_rank == 0 else weights.squeeze(batch_rank - 1)).cpu()
