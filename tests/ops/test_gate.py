"""gate(): sigmoid(logits) * x, recorded or not."""

import pytest
import torch

from evoattn.ops import gate


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)])
def test_value(dtypes: tuple[torch.dtype, torch.dtype], shared: bool) -> None:
    x, logits = torch.randn(2, 1 if shared else 4, 3).to(dtypes[0]), torch.randn(2, 4, 3).to(dtypes[1])
    expected = x / (1 + torch.exp(-logits))
    before = x.clone()
    got = gate(x, logits.clone())
    assert got.dtype == torch.promote_types(*dtypes)
    torch.testing.assert_close(got, expected, rtol=2 * torch.finfo(dtypes[1]).eps, atol=1e-6, check_dtype=False)
    assert torch.equal(x, before)
    recorded = gate(x, logits.clone().requires_grad_())
    torch.testing.assert_close(recorded, expected, rtol=2 * torch.finfo(dtypes[1]).eps, atol=1e-6, check_dtype=False)


def test_gradients() -> None:
    x, logits = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 1, 3), (2, 4, 3)))
    assert torch.autograd.gradcheck(gate, (x, logits))
