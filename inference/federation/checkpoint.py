"""Checkpoints of a federation: tensors in safetensors, the rest in JSON, never pickle.

A folder holds ``state-<round>.safetensors`` and ``state.json``, which names that file and its SHA-256. The tensors
are written first and ``state.json`` is replaced in one step, so a run killed at any moment leaves the last
complete checkpoint in force.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.federation.state import FederationState

FORMAT = "pyro-pfedbayes checkpoint 1"
INDEX = "state.json"
FIGURES = ("round", "gradient_steps", "bytes_uploaded", "seconds", "history")
"""What a state holds beside tensors."""


def save_checkpoint(folder: Path, state: FederationState, meta: Mapping[str, Any]) -> None:
    """Write a checkpoint with JSON values, such as what the run was configured with; then remove the one before it."""
    name = f"state-{state.round:06d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.tmp"
        owners = {"server": state.server, **{str(i): row for i, row in state.clients.items()}}
        save_file(
            {
                f"{owner}/{name}": tensor.detach().cpu().contiguous()
                for owner, tensors in owners.items()
                for name, tensor in tensors.items()
            },
            temporary,
        )
        digest = _sha256(temporary)
        os.replace(temporary, folder / name)
        index = {
            "format": FORMAT,
            "tensors": name,
            "sha256": digest,
            **{name: getattr(state, name) for name in FIGURES},
            "meta": dict(meta),
        }
        write_atomically(folder / INDEX, json.dumps(index, indent=1))
        for old in folder.glob("state-*.safetensors"):
            if old.name != name:
                old.unlink()
    except (OSError, SafetensorError) as problem:
        for leftover in folder.glob(".*.tmp"):
            leftover.unlink(missing_ok=True)
        raise UserError(f"cannot write checkpoint {folder}: {_reason(problem)}") from problem


def load_checkpoint(
    folder: Path, device: torch.device | str = "cpu"
) -> tuple[FederationState, dict[str, Any]]:
    """The state, its tensors on ``device``, and the JSON values of `save_checkpoint`."""
    index = _read_index(folder)
    path = folder / index["tensors"]
    try:
        if _sha256(path) != index["sha256"]:
            raise UserError(
                f"checkpoint file {path} is damaged (its checksum is not the one recorded)"
            )
        tensors = load_file(path, device=str(device))
    except (OSError, SafetensorError) as problem:
        raise UserError(f"cannot read checkpoint file {path}: {_reason(problem)}") from problem
    owners: dict[str, dict[str, Tensor]] = {"server": {}}
    for key, tensor in tensors.items():
        owner, name = key.split("/", 1)
        owners.setdefault(owner, {})[name] = tensor
    figures = {name: index[name] for name in FIGURES} | {"history": tuple(index["history"])}
    server = owners.pop("server")
    clients = {int(owner): row for owner, row in owners.items()}
    return FederationState(server=server, clients=clients, **figures), index["meta"]


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    if not path.is_file():
        raise UserError(f"there is no checkpoint in {folder} ({INDEX} is missing)")
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UserError(
            f"checkpoint index {path} is not readable JSON: {_reason(problem)}"
        ) from problem
    found = index.get("format") if isinstance(index, dict) else None
    if found != FORMAT:
        raise UserError(
            f"{path} is not a checkpoint of this version: format {found!r}, wanted {FORMAT!r}"
        )
    # Checkpoints of earlier versions did not count bytes.
    index = {"bytes_uploaded": 0, **index}
    missing = sorted({"tensors", "sha256", "meta", *FIGURES} - index.keys())
    if missing:
        raise UserError(f"checkpoint index {path} lacks {missing[0]!r}")
    return index


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(problem: Exception) -> str:
    return (getattr(problem, "strerror", None) or str(problem)).splitlines()[0]
