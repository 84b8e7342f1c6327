"""Where a run computes, and whether recording or compiling its steps repays the wait."""

from __future__ import annotations

import os
import shutil
from typing import Literal, get_args

import torch

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.inference.engine.client_step import EngineMode

EngineChoice = Literal["auto", "eager", "traced", "compiled"]

# Against replaying, compiled code saves about this many seconds an evaluation per scalar weight of the stack …
SAVED_PER_WEIGHT = 10e-9
# … and takes about half this long; it must save twice its cost.
COMPILE_SECONDS = 40.0
# On a GPU launching kernels one by one costs this much an evaluation, whatever their size.
SAVED_PER_CUDA_EVALUATION = 4e-3
# Recording the programs takes as long as about this many evaluations save.
WORTH_TRACING = 500


def resolve_device(name: str) -> torch.device:
    """The device of this name; ``"auto"`` is CUDA if there is any, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device is {name!r}; give auto, cpu or cuda") from None
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise UserError("device is 'cuda', but there is no CUDA device here; use cpu or auto")
        if device.index is not None and device.index >= count:
            raise UserError(f"device is {name!r}, but there are only {count} CUDA devices")
    elif device.type != "cpu":
        raise UserError(f"device is {name!r}; give auto, cpu or cuda")
    return device


def choose_engine(
    choice: EngineChoice, *, evaluations: int, weights: int, device: torch.device
) -> EngineMode:
    """How to run the gradient step of a run of so many evaluations on so many scalar weights, stacked.

    ``auto`` decides by the amount of work alone, never by a clock: a resumed run must choose as the first one did.
    """
    if choice not in get_args(EngineChoice):
        options = get_args(EngineChoice)
        raise UserError(
            f"engine is {choice!r}{nearest(choice, options)}; give one of {', '.join(options)}"
        )
    possible = device.type == "cuda" or _has_compiler()
    if choice == "compiled" and not possible:
        raise UserError("engine is 'compiled', but there is no C++ compiler (g++) here; use traced")
    if choice != "auto":
        return choice
    saved = SAVED_PER_WEIGHT * weights if device.type == "cpu" else SAVED_PER_CUDA_EVALUATION
    if possible and saved * evaluations > COMPILE_SECONDS:
        return "compiled"
    return "traced" if evaluations >= WORTH_TRACING else "eager"


def _has_compiler() -> bool:
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
