"""What attention() and explain() say about tensors that do not fit: what was got, what is expected, what to do."""

import pytest
import torch
from torch import Tensor

from evoattn.errors import EvoattnError, ShapeError
from evoattn.ops import attention, explain


def tensors(**changes: object) -> dict[str, object]:
    shapes = {"q": (2, 5, 4, 8), "k": (2, 7, 4, 8), "v": (2, 7, 4, 8)}
    return {name: torch.zeros(shape) for name, shape in shapes.items()} | changes


BAD = {
    "q without heads": ({"q": torch.zeros(5, 8)}, r"q has shape \(5, 8\); expected \[\*batch, q, h, d\].*q\[\.\.\., None, :\]"),
    "k of another rank": ({"k": torch.zeros(7, 4, 8)}, r"k has shape \(7, 4, 8\), .* q \(2, 5, 4, 8\).*expected \[\*batch, k, h or 1, d\]"),
    "k of another width": ({"k": torch.zeros(2, 7, 4, 9)}, r"k has shape \(2, 7, 4, 9\), which does not fit"),
    "k of another batch": ({"k": torch.zeros(1, 7, 4, 8)}, r"k has shape \(1, 7, 4, 8\).*with the batch axes of q"),
    "two key heads for four": ({"k": torch.zeros(2, 7, 2, 8)}, r"k has shape \(2, 7, 2, 8\).*h heads or one shared head"),
    "heads before length": ({name: torch.zeros(2, 4, 7, 8) for name in "kv"}, r"k has shape \(2, 4, 7, 8\), which does not fit"),
    "v of another length": ({"v": torch.zeros(2, 6, 4, 8)}, r"v has shape \(2, 6, 4, 8\).* and k \(2, 7, 4, 8\).*length and heads of k"),
    "v without axes": ({"v": torch.zeros(())}, r"v has shape \(\), which does not fit"),
    "v of another dtype": ({"v": torch.zeros(2, 7, 4, 8).half()}, r"v has dtype torch\.float16 and q torch\.float32; all of q, k and v"),
    "integers": ({name: torch.zeros(2, 7, 4, 8, dtype=torch.int64) for name in "qkv"}, r"k has dtype torch\.int64.* one floating dtype"),
    "k on another device": ({"k": torch.zeros(2, 7, 4, 8, device="meta")}, r"k is on meta and q on cpu; move one .*\.to\('cpu'\)"),
    "bias without an axis": ({"biases": [torch.zeros(4, 5, 7)]}, r"biases\[0\] has shape \(4, 5, 7\);.* logits, 4.*\(2, 4, 5, 7\)"),
    "second bias too long": ({"biases": [torch.zeros(1, 1, 1, 7), torch.zeros(1, 4, 7, 7)]}, r"biases\[1\] has shape \(1, 4, 7, 7\)"),
    "a tensor of biases": ({"biases": torch.zeros(2, 4, 5, 7)}, r"biases is a tensor; it must be a sequence of tensors: biases=\[bias\]"),
    "boolean bias": ({"biases": [torch.ones(2, 1, 1, 7, dtype=torch.bool)]}, r"biases\[0\] has dtype torch\.bool.*mask goes to mask="),
    "bias on another device": ({"biases": [torch.zeros(2, 4, 5, 7, device="meta")]}, r"biases\[0\] is on meta and q on cpu"),
    "mask without axes": ({"mask": torch.ones(2, 7, dtype=torch.bool)}, r"mask has shape \(2, 7\); expected the rank .* 4.*with None"),
    "mask transposed": ({"mask": torch.zeros(2, 1, 7, 5, dtype=torch.bool)}, r"mask has shape \(2, 1, 7, 5\).*\(2, 4, 5, 7\)"),
    "mask on another device": ({"mask": torch.ones(2, 1, 1, 7, dtype=torch.bool, device="meta")}, r"mask is on meta and q on cpu"),
}


@pytest.mark.parametrize("what", BAD)
def test_message(what: str, no_type_checks: None) -> None:
    changes, message = BAD[what]
    inputs = tensors(**changes)
    q, k, v = (inputs.pop(name) for name in "qkv")
    for op in (attention, explain):
        with pytest.raises(ShapeError, match=f"^attention: {message}") as error:
            op(q, k, v, **inputs)
        assert isinstance(error.value, EvoattnError) and isinstance(error.value, ValueError)


def test_a_forgotten_axis_is_not_guessed(no_type_checks: None) -> None:
    """A bias [h, q, k] would broadcast against a batch as large as the rank allows; so would a mask [q, k]."""
    q = torch.zeros(4, 4, 4, 8)
    bias: Tensor = torch.zeros(4, 4, 4)
    for changes in ({"biases": [bias]}, {"mask": torch.ones(4, 4, dtype=torch.bool).tril()}):
        with pytest.raises(ShapeError, match="none is guessed"):
            attention(q, q, q, **changes)
    attention(q, q, q, biases=[bias[None]], mask=torch.ones(4, 4, dtype=torch.bool).tril()[None, None])
