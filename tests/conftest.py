"""What every test starts from: one thread, a clean Pyro."""

from __future__ import annotations

from collections.abc import Iterator

import pyro
import pytest
import torch


@pytest.fixture(autouse=True)
def _untouched_globals() -> Iterator[None]:
    """Small tensors are fastest on one thread, and no test may leave anything in Pyro's global store."""
    torch.set_num_threads(1)
    settings = pyro.settings.get()
    yield
    assert len(pyro.get_param_store()) == 0
    assert pyro.settings.get() == settings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``cuda`` are skipped, visibly, where there is no such device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
