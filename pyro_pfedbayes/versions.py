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

    found = {name: _version(name) for name in ("pyro-pfedbayes", "pyro-ppl", "numpy")}
    # PyTorch's own word also tells which CUDA it was built for.
    return {"python": platform.python_version(), "torch": str(torch.__version__), **found}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
