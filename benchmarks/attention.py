"""The one attention on a CPU against plain torch that materialises its logits: time and peak memory.

python -m benchmarks.attention
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.common import check, interleaved, peak_mib, report
from evoattn import TriangleAttention, attention, set_execution
from evoattn.primitives import redraw_

ROWS, N, HEADS, D = 128, 256, 8, 32


def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """What every group writes first."""
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    return (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5 + bias, dim=-1) @ v).transpose(-2, -3)


def ours(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, backend: str = "auto") -> Tensor:
    return attention(q, k, v, biases=[bias], backend=backend)


PATHS = {"plain": plain, "sdpa": lambda *x: ours(*x, backend="sdpa"), "streaming": lambda *x: ours(*x, backend="streaming")}


def inputs(grad: bool, n: int = N) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(1, ROWS, n, HEADS, D)] * 3 + [(1, 1, HEADS, n, n)]
    return [torch.randn(shape).requires_grad_(grad) for shape in shapes]


def train(path: str, tensors: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(PATHS[path](*tensors).square().sum(), tensors)


def memory_forward(path: str) -> Iterator[None]:
    tensors = inputs(grad=False)
    PATHS[path](*inputs(grad=False, n=4))  # loads the libraries, which are not the path's memory
    yield
    PATHS[path](*tensors)


def memory_train(path: str) -> Iterator[None]:
    tensors = inputs(grad=True)
    train(path, inputs(grad=True, n=4))
    yield
    train(path, tensors)


def forward_row() -> dict[str, object]:
    tensors = inputs(grad=False)
    errors = {name: check(name, path(*tensors), plain(*tensors)) for name, path in PATHS.items()}
    measured = interleaved({name: lambda path=path: path(*tensors) for name, path in PATHS.items()})
    case = f"forward [1, {ROWS}, {N}, {HEADS}, {D}] pair bias"
    return {"case": case, "error": max(errors.values()), **ratios(measured, memory_forward)}


def train_row() -> dict[str, object]:
    tensors = inputs(grad=True)
    errors = [check(name, a, b) for name in PATHS for a, b in zip(train(name, tensors), train("plain", tensors), strict=True)]
    measured = interleaved({name: lambda name=name: train(name, tensors) for name in PATHS})
    case = f"forward + backward [1, {ROWS}, {N}, {HEADS}, {D}] pair bias with gradient"
    return {"case": case, "error": max(errors), **ratios(measured, memory_train)}


def ratios(measured: dict, memory) -> dict[str, object]:
    seconds = measured["seconds"]
    peaks = {name: peak_mib(memory, name) for name in seconds}
    row: dict[str, object] = {"gemm_gflops": measured["gemm_gflops"], "steady": measured["steady"]}
    for name in seconds:
        row |= {f"{name}_s": seconds[name], f"{name}_peak_mib": peaks[name]}
    for name in seconds.keys() - {"plain"}:
        row |= {f"{name}_faster": seconds["plain"] / seconds[name], f"{name}_memory": peaks[name] / peaks["plain"]}
    return row


def triangle_row() -> dict[str, object]:
    block = redraw_(TriangleAttention(128, 4, node="starting"), 0).eval()
    z = torch.randn(1, N, N, 128)

    def run(backend: str) -> Tensor:
        with torch.inference_mode():
            return set_execution(block, backend=backend)(z)

    paths = {"plain": "reference", "ours": "auto"}
    error = check("triangle attention", run("auto"), run("reference"))
    measured = interleaved({name: lambda backend=backend: run(backend) for name, backend in paths.items()})
    seconds = measured["seconds"]
    return {
        "case": f"triangle attention block, N_res {N}, c_z 128, 4 heads, forward", "error": error,
        "gemm_gflops": measured["gemm_gflops"], "steady": measured["steady"],
        "plain_s": seconds["plain"], "ours_s": seconds["ours"], "ours_faster": seconds["plain"] / seconds["ours"],
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(2)
    report("attention", [forward_row(), train_row(), triangle_row()])
