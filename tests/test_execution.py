"""How a model runs: set from outside, on everything in it, without touching a parameter."""

import copy
import inspect
import pickle
import re
from collections import Counter
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evoattn import Backend, BackendError, ConfigError, EvoformerTrunk, Execution, attention, preset, set_execution
from evoattn.blocks.outer_product import OuterProductMean
from evoattn.blocks.pair import TriangleMultiplication
from evoattn.execution import Executable
from evoattn.ops import ATTENTION, Registry
from evoattn.ops.pairwise import OUTER_PRODUCT_MEAN
from evoattn.ops.triangle_update import IN_STEPS, LEAN, TRIANGLE_UPDATE, describe_update
from evoattn.primitives import GatedAttention, GlobalGatedAttention
from evoattn.stacks import EvoformerBlock, EvoformerStack, ExtraMSAStack
from evoattn.updates import update
from tests.stacks.cases import CONFIGS, build, outputs, representations


def trunk() -> EvoformerTrunk:
    return EvoformerTrunk(preset("tiny"))


def settings(model: nn.Module) -> set[Execution]:
    return {module.execution for module in model.modules() if isinstance(module, Executable)}


def test_reaches_every_op_block_and_stack() -> None:
    model = trunk()
    assert settings(model) == {Execution()}
    assert set_execution(model, backend="streaming", checkpoint=True) is model
    reached = [module for module in model.modules() if getattr(module, "execution", None) == Execution("streaming", checkpoint=True)]
    kinds = Counter(type(module) for module in reached)
    # 2 + 1 blocks with row and column attention and two triangles each; the extra block's column attention is global
    attentions = {GatedAttention: 11, GlobalGatedAttention: 1}
    assert kinds == attentions | {OuterProductMean: 3, TriangleMultiplication: 6, EvoformerBlock: 3, EvoformerStack: 1, ExtraMSAStack: 1}
    assert settings(trunk()) == {Execution()}


def test_settings_add_up() -> None:
    model = set_execution(set_execution(trunk(), checkpoint=True), backend="reference")
    assert settings(model) == {Execution("reference", checkpoint=True)}
    set_execution(model.evoformer, Execution(), backend="sdpa")
    assert settings(model.evoformer) == {Execution("sdpa")}
    assert settings(model) == {Execution("sdpa"), Execution("reference", checkpoint=True)}


def test_shown_and_kept() -> None:
    """In the repr where it is not the default; by copies and pickles."""
    model = trunk()
    assert "execution=" not in repr(model)
    set_execution(model, backend="streaming")
    shown = f"execution={Execution('streaming')}"
    assert all(shown in repr(module) for module in model.modules() if isinstance(module, Executable))
    assert settings(copy.deepcopy(model)) == settings(pickle.loads(pickle.dumps(model))) == {Execution("streaming")}


def test_not_part_of_a_checkpoint() -> None:
    model = trunk()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    set_execution(model, backend="streaming", checkpoint=True)
    after = model.state_dict()
    assert list(after) == list(before) == [name for name, _ in model.named_parameters()]
    assert all(torch.equal(after[name], x) for name, x in before.items())
    other = trunk()
    other.load_state_dict(after)
    assert settings(other) == {Execution()}


@pytest.mark.parametrize(("name", "calls"), [("monomer", 4), ("extra", 4), ("opm first", 4), ("appended", 7)])
def test_every_attention_runs_on_the_backend_asked_for(name: str, calls: int) -> None:
    """A backend of one's own is called for each attention; twice where pair features are further keys."""
    seen: list[int] = []

    def run(*inputs: Any) -> Any:
        seen.append(1)
        return ATTENTION.get("reference").run(*inputs)

    stack = build(CONFIGS[name])
    inputs = representations(stack.config)
    expected = outputs(set_execution(stack, backend="reference"), *inputs)
    got = outputs(set_execution(stack, backend=Backend("counting", run, why_not=lambda spec: [])), *inputs)
    assert len(seen) == calls * stack.config.n_blocks
    assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
    assert "counting" in repr(stack)


def test_triangle_update_and_outer_product_mean_run_on_the_backend_asked_for() -> None:
    """Each setting reaches its own op, and no other; in place the slices of a backend without steps come from one whole update."""
    stack = build(CONFIGS["monomer"])
    inputs = representations(stack.config)
    expected = outputs(stack, *inputs)
    for setting, op, calls in (("triangle_update", TRIANGLE_UPDATE, 2), ("outer_product_mean", OUTER_PRODUCT_MEAN, 1)):
        seen: list[int] = []

        def run(*inputs: Any, op: Registry = op, seen: list[int] = seen) -> Any:
            seen.append(1)
            return op.get("reference").run(*inputs)

        set_execution(stack, Execution(**{setting: Backend("counting", run, why_not=lambda spec: [])}))
        results = [outputs(stack, *inputs)]
        assert len(seen) == calls * stack.config.n_blocks
        with torch.no_grad():
            results.append(stack.run_(*(x.clone() for x in inputs)))
        assert len(seen) == 2 * calls * stack.config.n_blocks
        for result in results:
            for got, wanted in zip(result, expected, strict=True):
                torch.testing.assert_close(got, wanted)


def test_in_place_auto_takes_a_triangle_update_that_goes_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first that can run, if that one makes the update as a whole."""
    whole = Backend("whole", lambda *inputs: TRIANGLE_UPDATE.get("reference").run(*inputs), why_not=lambda spec: [])
    monkeypatch.setattr(TRIANGLE_UPDATE, "backends", [whole, *TRIANGLE_UPDATE.backends])
    block = TriangleMultiplication(8, 4, direction="outgoing")
    z = torch.randn(1, 5, 5, 8)
    assert TRIANGLE_UPDATE.select(describe_update(z, block.weights)) is whole
    assert block.prepare(z, None)[0] is IN_STEPS[LEAN]
    set_execution(block, triangle_update="whole")
    assert block.prepare(z, None)[0] is None


def test_backend_that_cannot_run_says_so() -> None:
    """Asked for by name through a model, it raises as it does in the op: nothing falls back."""
    stack = set_execution(build(CONFIGS["monomer"]), backend=Backend("picky", attention, why_not=lambda spec: ["it never runs"]))
    with pytest.raises(BackendError, match=r"(?s)backend 'picky' cannot run.*it never runs"):
        stack(*representations(stack.config))


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("arguments", "changes", "error", "words"),
    [
        ((), {"backends": "sdpa", "chunk": 4}, ConfigError, r"unknown setting backends, chunk; there are backend, triangle_update, outer"),
        ((), {"backend": "flash"}, BackendError, rf"no backend 'flash'; there are {', '.join(ATTENTION.names)}, and 'auto'"),
        ((), {"triangle_update": "sdpa"}, BackendError, r"triangle_update: there is no backend 'sdpa'; there are triton, cueq"),
        ((), {"outer_product_mean": 3}, ConfigError, r"outer_product_mean is 3; give 'auto', one of lean, reference, or a Backend"),
        ((), {"backend": None}, ConfigError, rf"backend is None; give 'auto', one of {', '.join(ATTENTION.names)}, or a Backend"),
        ((), {"checkpoint": "yes"}, ConfigError, r"checkpoint is 'yes'; it is False, 'updates', 'blocks' \(or True\), or 'both'"),
        ((), {"dtype": "fp16"}, ConfigError, r"dtype is 'fp16'; it is 'bf16'.*model\.double\(\)"),
        (("sdpa",), {}, ConfigError, r"'sdpa' is no Execution; name the setting: set_execution\(model, backend='streaming'\)"),
    ],
)
def test_errors_change_nothing(arguments: tuple[Any, ...], changes: dict[str, Any], error: type[Exception], words: str) -> None:
    model = set_execution(trunk(), backend="streaming")
    with pytest.raises(error, match=words):
        set_execution(model, *arguments, **changes)
    assert settings(model) == {Execution("streaming")}


def test_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Execution().backend = "sdpa"  # type: ignore[misc]


def test_update_is_a_residual() -> None:
    def block(x: Tensor, factor: float) -> Tensor:
        return factor * x

    x = torch.ones(2, 3, 4)
    torch.testing.assert_close(update(x, block, 2.0), 3 * torch.ones(2, 3, 4))
    torch.testing.assert_close(update(x, block, 2.0, drop=lambda delta: delta / 4), 1.5 * torch.ones(2, 3, 4))
    assert torch.equal(x, torch.ones(2, 3, 4))


def test_no_forward_takes_a_setting() -> None:
    """Nothing above the op takes a backend, or a word of how to run."""
    words = re.compile(r"backend|chunk|checkpoint|inplace|use_")
    for module in trunk().modules():
        if type(module).__module__.startswith("evoattn"):
            assert not [name for name in inspect.signature(module.forward).parameters if words.search(name)], type(module)
