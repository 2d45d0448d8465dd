"""Parameters of the inherited tests come from the class that inherits them."""

from collections.abc import Iterator

import pytest
import torch

pytest.register_assert_rewrite("tests.blocks.alphafold", "tests.blocks.contract")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are tiny here: handing work to a second thread takes longer than the work, many times so on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, values in (("case", "cases"), ("mix", "mixes")):
        if name in metafunc.fixturenames:
            cases = getattr(metafunc.cls, values)
            metafunc.parametrize(name, cases, ids=[case.name for case in cases])
    for name, values in (("golden_key", "golden_keys"), ("mutant", "mutants")):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(getattr(metafunc.cls, values)))
