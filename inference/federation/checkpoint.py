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

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.inference.federation.state import FederationState

FORMAT = "pyro-pfedbayes checkpoint 1"
INDEX = "state.json"


def save_checkpoint(folder: Path, state: FederationState, meta: Mapping[str, Any]) -> None:
    """Write a checkpoint, then remove the one before it.

    Args:
        folder: Made if missing.
        state: What to save.
        meta: JSON values that come back from `load_checkpoint`, such as what the run was configured with.
    """
    name = f"state-{state.round:06d}.safetensors"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.tmp"
        save_file(_tensors(state), temporary)
        digest = _sha256(temporary)
        os.replace(temporary, folder / name)
        index = {
            "format": FORMAT,
            "tensors": name,
            "sha256": digest,
            "round": state.round,
            "gradient_steps": state.gradient_steps,
            "bytes_uploaded": state.bytes_uploaded,
            "seconds": dict(state.seconds),
            "history": list(state.history),
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
    """Read a checkpoint back.

    Args:
        folder: As given to `save_checkpoint`.
        device: Where the tensors go.

    Returns:
        The state and the meta values.
    """
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
    server: dict[str, Tensor] = {}
    clients: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        owner, name = key.split("/", 1)
        if owner == "server":
            server[name] = tensor
        else:
            clients.setdefault(int(owner), {})[name] = tensor
    state = FederationState(
        round=index["round"],
        server=server,
        clients=clients,
        history=tuple(index["history"]),
        gradient_steps=index["gradient_steps"],
        seconds=index["seconds"],
        # Checkpoints of earlier versions did not count.
        bytes_uploaded=index.get("bytes_uploaded", 0),
    )
    return state, index["meta"]


def write_atomically(path: Path, text: str) -> None:
    """Replace a text file in one step, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _tensors(state: FederationState) -> dict[str, Tensor]:
    tensors = {f"server/{name}": tensor for name, tensor in state.server.items()}
    for client, row in state.clients.items():
        tensors |= {f"{client}/{name}": tensor for name, tensor in row.items()}
    return {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}


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
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        found = index.get("format") if isinstance(index, dict) else None
        raise UserError(
            f"{path} is not a checkpoint of this version: format {found!r}, wanted {FORMAT!r}"
        )
    expected = {"tensors", "sha256", "round", "gradient_steps", "seconds", "history", "meta"}
    missing = sorted(expected - index.keys())
    if missing:
        raise UserError(f"checkpoint index {path} lacks {missing[0]!r}")
    return index


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(problem: Exception) -> str:
    return (getattr(problem, "strerror", None) or str(problem)).splitlines()[0]
