"""Which backend each attention of a model takes at given sizes, and why; nothing is computed."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from evoattn.config import EvoformerConfig, MSATransformerConfig, TrunkConfig
from evoattn.ops import ATTENTION, Explanation, explain

STACKS = {"extra_stack": "extra-MSA stack", "evoformer": "Evoformer"}
"""The stacks of a trunk, in the order in which they run, and how they are called in words."""


@dataclass(frozen=True)
class Sizes:
    """Of the features of an alignment: rows of the MSA representation, rows of the extra-MSA stack, residues."""

    n_seq: int
    n_extra: int
    n_res: int


@dataclass(frozen=True)
class Call:
    """One kind of attention of a model: which stack it is in, the backend that runs it, and every reason against the others."""

    stack: str
    kind: str
    backend: str
    explanation: Explanation

    def __str__(self) -> str:
        return f"{self.stack}, {self.kind}\n{self.explanation}"


@dataclass(frozen=True)
class _Shapes:
    """Of q and k in one kind of attention, and of the bias where there is one."""

    kind: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    bias: tuple[int, ...] | None = None


def attention_calls(
    config: TrunkConfig | MSATransformerConfig,
    sizes: Sizes,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    arch: str | None = None,
    backend: str = "auto",
    gradients: bool = False,
) -> list[Call]:
    """Every kind of attention in the model, in the order in which it runs, for one alignment without padding.

    The shapes are those of whole calls; for inference a stack may make several, each of a slice of the leading axis.

    Pair features that enter as keys or values have an op of their own (:func:`evoattn.pair_attention`), which is not a matter of choice;
    they are left out here.

    Raises:
        BackendError: the backend asked for cannot run one of the calls; the message has its reasons.
    """
    calls = []
    for stack, shapes in _stacks(config, sizes):
        with torch.device("meta"):
            q, k = (torch.empty(shape, dtype=dtype, requires_grad=gradients) for shape in (shapes.q, shapes.k))
            biases = [] if shapes.bias is None else [torch.empty(shapes.bias, dtype=dtype, requires_grad=gradients)]
        explanation = explain(q, k, k, biases=biases, device=device, arch=arch)
        calls.append(Call(stack, shapes.kind, ATTENTION.select(explanation.spec, backend).name, explanation))
    return calls


def _stacks(config: TrunkConfig | MSATransformerConfig, sizes: Sizes) -> Iterator[tuple[str, _Shapes]]:
    """Every kind of attention with the stack that it is in, in words."""
    if isinstance(config, MSATransformerConfig):
        s, n, h = sizes.n_seq, 1 + sizes.n_res, config.n_head
        d = config.c_m // h
        yield "MSA Transformer", _Shapes("tied rows", (n, h, s * d), (n, h, s * d))
        yield "MSA Transformer", _Shapes("MSA column", (n, s, h, d), (n, s, h, d))
        return
    stacks = {"extra_stack": (config.extra, sizes.n_extra), "evoformer": (config.evoformer, sizes.n_seq)}
    for name, (stack, n_rows) in stacks.items():
        for shapes in [] if stack is None else _shapes(stack, n_rows, sizes.n_res):
            yield STACKS[name], shapes


def _shapes(c: EvoformerConfig, s: int, n: int) -> Iterator[_Shapes]:
    """What the blocks of a stack call attention with, for `s` rows and `n` residues. A test holds this to the calls they make."""
    h, d = c.n_head_msa_row, c.c_m // c.n_head_msa_row
    row = (s, n, h, d)
    yield _Shapes("MSA row", row, row, (1, h, n, n) if "bias" in c.msa_pair_as else None)
    h, d = c.n_head_msa_column, c.c_m // c.n_head_msa_column
    if c.msa_column == "global":
        yield _Shapes("MSA global column", (n, h, 1, d), (n, s, 1, d))
    else:
        yield _Shapes("MSA column", (n, s, h, d), (n, s, h, d))
    for node, h in (("starting", c.n_head_tri_start), ("ending", c.n_head_tri_end)):
        edges = (n, n, h, c.c_z // h)
        yield _Shapes(f"triangle ({node} node)", edges, edges, (1, h, n, n) if "bias" in c.triangle_pair_as else None)
