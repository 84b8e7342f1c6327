"""Versions, also of a checkout that nobody installed."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

from pyro_pfedbayes.versions import versions


def test_they_are_those_of_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = versions()
    assert found["torch"] == torch.__version__
    assert found["pyro-ppl"] == importlib.metadata.version("pyro-ppl")

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert versions()["pyro-pfedbayes"] == "unknown"
