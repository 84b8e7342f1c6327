"""Beginning at weights that were trained elsewhere."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pyro_pfedbayes.errors import UserError, nearest

Network = TypeVar("Network", bound=nn.Module)


def pretrained(network: Network, source: Mapping[str, Tensor] | str | os.PathLike[str]) -> Network:
    """A copy of a network with weights trained elsewhere; they become the means of the server's first w.

    Args:
        network: Any module.
        source: Its ``state_dict``, or a file that holds one: ``.safetensors``, or what ``torch.save`` wrote (read
            without unpickling anything but tensors).

    Raises:
        UserError: No such file, another kind of file, or names and shapes that are not the network's.

    Example:
        >>> from pyro_pfedbayes.models.networks import mlp
        >>> trained = mlp([4, 8, 3], seed=1)
        >>> again = pretrained(mlp([4, 8, 3]), trained.state_dict())
        >>> torch.equal(again.fc1.weight, trained.fc1.weight)
        True
    """
    where = "state_dict" if isinstance(source, Mapping) else Path(os.fspath(source)).name
    state = source if isinstance(source, Mapping) else _read(Path(os.fspath(source)).expanduser())
    wanted = network.state_dict()
    for name in wanted:
        if name not in state:
            raise UserError(f"{where}: there is no weight {name!r}{nearest(name, state)}")
        found = getattr(state[name], "shape", None)
        if found != wanted[name].shape:
            raise UserError(
                f"{where}: weight {name!r} has shape {list(found or [])}, "
                f"the network's has {list(wanted[name].shape)}"
            )
    unknown = [name for name in state if name not in wanted]
    if unknown:
        raise UserError(
            f"{where}: the network has no weight {unknown[0]!r}{nearest(unknown[0], wanted)}"
        )
    filled = copy.deepcopy(network)
    filled.load_state_dict(dict(state))
    return filled


def _read(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise UserError(f"no such file: {path} (wanted a state_dict)")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as problem:
        reason = str(problem).splitlines()[0]
        raise UserError(f"{path.name} holds no state_dict that can be read: {reason}") from problem
    if not isinstance(state, Mapping):
        raise UserError(f"{path.name} holds a {type(state).__name__}; give a state_dict")
    return state
