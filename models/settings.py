"""Pyro's process-wide settings, as this package needs them and only while it needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyro


@contextlib.contextmanager
def local_parameters() -> Iterator[None]:
    """Keep parameters in their modules rather than in Pyro's global param store."""
    with pyro.settings.context(module_local_params=True):
        yield


@contextlib.contextmanager
def pyro_local(*, validate: bool = False) -> Iterator[None]:
    """`local_parameters`, with Pyro's and torch's validation on or off.

    Use it round your own code to train or trace a model and its guide without touching global state::

        with pyro_local():
            loss = TraceMeanField_ELBO()(model, guide)(x, y)
    """
    with pyro.settings.context(
        module_local_params=True,
        validate_distributions_pyro=validate,
        validate_distributions_torch=validate,
        validate_infer=validate,
        validate_poutine=validate,
    ):
        yield
