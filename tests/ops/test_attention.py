"""attention() against loops in float64: every backend, dtype, mask, bias, layout and size; and what its masks promise."""

import pytest
import torch

from evoattn.ops import ATTENTION
from tests.ops.cases import CASES, DTYPES, Case, check

SERVED = [(name, case) for name in ATTENTION.names for case in CASES if name != "sdpa" or case.d == case.dv]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize(("backend", "case"), SERVED, ids=lambda x: x.name if isinstance(x, Case) else x)
def test_outputs_and_all_gradients(backend: str, case: Case, dtype: torch.dtype) -> None:
    check(case, dtype, backend)
