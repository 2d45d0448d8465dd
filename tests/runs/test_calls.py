"""The shapes that a run and `evoattn explain` speak of are those of the calls that the blocks make."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from evoattn.config import PRESETS, MSATransformerConfig, TrunkConfig
from evoattn.errors import BackendError
from evoattn.io import make_features
from evoattn.model import EvoformerTrunk
from evoattn.ops import explain
from evoattn.primitives import attention as modules
from evoattn.primitives.capture import ATTENTION_MODULES
from evoattn.runs import Sizes, attention_calls
from evoattn.stacks import MSATransformer
from tests.runs.cases import alignment

SIZES = Sizes(n_seq=3, n_extra=2, n_res=7)


def real_calls(config: TrunkConfig, *, gradients: bool) -> list[str]:
    """What the first block of each stack really calls attention with, in words."""
    model = EvoformerTrunk(config)
    seen: list[str] = []

    def look(q: Tensor, k: Tensor, *, biases: Sequence[Tensor] = (), **_: Any) -> None:
        seen.append(str(explain(q, k, k, biases=biases).spec))

    for name, module in model.named_modules():
        if isinstance(module, ATTENTION_MODULES) and ".blocks.0." in name:
            module.look = look
    with torch.set_grad_enabled(gradients):
        model(make_features(alignment(n_seq=5, n_res=SIZES.n_res), max_seqs=SIZES.n_seq, max_extra=SIZES.n_extra))
    return seen


@pytest.mark.parametrize("gradients", [False, True])
def test_shapes_are_those_of_the_blocks(gradients: bool) -> None:
    config = PRESETS["tiny"]
    calls = attention_calls(config, SIZES, gradients=gradients)
    assert [str(call.explanation.spec) for call in calls] == real_calls(config, gradients=gradients)


def test_shapes_are_those_of_the_msa_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    config = MSATransformerConfig(n_blocks=1, c_m=12, n_head=3, c_hidden_transition=8, c_row_position=12)
    seen: list[str] = []

    def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: None = None, **_: Any) -> Tensor:
        seen.append(str(explain(q, k, v).spec))
        return v

    monkeypatch.setattr(modules, "attention", attention)
    with torch.no_grad():
        MSATransformer(config).eval()(torch.randint(4, 24, (SIZES.n_seq, 1 + SIZES.n_res)), contacts=False)
    calls = attention_calls(config, SIZES)
    assert [str(call.explanation.spec) for call in calls] == seen
    assert [(call.stack, call.kind) for call in calls] == [("MSA Transformer", "tied rows"), ("MSA Transformer", "MSA column")]


def test_every_kind_has_a_name() -> None:
    calls = attention_calls(PRESETS["af2"], SIZES)
    assert [(call.stack, call.kind) for call in calls] == [
        ("extra-MSA stack", "MSA row"),
        ("extra-MSA stack", "MSA global column"),
        ("extra-MSA stack", "triangle (starting node)"),
        ("extra-MSA stack", "triangle (ending node)"),
        ("Evoformer", "MSA row"),
        ("Evoformer", "MSA column"),
        ("Evoformer", "triangle (starting node)"),
        ("Evoformer", "triangle (ending node)"),
    ]


def test_large_sizes_cost_nothing_and_cuda_needs_no_gpu() -> None:
    """[16384, 16384] logits for 8,192 rows would be 70 TB."""
    calls = attention_calls(PRESETS["af2"], Sizes(n_seq=8192, n_extra=8192, n_res=16384), device="cuda", gradients=True)
    assert all("on cuda" in str(call.explanation.spec) for call in calls)
    row = next(call for call in calls if call.kind == "MSA row")
    assert row.explanation.reasons["sdpa"], "sdpa has no bias gradient on cuda"
    assert row.backend != "sdpa"


def test_a_backend_asked_for_by_name_is_the_one() -> None:
    assert {call.backend for call in attention_calls(PRESETS["tiny"], SIZES, backend="reference")} == {"reference"}
    with pytest.raises(BackendError, match=r"sdpa.*cannot run"):
        attention_calls(PRESETS["tiny"], SIZES, backend="sdpa", dtype=torch.float64, device="cuda")
