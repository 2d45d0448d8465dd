"""capture_attention(): the maps equal a softmax by hand, whatever backend runs, and the model is left as it was."""

import pytest
import torch
from torch import Tensor, nn

from evoattn.errors import ConfigError, ShapeError
from evoattn.execution import set_execution
from evoattn.primitives import GatedAttention, GlobalGatedAttention, MultiHeadAttention, capture_attention, redraw_


class TwoBlocks(nn.Module):
    """Names as in a stack: blocks.0.row.attn, blocks.1.column.attn, ..."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"row": nn.ModuleDict({"attn": GatedAttention(8, 2)}), "column": nn.ModuleDict({"attn": GatedAttention(8, 4)})})
            for _ in range(2)
        )

    def forward(self, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block["row"]["attn"](x, biases=[bias], mask=mask)
            x = x + block["column"]["attn"](x.transpose(1, 2)).transpose(1, 2)
        return x


@pytest.fixture
def model() -> nn.Module:
    return redraw_(TwoBlocks(), seed=1).double()


@pytest.fixture
def inputs() -> tuple[Tensor, Tensor, Tensor]:
    x, bias = torch.randn(2, 3, 5, 8, dtype=torch.float64), torch.randn(2, 1, 2, 5, 5, dtype=torch.float64)
    mask = torch.rand(2, 3, 1, 1, 5) < 0.7
    mask[..., 0] = True
    return x, bias, mask


def by_hand(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    weights = torch.exp(logits) if mask is None else torch.exp(logits) * mask
    return weights / weights.sum(-1, keepdim=True)


def projected(layer: nn.Linear, x: Tensor, heads: int) -> Tensor:
    """[*batch, length, c] -> [*batch, h, length, d]."""
    return (x @ layer.weight.T).unflatten(-1, (heads, -1)).transpose(-2, -3)


def test_row_attention(model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    x, bias, mask = inputs
    with capture_attention(model, ["blocks.0.row"], index=2) as maps:
        model(*inputs)
    attn = model.blocks[0]["row"]["attn"]
    row = x[:, 2]
    expected = by_hand(projected(attn.q, row, 2) @ projected(attn.k, row, 2).mT / 2 + bias[:, 0], mask[:, 2])
    assert list(maps) == ["blocks.0.row.attn"]
    torch.testing.assert_close(maps["blocks.0.row.attn"], expected)


@pytest.mark.parametrize("backend", ["sdpa", "streaming", "reference"])
def test_the_same_maps_whatever_runs(backend: str, model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """And looking changes nothing, be it with gradients or without."""
    unseen = model(*inputs)
    with capture_attention(model) as expected:
        assert torch.equal(model(*inputs), unseen)
    set_execution(model, backend=backend)
    with torch.no_grad(), capture_attention(model) as maps:
        torch.testing.assert_close(model(*inputs), unseen)
    assert len(maps) == 4 and maps.keys() == expected.keys()
    for name in maps:
        assert not maps[name].requires_grad
        torch.testing.assert_close(maps[name], expected[name])


def test_choice_of_layers_heads_and_index(model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    def names(layers: list[str] | None) -> list[str]:
        with capture_attention(model, layers) as maps:
            model(*inputs)
        return sorted(maps)

    assert names(["*row*"]) == ["blocks.0.row.attn", "blocks.1.row.attn"]
    assert names(["blocks.1.column", "blocks.0.row.attn"]) == ["blocks.0.row.attn", "blocks.1.column.attn"]
    assert len(names(None)) == 4
    with capture_attention(model, ["blocks.1.column"], index=-1) as everything:
        model(*inputs)
    with capture_attention(model, ["blocks.1.column"], heads=[3, 0], index=4) as maps:
        model(*inputs)
    assert maps["blocks.1.column.attn"].shape == (2, 2, 3, 3)
    torch.testing.assert_close(maps["blocks.1.column.attn"], everything["blocks.1.column.attn"][:, [3, 0]])


def test_only_inside_the_with(model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    with pytest.raises(ZeroDivisionError), capture_attention(model) as maps:
        model(*inputs)
        _ = 1 / 0
    assert len(maps) == 4
    maps.clear()
    model(*inputs)
    assert not maps and all(module.look is None for module in model.modules() if isinstance(module, MultiHeadAttention))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_global_attention(backend: str) -> None:
    module = redraw_(GlobalGatedAttention(8, 2), seed=1).double()
    set_execution(module, backend=backend)
    x, mask = torch.randn(3, 5, 8, dtype=torch.float64), torch.rand(3, 5) < 0.7
    mask[:, 0] = True
    with capture_attention(module, index=1) as maps:
        module(x, mask)
    q = (module.q.weight @ x[1][mask[1]].mean(0)).unflatten(0, (2, 4))
    expected = by_hand(q @ (x[1] @ module.k.weight.T).T / 2, mask[1])[:, None]
    torch.testing.assert_close(maps[""], expected)
    with capture_attention(module, heads=[1], index=1) as maps:
        module(x, mask)
    torch.testing.assert_close(maps[""], expected[[1]])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("pair_as", "mode"), [(("keys",), "relative"), (("values",), "relative"), (("keys", "values"), "appended")])
def test_pair_features_as_keys(pair_as: tuple[str, ...], mode: str, masked: bool) -> None:
    """Relative: as many keys as before. Appended: N keys of the sequence, then N of the pair features, under one softmax."""
    module = redraw_(MultiHeadAttention(8, 2, c_pair=3, pair_as=pair_as, pair_mode=mode), seed=1).double()
    x, pair, bias = (torch.randn(shape, dtype=torch.float64) for shape in ((2, 4, 8), (1, 4, 4, 3), (1, 2, 4, 4)))
    mask = torch.tensor([[True, True, True, False], [False, True, True, True]])[:, None, None] if masked else None
    with capture_attention(module, index=1) as maps:
        module(x, biases=[bias], mask=mask, pair=pair)
    q = projected(module.q, x[1], 2)
    logits = q @ projected(module.k, x[1], 2).mT / 2 + bias[0]
    if "keys" in pair_as:
        keys = torch.einsum("hdc,ijc->hijd", module.pair_k.weight.unflatten(0, (2, 4)), pair[0])
        of_pair = torch.einsum("hid,hijd->hij", q, keys) / 2
        logits = torch.cat([logits, of_pair], dim=-1) if mode == "appended" else logits + of_pair
    visible = None if mask is None else mask[1].repeat(1, 1, logits.shape[-1] // 4)
    torch.testing.assert_close(maps[""], by_hand(logits, visible))


def test_appended_with_a_mask_of_queries() -> None:
    """A mask that is shared along the keys counts for both kinds of them."""
    module = MultiHeadAttention(8, 2, c_pair=3, pair_as=("keys", "values"), pair_mode="appended")
    mask = torch.tensor([True, False, True])[None, None, :, None]
    with capture_attention(module) as maps:
        module(torch.randn(1, 3, 8), mask=mask, pair=torch.randn(1, 3, 3, 3))
    torch.testing.assert_close(maps[""].sum(-1), torch.tensor([[1.0, 0.0, 1.0]]).expand(2, 3))


def test_errors(model: nn.Module, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    there = r"there are blocks\.0\.row\.attn, .*blocks\.1\.column\.attn"
    with pytest.raises(ConfigError, match=rf"no attention module matches \['rows'\]; {there}"), capture_attention(model, ["rows"]):
        pass
    with pytest.raises(ConfigError, match="there are none in this model"), capture_attention(nn.Linear(2, 2)):
        pass
    with pytest.raises(ShapeError, match=r"heads \[2\] are out of range; there are 2"), capture_attention(model, ["*row*"], heads=[2]):
        model(*inputs)
    out_of_range = r"index 3 is out of range for 'blocks\.0\.row\.attn'; its last batch axis has 3 entries"
    with pytest.raises(ShapeError, match=out_of_range), capture_attention(model, ["*row*"], index=3):
        model(*inputs)
    assert all(module.look is None for module in model.modules() if isinstance(module, MultiHeadAttention))
