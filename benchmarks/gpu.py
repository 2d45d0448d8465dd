"""All paths of attention, the triangle update and whole blocks on one GPU: parity first, then time and peak memory, against the floors.

python -m benchmarks.gpu            writes benchmarks/results/gpu.json, in at most ten minutes

Each case is measured for every path that is installed and can run it; what could not run says why. What is left when the time is over is
listed as such. A path whose results are wrong is not timed.
"""

import argparse
import json
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import RESULTS, machine
from evoattn import EvoformerBlock, EvoformerConfig, PairformerBlock, PairformerConfig, attention
from evoattn.check import worst
from evoattn.files import new_file
from evoattn.ops import ATTENTION, explain
from evoattn.ops.layers import Linear, Norm
from evoattn.ops.triangle_update import TRIANGLE_UPDATE, TriangleWeights, explain_update, triangle_update
from evoattn.ops.verdicts import place_of
from evoattn.primitives import redraw_

HEADS, D, C = 4, 32, 128
LENGTHS = (256, 512, 1024, 2048)
N_SEQ = 512  # rows of the MSA representation
BLOCKS = 512  # residues of the whole blocks
PARITY = 256  # length at which gradients are compared
SHOWN = 2  # rows whose outputs are compared with float32 at every length
SECONDS = 1.0  # per case and path, beside the warm-up
RATES = {"H200": (989e12, 3.9e12), "H100": (989e12, 3.9e12), "A100": (312e12, 2.44e12)}
"""bfloat16 operations and exponentials per second: NVIDIA's data sheets; for the exponentials of Hopper Shah et al. 2024
(FlashAttention-3), for those of A100 16 per clock and multiprocessor."""

Run = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    """One attention: tensors for [rows, length, heads, d], a pair bias that the rows share, and a mask of keys."""

    name: str
    rows: int
    length: int

    def inputs(self, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        generator = torch.Generator(device).manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=dtype).requires_grad_()

        qkv = [draw(1, self.rows, self.length, HEADS, D) for _ in range(3)]
        mask = torch.rand(1, self.rows, 1, 1, self.length, generator=generator, device=device) < 0.9
        return [*qkv, draw(1, 1, HEADS, self.length, self.length), mask]

    def floors_ms(self, card: str) -> dict[str, float]:
        """What the card's matrix units and its exponentials need at least; a backward pass is 2.5 times the products, and the
        exponentials once more."""
        logits = self.rows * HEADS * self.length**2
        for name, (products, exponentials) in RATES.items():
            if name in card:
                forward = {"products": 4 * D * logits / products * 1e3, "exponentials": logits / exponentials * 1e3}
                return forward | {"products, both": 3.5 * forward["products"], "exponentials, both": 2 * forward["exponentials"]}
        return {}


def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """What every group writes first."""
    q, k, v = (x.transpose(-2, -3) for x in (q, k, v))
    logits = (q @ k.mT * D**-0.5 + bias).masked_fill(~mask, -1e4)
    return (torch.softmax(logits, dim=-1) @ v).transpose(-2, -3)


def trifast_path() -> Run | None:
    try:
        from trifast import triangle_attention
    except ImportError:
        return None

    def path(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        first = (x[0].permute(2, 0, 1, 3)[None].contiguous() for x in (q, k, v))  # [1, h, n, n, d]
        return triangle_attention(*first, bias[0], ~mask[0, :, 0, 0][None])[0].permute(1, 2, 0, 3)[None]

    return path


def attention_paths(inputs: list[Tensor]) -> tuple[dict[str, Run], dict[str, str]]:
    """The paths that can run, and why the others cannot."""
    q, k, v, bias, mask = inputs
    reasons = explain(q, k, v, biases=[bias], mask=mask).reasons
    against = {name: "; ".join(given) for name, given in reasons.items() if given}
    paths: dict[str, Run] = {"plain torch": plain, "torch.compile": torch.compile(plain)}

    def ours(name: str) -> Run:
        return lambda q, k, v, bias, mask: attention(q, k, v, biases=[bias], mask=mask, backend=name)

    paths |= {name: ours(name) for name in ATTENTION.names if name not in against and name != "reference"}
    trifast = trifast_path()
    if trifast and q.shape[1] == q.shape[2]:
        paths["trifast"] = trifast
    return paths, against


def attention_rows(device: torch.device, dtype: torch.dtype, problem: Problem, over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    floors = problem.floors_ms(place_of(device).card)
    for gradients in (False, True):
        inputs = problem.inputs(device, dtype)
        inputs = inputs if gradients else [x.detach() for x in inputs]
        paths, against = attention_paths(inputs)
        case = f"{problem.name}, {'forward and backward' if gradients else 'forward'}"
        held = sum(x.numel() * x.element_size() for x in inputs) + inputs[0].numel() * inputs[0].element_size()
        held += sum(x.numel() * x.element_size() for x in inputs if x.requires_grad)
        yield from measure(case, paths, inputs, gradients, device, over, lambda got, inputs=inputs: rows_differ(got, inputs),
                           {"floors_ms": floors, "inputs_outputs_gradients_mib": held / 2**20})  # fmt: skip
        yield from ({"case": case, "path": name, "why_not": why} for name, why in against.items())


def rows_differ(got: Tensor, inputs: list[Tensor]) -> str:
    """Compare some rows with float32; rows do not depend on each other."""
    q, k, v, bias, mask = (x.detach().float() if x.is_floating_point() else x for x in inputs)
    shown = slice(0, SHOWN)
    exact = attention(q[:, shown], k[:, shown], v[:, shown], biases=[bias], mask=mask[:, shown], backend="reference")
    return differ("output", got[:, shown], exact)


def differ(name: str, got: Tensor, exact: Tensor) -> str:
    """What is wrong with `got`, or nothing: eight roundings of the largest value are allowed."""
    allowed = 8 * torch.finfo(got.dtype).eps * exact.abs().max().item()
    error = worst(got, exact.detach().cpu().double())
    return "" if error <= allowed else f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def gradient_parity(device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Before anything is timed: all gradients of all paths against float32, at one length."""
    inputs = Problem("parity", 8, PARITY).inputs(device, dtype)
    wide = [x.detach().float().requires_grad_() if x.is_floating_point() else x for x in inputs]
    grad_out = torch.ones_like(inputs[0])
    exact = torch.autograd.grad(attention(*wide[:3], biases=[wide[3]], mask=wide[4], backend="reference"), wide[:4], grad_out.float())
    paths, _ = attention_paths(inputs)
    rows = []
    for name, path in paths.items():
        try:
            found = torch.autograd.grad(path(*inputs), inputs[:4], grad_out)
            wrong = [differ(f"gradient of {which}", grad, true) for which, grad, true in zip("qkvb", found, exact, strict=True)]
        except Exception as error:  # of a path that others wrote; it is told, and not timed
            wrong = [f"{type(error).__name__}: {error}".splitlines()[0]]
        rows.append({"case": "parity of gradients", "path": name, "wrong": "; ".join(filter(None, wrong))})
    return rows


def triangle_rows(device: torch.device, dtype: torch.dtype, n: int, over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * shape[-1] ** -0.5).to(dtype).requires_grad_()

    def layer(c_out: int) -> Linear:
        return Linear(draw(c_out, C), draw(c_out))

    def norm() -> Norm:
        return Norm(torch.ones(C, device=device, dtype=dtype).requires_grad_(), draw(C))

    weights = TriangleWeights(norm(), layer(2 * C), layer(2 * C), norm(), layer(C), layer(C))
    z = torch.randn(1, n, n, C, generator=generator, device=device, dtype=dtype).requires_grad_()
    against = {name: given for name, given in explain_update(z, weights).reasons.items() if given}

    def path(name: str) -> Run:
        return lambda z, *_: triangle_update(z, weights, incoming=False, backend=name)

    with torch.no_grad():
        exact = triangle_update(z.float(), TriangleWeights(*(type(part)(*(x.float() if isinstance(x, Tensor) else x for x in part))
                                                             for part in weights)), incoming=False, backend="lean")  # fmt: skip
    paths = {name: path(name) for name in TRIANGLE_UPDATE.names if name not in against}
    case = f"triangle update, n {n}, {C} channels"
    for gradients in (False, True):
        label = f"{case}, {'forward and backward' if gradients else 'forward'}"
        inputs = [z, *weights.tensors]
        yield from measure(label, paths, inputs, gradients, device, over, lambda got: differ("output", got, exact), {})
        yield from ({"case": label, "path": name, "why_not": "; ".join(given)} for name, given in against.items())


def block_rows(device: torch.device, dtype: torch.dtype, n_seq: int, n: int, over: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    evoformer, pairformer = EvoformerConfig(), PairformerConfig()
    blocks: dict[str, tuple[torch.nn.Module, list[tuple[int, ...]]]] = {
        f"Evoformer block, {n_seq} x {n}": (EvoformerBlock(evoformer), [(n_seq, n, evoformer.c_m), (n, n, evoformer.c_z)]),
        f"Pairformer block, n {n}": (PairformerBlock(pairformer), [(n, pairformer.c_s), (n, n, pairformer.c_z)]),
    }
    for name, (block, shapes) in blocks.items():
        inputs = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
        redraw_(block, 0).eval().to(device, dtype)
        compiled = torch.compile(block)
        with torch.no_grad():
            exact = block(*inputs)[1]
        paths: dict[str, Run] = {
            "eager": lambda *x, block=block: block(*x)[1],
            "torch.compile": lambda *x, compiled=compiled: compiled(*x)[1],
        }
        leaves = [x.clone().requires_grad_() for x in inputs]
        for gradients in (False, True):
            case = f"{name}, {'forward and backward' if gradients else 'forward'}"
            yield from measure(case, paths, leaves, gradients, device, over, lambda got, exact=exact: differ("z", got, exact), {})


def measure(
    case: str, paths: dict[str, Run], inputs: list[Tensor], gradients: bool, device: torch.device, over: Callable[[], bool],
    wrong: Callable[[Tensor], str], facts: dict[str, Any],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """A row for each path: what is wrong with its result, or its median milliseconds and peak memory above the inputs."""
    wanted = [x for x in inputs if x.requires_grad]

    def step(path: Run) -> Tensor:
        with torch.set_grad_enabled(gradients):
            out = path(*inputs)
            if gradients:
                torch.autograd.grad(out, wanted, torch.ones_like(out), allow_unused=True)
        return out.detach()

    for name, path in paths.items():
        row: dict[str, Any] = {"case": case, "path": name}
        if over():
            yield row | {"skipped": "the time was over"}
            continue
        try:
            row["wrong"] = wrong(step(path))  # also warms up
            if not row["wrong"]:
                row |= timed(lambda path=path: step(path), device) | facts
        except torch.OutOfMemoryError:
            row["why_not"] = "out of memory"
        except Exception as error:  # of a path that others wrote; it is told, and the rest goes on
            row["why_not"] = f"{type(error).__name__}: {error}".splitlines()[0]
        yield row


def timed(step: Callable[[], object], device: torch.device) -> dict[str, float]:
    on_card = device.type != "cpu"
    if on_card:
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
    times: list[float] = []
    while (sum(times) < SECONDS and len(times) < 50) or len(times) < 3:
        start = perf_counter()
        step()
        if on_card:
            torch.accelerator.synchronize()
        times.append(perf_counter() - start)
    found = {"milliseconds": 1e3 * median(times), "repeats": len(times)}
    return found | ({"peak_mib": (torch.accelerator.max_memory_allocated() - before) / 2**20} if on_card else {})


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=str(torch.accelerator.current_accelerator() or "cpu"))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--minutes", type=float, default=9.0, help="after which nothing new is started")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "gpu.json")
    chosen = parser.parse_args(arguments)
    device, dtype, end = torch.device(chosen.device), torch.bfloat16, perf_counter() + 60 * chosen.minutes

    def over() -> bool:
        return perf_counter() > end

    where = machine() | vars(place_of(device))
    rows = gradient_parity(device, dtype)
    save(chosen.out, where, rows)
    for n in chosen.lengths:  # from short to long: what the time does not suffice for is the largest
        for problem in (Problem(f"triangle attention, n {n}", n, n), Problem(f"MSA row attention, {N_SEQ} x {n}", N_SEQ, n)):
            rows += attention_rows(device, dtype, problem, over)
        rows += triangle_rows(device, dtype, n, over)
        rows += block_rows(device, dtype, N_SEQ, n, over) if n == BLOCKS else []
        torch._dynamo.reset()
        save(chosen.out, where, rows)  # each time, since a kernel of others may take the process down
    for row in rows:
        state = row.get("wrong") or row.get("why_not") or row.get("skipped", "right")
        print(f"{row['case']:<60} {row['path']:<16} {row['milliseconds']:.3f} ms" if "milliseconds" in row else
              f"{row['case']:<60} {row['path']:<16} {state}")  # fmt: skip
    return rows


def save(out: pathlib.Path, where: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    out.parent.mkdir(exist_ok=True)
    with new_file(out) as temporary:
        temporary.write_text(json.dumps({"where": where, "heads": HEADS, "d": D, "dtype": "bfloat16", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
