"""Versions of what decides the numbers of a run."""

from __future__ import annotations

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide the numbers, by name.

    A package that is used from a checkout, without being installed, has the version ``"unknown"``.

    Example:
        >>> sorted(versions())
        ['numpy', 'pyro-pfedbayes', 'pyro-ppl', 'python', 'torch']
    """
    import torch

    # PyTorch's own word also tells which CUDA it was built for.
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("pyro-pfedbayes", "pyro-ppl", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found
