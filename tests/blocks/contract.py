"""What every block is held to. A test file names its cases, and inherits the tests."""

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from evoattn import ConfigError, ShapeError, explain
from evoattn.blocks import slices
from tests.blocks.common import AXES, WIDTH, Case, Results, assert_rule, assert_same, loop_over_batch, padded, places

TOKENS, BIAS = torch.zeros(1, 2, 1, 4), torch.zeros(1, 1, 2, 2, requires_grad=True)
BACKENDS = [name for name, against in explain(TOKENS, TOKENS, TOKENS, biases=[BIAS]).reasons.items() if not against]


class BlockTests:
    """Tests of one block, each run for all `cases` of the class (see conftest.py)."""

    cases: ClassVar[Sequence[Case]]

    @pytest.mark.parametrize("hidden", ["nothing", "some", "everything"])
    def test_equals_loops(self, case: Case, hidden: str) -> None:
        masks = case.draw_masks() if hidden == "some" else case.no_masks(hidden == "nothing")
        given = [None] * len(masks) if hidden == "nothing" else masks
        inputs, cotangent = case.draw(), case.cotangent()
        assert_same(case.evaluate(case.block(), inputs, given, cotangent), case.evaluate_oracle(inputs, masks, cotangent))

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_backend_in_float32(self, case: Case, backend: str) -> None:
        block = case.block(torch.float32, backend)
        got = case.evaluate(block, case.draw(3, dtype=torch.float32), case.draw_masks(3), case.cotangent(3, dtype=torch.float32))
        assert_rule(got, plain=loops(case, torch.float32), truth=loops(case, torch.float64))

    def test_gradients_reach_every_parameter(self, case: Case) -> None:
        assert_all_reached(case, case.evaluate(case.block(), case.draw(), case.draw_masks(), case.cotangent()))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("fill", [torch.nan, torch.inf, "huge"])
    def test_padding_changes_nothing(self, case: Case, fill: float | str, dtype: torch.dtype) -> None:
        """`huge` is finite, but a layer norm squares it, which overflows in float32."""
        value = 1e30 if fill == "huge" else fill
        block, inputs, masks, cotangent = case.block(dtype), case.draw(dtype=dtype), case.draw_masks(), case.cotangent(dtype=dtype)
        truth = case.evaluate(block, inputs, masks, cotangent)
        wide = [padded(name, x, value) for name, x in zip(case.inputs, inputs, strict=True)]
        wide_masks = [padded(name, mask, False) for name, mask in zip(case.masks, masks, strict=True)]
        got = case.evaluate(block, wide, wide_masks, padded(case.output, cotangent, 0.0))
        assert got["output"].isfinite().all()
        for name, axes in [("output", case.output), *((f"gradient of {name}", name) for name in case.inputs)]:
            whole, got[name] = got[name], got[name][places(axes)]
            if name != "output":
                assert torch.equal(whole, padded(axes, got[name], 0.0)), f"{name} is not zero at padded places"
        assert_same(got, truth)

    @pytest.mark.parametrize("fill", [torch.nan, torch.inf, -torch.inf])
    def test_nonfinite_at_masked_places_counts_as_zero(self, case: Case, fill: float) -> None:
        inputs, masks = case.draw(), case.draw_masks()
        mask_of = {AXES[name]: mask.unsqueeze(-1) for name, mask in zip(case.masks, masks, strict=True)}
        results = []
        for value in (0.0, fill):
            filled = [x.masked_fill(~mask_of[AXES[name]], value) for name, x in zip(case.inputs, inputs, strict=True)]
            results.append(case.evaluate(case.block(), filled, masks, case.cotangent()))
        for name in case.inputs:  # a zero is a query like any other, what was hidden has no gradient
            results[0][f"gradient of {name}"].masked_fill_(~mask_of[AXES[name]], 0.0)
        for name, truth in results[0].items():
            assert truth.isfinite().all()
            assert torch.equal(results[1][name], truth), name

    @pytest.mark.parametrize("batch", [(3,), (2, 2), (1, 3)])
    def test_batch_equals_loop(self, case: Case, batch: tuple[int, ...]) -> None:
        block, given = case.block(), (case.draw(*batch), case.draw_masks(*batch), case.cotangent(*batch))
        assert_same(case.evaluate(block, *given), loop_over_batch(functools.partial(case.evaluate, block), *given, rank=len(batch)))

    @pytest.mark.parametrize("batch", [(0,), (2, 0)])
    def test_empty_batch(self, case: Case, batch: tuple[int, ...]) -> None:
        inputs, cotangent = case.draw(*batch), case.cotangent(*batch)
        got = case.evaluate(case.block(), inputs, case.draw_masks(*batch), cotangent)
        assert [got["output"].shape, *(got[f"gradient of {name}"].shape for name in case.inputs)] == [x.shape for x in (cotangent, *inputs)]
        assert all(torch.equal(value, torch.zeros_like(value)) for value in got.values())

    def test_strides_do_not_matter(self, case: Case) -> None:
        """Inputs and masks with transposed strides, and shared along the batch (stride 0)."""
        block, inputs, masks, cotangent = case.block(), case.draw(), case.draw_masks(), case.cotangent(2)
        copied = ([torch.stack([x, x]) for x in group] for group in (inputs, masks))
        truth = case.evaluate(block, *copied, cotangent)
        turned = [x.mT.contiguous().mT.expand(2, *x.shape) for x in inputs]
        turned_masks = [(x.mT.contiguous().mT if x.dim() > 1 else x).expand(2, *x.shape) for x in masks]
        assert all(not x.is_contiguous() for x in [*turned, *turned_masks])
        assert_same(case.evaluate(block, turned, turned_masks, cotangent.mT.contiguous().mT), truth)

    def test_inference(self, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without gradients temporaries are reused, and long inputs gone through row by row: same output, inputs untouched."""
        monkeypatch.setattr(slices, "AT_ONCE", 1)
        block, inputs, masks = case.block(), case.draw(2), case.draw_masks(2)
        before = [x.clone() for x in (*inputs, *masks)]
        with torch.no_grad():
            out = block(*inputs, *masks)
        assert all(torch.equal(x, y) for x, y in zip((*inputs, *masks), before, strict=True))
        assert_same({"output": out}, {"output": block(*inputs, *masks).detach()})

    def test_inputs_are_not_changed(self, case: Case) -> None:
        inputs, masks = [x.fill_(torch.inf) for x in case.draw()], case.draw_masks()
        before = [x.clone() for x in (*inputs, *masks)]
        case.block()(*inputs, *masks)
        assert all(torch.equal(x, y) for x, y in zip((*inputs, *masks), before, strict=True))

    def test_wrong_features_are_refused(self, case: Case, no_type_checks: None) -> None:
        owner, inputs = type(case.block()).__name__, case.draw()
        for index, name in enumerate(case.inputs):
            x = inputs[index]
            wrong = {
                "one channel more": torch.cat([x, x[..., :1]], -1),
                "axes missing": x[(0,) * len(AXES[name])],
                "integers": x.long(),
            }
            if AXES[name] == "nn":
                wrong["not square"] = x[:-1]
            for what, bad in wrong.items():
                message = refusal(case, [*inputs[:index], bad, *inputs[index + 1 :]], what)
                said = str(bad.dtype) if what == "integers" else str(tuple(bad.shape))
                assert owner in message and said in message and str(WIDTH[name]) in message, f"{name}, {what}: {message}"

    def test_wrong_masks_are_refused(self, case: Case, no_type_checks: None) -> None:
        owner, inputs, masks = type(case.block()).__name__, case.draw(), case.no_masks(True)
        for index, mask in enumerate(masks):
            wrong = {
                "float": mask.double(),
                "one entry more": torch.cat([mask, mask[:1]]),
                "a batch axis too many": mask.unsqueeze(0),
                "an axis missing": mask[0],
                "an axis of size 1": mask[:1],
            }
            for what, bad in wrong.items():
                message = refusal(case, [*inputs, *masks[:index], bad, *masks[index + 1 :]], what)
                said = "torch.float64" if what == "float" else str(tuple(bad.shape))
                assert owner in message and said in message, f"{case.masks[index]}, {what}: {message}"
                assert "mask.bool()" in message if what == "float" else str(tuple(mask.shape)) in message, message


class TwoInputTests:
    """Of a block that updates one representation by the pair representation."""

    def test_inputs_that_do_not_fit_each_other_are_refused(self, case: Case, no_type_checks: None) -> None:
        owner, (x, z) = type(case.block()).__name__, case.draw()
        for what, first, second in (
            ("another N_res", x, z[:-1, :-1]),
            ("batch axis of one only", x.unsqueeze(0), z),
            ("different batches", x.expand(2, *x.shape), z.expand(3, *z.shape)),
        ):
            message = refusal(case, [first, second], what)
            assert owner in message and str(tuple(first.shape)) in message and str(tuple(second.shape)) in message, f"{what}: {message}"


class SlicedTests:
    """Of a block that can be run slice by slice (:class:`evoattn.execution.SlicedBlock`)."""

    @pytest.mark.parametrize("length", [1, 4])
    @pytest.mark.parametrize("masked", [True, False])
    def test_slices_equal_the_whole(self, case: Case, length: int, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Slices of four leave a shorter one at the end. What all slices need is prepared row by row, too."""
        monkeypatch.setattr(slices, "AT_ONCE", 1)
        block, inputs = case.block(), case.draw(2)
        masks = case.draw_masks(2) if masked else [None] * len(case.masks)
        updated = inputs[0] if case.output == case.inputs[0] else case.cotangent(2)
        others = inputs[1:] if case.output == case.inputs[0] else inputs
        with torch.no_grad():
            whole = block(*inputs, *masks)
            context = block.prepare(updated, *others, *masks)
            pieces = []
            for start in range(0, updated.shape[block.slices], length):
                part = slice(start, min(start + length, updated.shape[block.slices]))
                pieces.append(block.delta(updated.narrow(block.slices, part.start, part.stop - part.start), part, context))
        assert_same({"output": torch.cat(pieces, dim=block.slices)}, {"output": whole})


@functools.cache
def loops(case: Case, dtype: torch.dtype) -> Results:
    """The oracle on three draws; several, since the error of a single one is a matter of luck."""
    return loop_over_batch(case.evaluate_oracle, case.draw(3, dtype=dtype), case.draw_masks(3), case.cotangent(3, dtype=dtype), rank=1)


def assert_all_reached(case: Case, results: Results) -> None:
    """Everything is finite, and no gradient is zero but those that have to be."""
    for name, value in results.items():
        assert value.isfinite().all(), f"{name} is not finite"
        reached, expected = value.abs().max().item() > 1e-6, name.removeprefix("gradient of ") not in case.without_gradient
        assert reached == expected, f"{name} is {'' if reached else 'not '}reached"


def refusal(case: Case, arguments: list[Tensor], what: str) -> str:
    """The message of the ShapeError that the block raises."""
    try:
        case.block()(*arguments)
    except ShapeError as error:
        return str(error)
    raise AssertionError(f"{case.name} took {what}")


def transparent(block: nn.Module) -> nn.Module:
    """An attention block of one head that averages its inputs as they are: no norm, logits 0, values and output the identity, gate open."""
    block.norm = nn.Identity()
    for layer in (block.attn.q, block.attn.k):
        layer.weight.data.zero_()
    for layer in (block.attn.v, block.attn.out):
        layer.weight.data = torch.eye(len(layer.weight))
    block.attn.gate.bias.data.fill_(40.0)
    return block


def ramp(rows: int, columns: int) -> Tensor:
    """x[i, j] = 10 i + j in channel 0, nothing in channel 1."""
    x = torch.zeros(rows, columns, 2)
    x[..., 0] = 10.0 * torch.arange(rows).unsqueeze(1) + torch.arange(columns)
    return x


def assert_refused(build: Callable[[], object], words: list[str]) -> None:
    """`build` raises a ConfigError that says all the words."""
    with pytest.raises(ConfigError) as caught:
        build()
    assert all(word in str(caught.value) for word in words), str(caught.value)


class PairAsTests:
    """Pair features as bias, keys and values, in every mix."""

    mixes: ClassVar[Sequence[Case]]

    def test_every_mix_equals_loops(self, mix: Case) -> None:
        inputs, masks, cotangent = mix.draw(), mix.draw_masks(), mix.cotangent()
        got = mix.evaluate(mix.block(), inputs, masks, cotangent)
        assert_same(got, mix.evaluate_oracle(inputs, masks, cotangent))
        assert_all_reached(mix, got)

    def test_every_mix_is_another_function(self) -> None:
        outputs = [mix.block()(*mix.draw(), *mix.draw_masks()) for mix in self.mixes]
        for index, out in enumerate(outputs):
            assert all((out - other).abs().max() > 1e-3 for other in outputs[:index])


PAIR_AS = [
    (tuple(word for word, on in zip(("bias", "keys", "values"), (bias, keys, values), strict=True) if on), "relative")
    for bias in (True, False) for keys in (True, False) for values in (True, False)
] + [(("keys", "values"), "appended"), (("bias", "keys", "values"), "appended")]  # fmt: skip


def mixes_of(
    make: Callable[..., nn.Module], oracle: Callable[..., Tensor], inputs: tuple[str, ...], masks: tuple[str, ...], output: str
) -> list[Case]:
    """A case for every way in which pair features can enter."""
    cases = []
    for pair_as, mode in PAIR_AS:
        built = functools.partial(make, pair_as=pair_as, pair_mode=mode)
        name = f"{mode} {'+'.join(pair_as) or 'nothing'}"
        looped = functools.partial(oracle, appended=mode == "appended")
        no_gradient: tuple[str, ...] = ()
        if len(inputs) == 2 and mode == "relative" and "values" not in pair_as:
            no_gradient = ("pair_norm.bias",) if pair_as else ("z",)  # it adds one number to all logits of a query
        cases.append(Case(name, built, looped, inputs, masks, output, no_gradient))
    return cases


def published_and_all(mixes: list[Case]) -> list[Case]:
    """Pair features as published, and as everything, in both modes."""
    return [mix for mix in mixes if mix.name == "relative bias" or mix.name.endswith("bias+keys+values")]
