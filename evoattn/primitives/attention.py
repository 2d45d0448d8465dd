"""Multi-head attention modules: projections round the one op.

Inside them lengths come before heads, [*batch, length, h, d]. What differs between the attentions of the field, biases, masks and the
order of axes, is for the blocks to arrange; these modules do not know which block they serve.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from evoattn.config import PairAs, PairMode, check_heads, check_pair_as
from evoattn.errors import ConfigError, ShapeError
from evoattn.execution import Executable
from evoattn.ops import attention, attention_weights, gate, merge_attention, pair_attention
from evoattn.primitives.final import final
from evoattn.primitives.init import linear
from evoattn.shapes import check_features, check_mask

Look = Callable[..., None]

HEADS_APART = {-2: "... l (h d) -> ... l h d", -3: "... l r (h d) -> ... r l h d"}
"""Axis that is attended along -> how a projection becomes the queries, keys or values of the op."""


def reverse(pattern: str) -> str:
    """The einops pattern from right to left."""
    return " -> ".join(reversed(pattern.split(" -> ")))


class MultiHeadAttention(Executable):
    """Multi-head attention, self or cross, with one head or many (Vaswani et al. 2017).

    Args:
        c_q: channels of the queries' input, and of the output. c_kv: of the keys' and values' input; the same by default.
        heads: query heads. d_head: width of a head; c_q / heads by default.
        q_bias, kv_bias, out_bias: whether the projections of the queries, of keys and values, and of the output have a bias.
        gated, gate_bias: see :class:`GatedAttention`; the gate's bias starts at 1.
        axis: of the input that is attended along: -2, or -3 with the axis between it and the channels as last batch axis (columns of an
            alignment). The input stays as it is in memory; only views of its projections are transposed.
        c_pair: channels of pair features that enter as keys or values, see `pair_as`.
        pair_as: any of "keys" and "values": pair features ``pair[..., i, j, :]`` add W_K pair_ij to key j and W_V pair_ij to value j as
            query i sees them ("relative"), or are one more key and value each ("appended").
            (:mod:`evoattn.ops.pair_attention` has the formula.) "bias" is accepted and ignored: biases are arguments.

    Raises:
        ConfigError: heads do not divide c_q, or the pair settings contradict each other. ShapeError: inputs do not fit.
    """

    def __init__(
        self, c_q: int, heads: int, *, c_kv: int | None = None, d_head: int | None = None, q_bias: bool = False, kv_bias: bool = False,
        out_bias: bool = True, gated: bool = False, gate_bias: bool = True, c_pair: int | None = None, pair_as: Sequence[PairAs] = (),
        pair_mode: PairMode = "relative", axis: Literal[-2, -3] = -2,
    ) -> None:  # fmt: skip
        super().__init__()
        if d_head is None:
            check_heads(type(self).__name__, "c_q", c_q, "heads", heads)
        check_pair_as(type(self).__name__, tuple(pair_as), pair_mode)
        if axis not in HEADS_APART:
            raise ConfigError(f"{type(self).__name__}: axis is {axis}; allowed are -2 and -3, counted from the channels.")
        self.c_q, self.c_kv, self.heads, self.c_pair = c_q, c_kv or c_q, heads, c_pair
        self.d_head = d_head or c_q // heads
        self.pair_mode = pair_mode
        self.heads_apart = HEADS_APART[axis]
        width = heads * self.d_head
        self.q = linear(c_q, width, bias=q_bias, init="glorot")
        self.k = linear(self.c_kv, width, bias=kv_bias, init="glorot")
        self.v = linear(self.c_kv, width, bias=kv_bias, init="glorot")
        if c_pair is None and ("keys" in pair_as or "values" in pair_as):
            raise ConfigError(f"{type(self).__name__}: pair_as is {tuple(pair_as)} without c_pair; give the channels of the pair features.")
        self.pair_k = linear(c_pair, width, bias=False, init="glorot") if c_pair and "keys" in pair_as else None
        self.pair_v = linear(c_pair, width, bias=False, init="glorot") if c_pair and "values" in pair_as else None
        self.gate = linear(c_q, width, bias=gate_bias, init="gating") if gated else None
        self.out = linear(width, c_q, bias=out_bias, init="final")
        self.look: Look | None = None  # set by capture_attention

    def forward(
        self,
        x: Float[Tensor, "*axes c_q"],
        context: Float[Tensor, "*key_axes c_kv"] | None = None,
        *,
        biases: Sequence[Float[Tensor, "..."]] = (),
        mask: Bool[Tensor, "..."] | None = None,
        pair: Float[Tensor, "*pair_axes c_pair"] | None = None,
    ) -> Float[Tensor, "*axes c_q"]:
        """Attend from `x` [*batch, q, c_q] to `context` [*batch, k, c_kv], to itself by default.

        With axis -3 they are [*batch, q, r, c_q] and [*batch, k, r, c_kv]. Biases and mask are [*#batch, #h, #q, #k] as in
        :func:`evoattn.attention`, pair is [*#batch, q, k, c_pair]; with axis -3 the last of their batch axes is r.
        """
        owner = type(self).__name__
        context = x if context is None else context
        check_features(owner, "input", x, ["q", "c_q"], self.c_q)
        check_features(owner, "context", context, ["k", "c_kv"], self.c_kv)
        projected = (self.q(x), self.k(context), self.v(context))
        q, k, v = (rearrange(y, self.heads_apart, h=self.heads) for y in projected)
        biases = [bias.to(q.dtype) for bias in biases]
        if not self.takes_pair:
            if self.look is not None:
                self.look(q, k, biases=biases, mask=mask)
            out = attention(q, k, v, biases=biases, mask=mask, backend=self.execution.backend)
        else:
            if pair is None:
                raise ConfigError(f"{owner}: built with pair features as keys or values, called without pair=.")
            check_features(owner, "pair", pair, ["q", "k", "c_pair"], self.c_pair or 0)
            attend = self._relative if self.pair_mode == "relative" else self._appended
            out = attend(q, k, v, biases, mask, pair.to(q.dtype))
        average = rearrange(out, reverse(self.heads_apart))
        return final(self.out, average if self.gate is None else gate(average, self.gate(x)))

    def bytes_per_position(self, itemsize: int) -> int:
        """Temporary memory per position of the input: it, q, k, v, gate, average and output."""
        return (2 * self.c_q + 6 * self.heads * self.d_head) * itemsize

    @property
    def takes_pair(self) -> bool:
        """Whether pair features are keys or values, so that the call needs pair=."""
        return self.pair_k is not None or self.pair_v is not None

    def _relative(self, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor], mask: Tensor | None, pair: Tensor) -> Tensor:
        pair_queries = self._fold_keys(q)
        if self.look is not None:
            self.look(q, k, biases=biases, mask=mask, pair=pair, pair_queries=pair_queries)
        backend = "reference" if self.execution.backend == "reference" else "auto"
        out, pair_out = pair_attention(q, k, v, pair, pair_queries=pair_queries, biases=biases, mask=mask, backend=backend)
        return out if self.pair_v is None else out + self._fold_values(pair_out)

    def _appended(self, q: Tensor, k: Tensor, v: Tensor, biases: list[Tensor], mask: Tensor | None, pair: Tensor) -> Tensor:
        """Keys z_i1 .. z_iN beside the others: the residue i becomes a batch axis, the rows that share it the queries, z the one head."""
        if pair.dim() != q.dim() or q.dim() < 4 or pair.shape[-4] != 1:
            raise ShapeError(
                f"{type(self).__name__}: pair has shape {tuple(pair.shape)} for queries {tuple(q.shape)}; in pair_mode 'appended' it is "
                "[*batch, 1, q, k, c_pair] of the same rank, shared by the rows (the last batch axis) of the input. "
                "Give a single row its axis: x[..., None, :, :]."
            )
        pair_queries = self._fold_keys(q)
        assert pair_queries is not None
        if self.look is not None:
            self.look(q, k, biases=biases, mask=mask, pair=pair, pair_queries=pair_queries, appended=True)
        scale, backend = self.d_head**-0.5, self.execution.backend
        out, lse = attention(q, k, v, biases=biases, mask=mask, backend=backend, return_lse=True)
        keys = rearrange(pair, "... 1 i j c -> ... i j 1 c")
        across = None if mask is None else rearrange(mask, "... r h i j -> ... i h r j")
        swapped = rearrange(pair_queries, "... r i h c -> ... i r h c")
        pair_out, pair_lse = attention(swapped, keys, keys, mask=across, scale=scale, backend=backend, return_lse=True)
        pair_out, pair_lse = rearrange(pair_out, "... i r h c -> ... r i h c"), rearrange(pair_lse, "... i r h -> ... r i h")
        return merge_attention(out, lse, self._fold_values(pair_out), pair_lse)

    def _fold_keys(self, q: Tensor) -> Tensor | None:
        """W_K^T q: the query in the width of the pair features."""
        if self.pair_k is None:
            return None
        return torch.einsum("...lhd,hdc->...lhc", q, rearrange(self.pair_k.weight.to(q.dtype), "(h d) c -> h d c", h=self.heads))

    def _fold_values(self, pair_out: Tensor) -> Tensor:
        """W_V applied to the averaged pair features of each head."""
        assert self.pair_v is not None
        weight = rearrange(self.pair_v.weight.to(pair_out.dtype), "(h d) c -> h d c", h=self.heads)
        return torch.einsum("...lhc,hdc->...lhd", pair_out, weight)


class GatedAttention(MultiHeadAttention):
    """Multi-head attention with a sigmoid gate, computed from the queries' input, on each channel of each head.

    Jumper et al. 2021 (AlphaFold 2), supplement, algorithms 7, 8, 13 and 14. Takes what :class:`MultiHeadAttention` takes.
    """

    def __init__(self, c_q: int, heads: int, **settings: Any) -> None:
        super().__init__(c_q, heads, gated=True, **settings)


class GlobalGatedAttention(Executable):
    """One query for the whole length, the mean of its inputs; one key and value head; a gate per position.

    AlphaFold 2 supplement, algorithm 19: cost linear in the length. Where everything is masked the query is 0. Without `bias`, gate and
    output have none.
    """

    def __init__(self, c: int, heads: int, *, d_head: int | None = None, bias: bool = True) -> None:
        super().__init__()
        if d_head is None:
            check_heads("GlobalGatedAttention", "c", c, "heads", heads)
            d_head = c // heads
        self.c, self.heads, self.d_head = c, heads, d_head
        self.q = linear(c, heads * d_head, bias=False, init="glorot")
        self.k = linear(c, d_head, bias=False, init="glorot")
        self.v = linear(c, d_head, bias=False, init="glorot")
        self.gate = linear(c, heads * d_head, bias=bias, init="gating")
        self.out = linear(heads * d_head, c, bias=bias, init="final")
        self.look: Look | None = None

    def forward(self, x: Float[Tensor, "*batch l c"], mask: Bool[Tensor, "*batch l"] | None = None) -> Float[Tensor, "*batch l c"]:
        check_features("GlobalGatedAttention", "input", x, ["l", "c"], self.c)
        check_mask("GlobalGatedAttention", "mask", mask, x.shape[:-1], ["l"])
        q = rearrange(self.q(self._mean(x, mask)), "... (h d) -> ... h 1 d", h=self.heads)  # heads as queries: they share the one key head
        k, v = self.k(x).unsqueeze(-2), self.v(x).unsqueeze(-2)
        keys = None if mask is None else rearrange(mask, "... l -> ... 1 1 l")
        if self.look is not None:
            self.look(q, k, mask=keys, heads_as_queries=True)
        average = attention(q, k, v, mask=keys, backend=self.execution.backend)
        return final(self.out, gate(rearrange(average, "... h 1 d -> ... 1 (h d)"), self.gate(x)))

    def bytes_per_position(self, itemsize: int) -> int:
        """Temporary memory per position of the input: it, k, v, gate and output."""
        return (2 * self.c + (3 * self.heads + 2) * self.d_head) * itemsize

    def _mean(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mean over the unmasked positions, [*batch, c], summed in float32."""
        accumulate = torch.promote_types(x.dtype, torch.float32)
        if mask is None:
            return (x.sum(-2, dtype=accumulate) / max(1, x.shape[-2])).to(x.dtype)  # of nothing it is 0
        present = mask.unsqueeze(-1)
        return (x.masked_fill(~present, 0.0).sum(-2, dtype=accumulate) / present.sum(-2).clamp(min=1)).to(x.dtype)


class GatedAveraging(Executable):
    """Gated attention whose logits are the biases alone, the same for all rows: v, gate and output, but no queries and keys.

    AlphaFold 3 supplement, algorithm 10, without its norms. The rows of the input are folded into the width of the values, so that there
    is one softmax per head. Without biases in its layers, as published.
    """

    takes_pair = False

    def __init__(self, c: int, heads: int, *, d_head: int | None = None) -> None:
        super().__init__()
        if d_head is None:
            check_heads("GatedAveraging", "c", c, "heads", heads)
            d_head = c // heads
        self.c, self.heads, self.d_head = c, heads, d_head
        self.v = linear(c, heads * d_head, bias=False)
        self.gate = linear(c, heads * d_head, bias=False, init="gating")
        self.out = linear(heads * d_head, c, bias=False, init="final")
        self.look: Look | None = None

    def forward(
        self,
        x: Float[Tensor, "*batch s n c"],
        *,
        biases: Sequence[Float[Tensor, "*#batch 1 #h n n"]],
        mask: Bool[Tensor, "*#batch 1 #h #n n"] | None = None,
    ) -> Float[Tensor, "*batch s n c"]:
        """sum_j softmax_j(sum(biases)_ij) v_sj, gated. Biases and mask are [*#batch, 1, #h, #q, #k], as rows share them."""
        check_features("GatedAveraging", "input", x, ["s", "n", "c"], self.c)
        v = rearrange(self.v(x), "... s n (h d) -> ... 1 n h (s d)", h=self.heads)
        nothing = v[..., :0]  # queries and keys of width 0
        biases = [bias.to(v.dtype) for bias in biases]
        if self.look is not None:
            of_rows = nothing.expand(*x.shape[:-1], self.heads, 0)
            self.look(of_rows, of_rows, biases=biases, mask=mask)
        average = attention(nothing, nothing, v, biases=biases, mask=mask, scale=1.0, backend=self.execution.backend)
        return final(self.out, gate(rearrange(average, "... 1 n h (s d) -> ... s n (h d)", d=self.d_head), self.gate(x)))

    def bytes_per_position(self, itemsize: int) -> int:
        """Temporary memory per position of the input: it, v, average, its two copies, gate and output."""
        return (2 * self.c + 5 * self.heads * self.d_head) * itemsize


class TiedAttention(Executable):
    """Self-attention along the residues of an alignment with one map for all rows: their logits are added up before the softmax.

    Rao et al. 2021 (MSA Transformer), with its square-root normalisation: logits_ij = sum_s q_si . k_sj / sqrt(N_seq d). The
    rows are folded into the width of a head, whose default scale is just that. All layers have biases, and there is no gate.

    Raises:
        ConfigError: heads do not divide c. ShapeError: the input has another width.
    """

    takes_pair = False

    def __init__(self, c: int, heads: int, *, d_head: int | None = None) -> None:
        super().__init__()
        if d_head is None:
            check_heads("TiedAttention", "c", c, "heads", heads)
            d_head = c // heads
        self.c, self.heads, self.d_head = c, heads, d_head
        self.q = linear(c, heads * d_head, init="glorot")
        self.k = linear(c, heads * d_head, init="glorot")
        self.v = linear(c, heads * d_head, init="glorot")
        self.out = linear(heads * d_head, c, init="final")
        self.look: Look | None = None

    def forward(
        self,
        x: Float[Tensor, "*batch s n c"],
        *,
        counted: Bool[Tensor, "*batch s n"] | None = None,
        mask: Bool[Tensor, "*#batch #h #n n"] | None = None,
    ) -> Float[Tensor, "*batch s n c"]:
        """`counted` are the entries whose queries add to the logits; the mask is of the one map that all rows share."""
        q, k = self._queries_and_keys(x, counted)
        if self.look is not None:
            q_of_rows, k_of_rows = (y.unsqueeze(-4).expand(*x.shape[:-2], *y.shape[-3:]) for y in (q, k))
            self.look(q_of_rows, k_of_rows, mask=None if mask is None else mask.unsqueeze(-4))
        average = attention(q, k, self._folded(self.v(x)), mask=mask, backend=self.execution.backend)
        return final(self.out, rearrange(average, "... n h (s d) -> ... s n (h d)", d=self.d_head))

    def weights(
        self,
        x: Float[Tensor, "*batch s n c"],
        *,
        counted: Bool[Tensor, "*batch s n"] | None = None,
        mask: Bool[Tensor, "*#batch #h #n n"] | None = None,
    ) -> Float[Tensor, "*batch h n n"]:
        """The map itself, [*batch, h, query, key]; differentiable."""
        return attention_weights(*self._queries_and_keys(x, counted), mask=mask)

    def _queries_and_keys(self, x: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
        check_features("TiedAttention", "input", x, ["s", "n", "c"], self.c)
        q = self.q(x)
        if counted is not None:  # after the projection, whose bias would count else
            check_mask("TiedAttention", "counted", counted, x.shape[:-1], ["s", "n"])
            q = q.masked_fill(~counted.unsqueeze(-1), 0.0)
        return self._folded(q), self._folded(self.k(x))

    def _folded(self, x: Tensor) -> Tensor:
        return rearrange(x, "... s n (h d) -> ... n h (s d)", h=self.heads)
