"""A query with no key to attend to: what published systems give there, that ours gives 0, and that no valid number depends on which.

The rules are those of table "mask constant and form" of the systems' own code; each in place of ours is a mutant that the first test here
has to reject, and the second to accept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from evoattn import EvoformerBlock
from evoattn.primitives import attention as attention_modules
from evoattn.primitives import redraw_
from tests.helpers import Read, assert_golden
from tests.stacks.cases import CONFIGS, GOLDEN_BLOCKS, build, golden_block
from tests.stacks.families import REFERENCES
from tests.stacks.test_golden_families import compare_outputs

Rule = Callable[[Tensor, Tensor], Tensor]
RULES: dict[str, Rule] = {  # (logits with biases, mask) -> logits
    "-1e9 in place (AlphaFold 2)": lambda logits, mask: torch.where(mask, logits, -1e9),
    "the least number in place (AlphaFold 3's triangles)": lambda logits, mask: torch.where(mask, logits, torch.finfo(logits.dtype).min),
    "-1e9 added (OpenFold, OpenFold3, AlphaFold 3)": lambda logits, mask: logits + torch.where(mask, 0.0, -1e9),
    "-1e6 added (Boltz)": lambda logits, mask: logits + torch.where(mask, 0.0, -1e6),
    "-1e4 in place (MSA Transformer)": lambda logits, mask: torch.where(mask, logits, -1e4),
    "-inf in place (ESMFold's sequence)": lambda logits, mask: torch.where(mask, logits, -torch.inf),
    "no mask (Protenix, RosettaFold 3)": lambda logits, mask: logits,
}
FAMILIES = {  # a file with padding, and the rule of its system
    "af3_pairformer_block": "the least number in place (AlphaFold 3's triangles)",
    "af3_msa_stack_block": "-1e9 added (OpenFold, OpenFold3, AlphaFold 3)",
    "boltz2_pairformer_layer": "-1e6 added (Boltz)",
    "boltz2_msa_layer": "-1e6 added (Boltz)",
    "openfold3_pairformer_block": "-1e9 added (OpenFold, OpenFold3, AlphaFold 3)",
    "openfold3_msa_module_block": "-1e9 added (OpenFold, OpenFold3, AlphaFold 3)",
    "openfold3_pairformer_block_0.4.5": "-1e9 added (OpenFold, OpenFold3, AlphaFold 3)",
}


def following(rule: Rule) -> Callable[..., Tensor]:
    """Attention by another rule for masks."""

    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, biases: Sequence[Tensor] = (), mask: Tensor | None = None, scale: float | None = None, **_: Any
    ) -> Tensor:
        heads = max(q.shape[-2], v.shape[-2])
        k, v = (x.expand(*x.shape[:-2], heads, x.shape[-1]) for x in (k, v))
        logits = torch.einsum("...qhd,...khd->...hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
        for bias in biases:
            logits = logits + bias
        return torch.einsum("...hqk,...khd->...qhd", (logits if mask is None else rule(logits, mask)).softmax(-1), v)

    return attention


def attentions() -> dict[str, tuple[nn.Module, list[Tensor]]]:
    """Every kind of masked attention with inputs that are masked everywhere."""
    block, extra = (build(CONFIGS[name], torch.float32).blocks[0] for name in ("monomer", "extra"))
    pairformer, module = (redraw_(REFERENCES[name].build(), seed=1) for name in ("boltz2_pairformer_layer", "boltz2_msa_layer"))
    m, of_extra, z = torch.randn(3, 5, 32), torch.randn(3, 5, 16), torch.randn(5, 5, 16)
    single, wide = torch.randn(5, 40), torch.randn(5, 5, 24)
    no_rows, no_pairs, nobody = (torch.zeros(size, dtype=torch.bool) for size in ((3, 5), (5, 5), (5,)))
    assert isinstance(block, EvoformerBlock) and isinstance(extra, EvoformerBlock)
    return {
        "MSA row": (block.msa_row, [m, z, no_rows]),
        "MSA column": (block.msa_column, [m, no_rows]),
        "global column": (extra.msa_column, [of_extra, no_rows]),
        "starting node": (block.tri_attn_start, [z, no_pairs]),
        "ending node": (block.tri_attn_end, [z, no_pairs]),
        "single": (pairformer.get_submodule("single_attn"), [single, wide, nobody]),
        "pair-weighted averaging": (module.get_submodule("msa_average"), [m, wide, no_rows, no_pairs]),
    }


KINDS = list(attentions())


def assert_answers_with_nothing(kind: str) -> None:
    """The update is what the output layer makes of 0: its bias, or 0."""
    block, inputs = attentions()[kind]
    with torch.no_grad():
        got = block(*inputs)
    out = block.get_submodule("attn.out")
    assert isinstance(out, nn.Linear)
    expected = torch.zeros(got.shape[-1]) if out.bias is None else out.bias
    torch.testing.assert_close(got, expected.detach().expand_as(got), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fully_masked_row_gives_0(kind: str) -> None:
    assert_answers_with_nothing(kind)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_published_rule_is_another(kind: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a wrong rule for such rows does not go unseen."""
    monkeypatch.setattr(attention_modules, "attention", following(RULES[rule]))
    with pytest.raises(AssertionError, match="not close"):
        assert_answers_with_nothing(kind)


@pytest.mark.parametrize("name", FAMILIES)
def test_valid_positions_are_the_published_ones_by_either_rule(name: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, arrays = REFERENCES[name], read(name, "pad/out/")
    block = reference.load(reference.build(), arrays)
    inputs = [*reference.inputs(arrays), *reference.given_masks(arrays, "pad")]
    with torch.no_grad():
        ours = block(*inputs)
        compare_outputs(reference, arrays, "pad", list(ours))
        monkeypatch.setattr(attention_modules, "attention", following(RULES[FAMILIES[name]]))
        theirs = block(*inputs)
        compare_outputs(reference, arrays, "pad", list(theirs))
    assert any(not torch.allclose(a, b, atol=1e-3) for a, b in zip(ours, theirs, strict=True))  # elsewhere the rule does show


@pytest.mark.parametrize("name", GOLDEN_BLOCKS)
def test_alphafold2s_masked_positions_are_its_own_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are reproducible there too, which shows that nothing but the rule differs."""
    block, file = golden_block(name)
    inputs = [torch.from_numpy(file[f"in/{key}"]) for key in ("msa", "pair")]
    masks = [torch.from_numpy(file[f"pad/{key}_mask"]).bool() for key in ("msa", "pair")]
    with torch.no_grad():
        for _ in range(2):  # by our rule, then by AlphaFold 2's
            for key, got, mask in zip(("msa", "pair"), block(*inputs, *masks), masks, strict=True):
                assert_golden(key, got, file[f"pad/out/{key}"], mask.numpy())
            monkeypatch.setattr(attention_modules, "attention", following(RULES["-1e9 in place (AlphaFold 2)"]))
        assert_golden("msa", block(*inputs, *masks)[0], file["pad/out/msa"])
