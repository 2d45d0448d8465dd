"""What tests/ops/test_compile.py runs in a process of its own, where the annotations are not checked: the check cannot be compiled.

``python -m tests.ops.compiled`` prints a line for each thing that has held.
"""

import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from evoattn import Backend, EvoformerBlock, MSARowAttention, PairformerBlock, PairformerConfig, PairWeightedAveraging, attention, preset
from evoattn.ops import ATTENTION, flex, streaming
from evoattn.primitives import redraw_

OWN = Backend("own", ATTENTION.get("reference").run, why_not=lambda spec: [])


def inputs() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, length, 2, 8, generator=generator) for length in (5, 7, 7))
    tensors = {"q": q, "k": k, "v": v, "bias": torch.randn(2, 1, 2, 5, 7, generator=generator)}
    mask = torch.rand(2, 3, 1, 1, 7, generator=generator) < 0.7
    mask[0, 0] = False
    return {name: x.requires_grad_() for name, x in tensors.items()} | {"mask": mask}


def call(backend: str | Backend, return_lse: bool, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    got = attention(q.sin(), k, v, biases=[bias], mask=mask, backend=backend, return_lse=return_lse)
    return got[0].square().sum() + got[1].masked_fill(got[1].isinf(), 0.0).square().sum() if return_lse else got.square().sum()


def same_compiled(backend: str | Backend, return_lse: bool) -> None:
    """One graph, the same result, the same gradients."""
    torch._dynamo.reset()
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    results = []
    for function in (call, compiled):
        x = inputs()
        loss = function(backend, return_lse, **x)
        results.append([loss, *torch.autograd.grad(loss, [tensor for tensor in x.values() if tensor.requires_grad])])
    for plain, mine in zip(*results, strict=True):
        torch.testing.assert_close(mine, plain)
    print("attention", backend if isinstance(backend, str) else "of one's own", "with log-sum-exp" if return_lse else "")


def forward_pass_is_not_run_again() -> None:
    """The backward pass takes over the output and the log-sum-exp."""
    torch._dynamo.reset()
    calls: list[str] = []
    forward = streaming.forward

    def counted(problem: streaming.Problem) -> Any:
        calls.append("forward")
        return forward(problem)

    streaming.forward = counted
    x = inputs()
    torch.compile(call, backend="aot_eager", fullgraph=True)("streaming", False, **x).backward()
    streaming.forward = forward
    assert calls == ["forward"] and x["bias"].grad is not None, calls
    print("one forward pass")


def whole_block(name: str, block: torch.nn.Module, *tensors: Tensor) -> None:
    """No graph break, forward and backward."""
    torch._dynamo.reset()
    redraw_(block, 0).eval()
    expected, got = block(*tensors), torch.compile(block, backend="eager", fullgraph=True)(*tensors)
    torch.testing.assert_close(got, expected)
    total = sum(x.sum() for x in (got if isinstance(got, tuple) else (got,)))
    grads = torch.autograd.grad(total, list(block.parameters()), allow_unused=True)
    assert all(grad is None or grad.isfinite().all() for grad in grads)
    print("block", name)


def main() -> None:
    torch.set_num_threads(1)
    for backend, return_lse in (("auto", True), ("streaming", False), (OWN, True)):
        same_compiled(backend, return_lse)
    forward_pass_is_not_run_again()
    x = inputs()
    operator = torch.ops.evoattn.attention.default
    torch.library.opcheck(operator, (x["q"], x["k"], x["v"], [x["bias"]], x["mask"], 0.3, "auto", True, True, True))
    print("opcheck")
    config = preset("tiny").evoformer
    rows, columns = torch.rand(3, 1) < 0.8, torch.rand(5) < 0.8
    m, z = torch.randn(3, 5, config.c_m), torch.randn(5, 5, config.c_z)
    whole_block("Evoformer", EvoformerBlock(config), m, z, rows & columns, columns[:, None] & columns)
    whole_block("Pairformer", PairformerBlock(PairformerConfig()), torch.randn(5, 384), torch.randn(5, 5, 128))
    whole_block("pair features as keys and values", MSARowAttention(16, 8, 2, pair_as=("keys", "values")), m[..., :16], z[..., :8])
    whole_block("pair-weighted averaging", PairWeightedAveraging(16, 8, 2, d_head=4), m[..., :16], z[..., :8])
    as_torch_has_it()


def as_torch_has_it() -> None:
    """The adapter to flex_attention with torch's own function, not compiled; on a CPU it has no gradients."""
    flex.compiled = lambda: flex_attention  # type: ignore[assignment]
    anywhere = Backend("flex", flex.run, why_not=lambda spec: [])
    x = {name: tensor.detach() for name, tensor in inputs().items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        got, expected = (
            attention(x["q"], x["k"], x["v"], biases=[x["bias"]], mask=x["mask"], backend=backend, return_lse=True)
            for backend in (anywhere, "reference")
        )
    torch.testing.assert_close(got, expected)
    print("flex_attention")


if __name__ == "__main__":
    main()
