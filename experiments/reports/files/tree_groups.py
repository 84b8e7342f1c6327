"""The optional groups of ``posterior.nc``: of newer versions, and of runs that had something to ask about."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[Any]
Found = TypeVar("Found")
Columns = Mapping[str, Array]
CLASS_COLUMNS = ("p", "total", "aleatoric", "epistemic")
_SHIFTS = ("corruption", "strength", "example")


def group_of(tree: xr.DataTree, name: str) -> xr.Dataset:
    """One group."""
    if name not in tree.children:
        raise UserError(f"it lacks the group {name}")
    return tree.children[name].to_dataset()


def variable(tree: xr.DataTree, group: str, name: str) -> xr.DataArray:
    """One variable of a group."""
    found = group_of(tree, group)
    if name not in found.variables:
        raise UserError(f"its group {group} lacks the variable {name}")
    return found[name]


def check_labels(y: Array, classes: int, group: str) -> None:
    """Refuse labels that no class has; -1 is an unknown one."""
    wrong = np.flatnonzero((y < -1) | (y >= classes))
    if len(wrong):
        place = int(wrong[0])
        raise UserError(
            f"its group {group} has label {y[place]} at row {place}, but labels go from 0 to {classes - 1}"
        )


def optional(
    read: Callable[[xr.DataTree], Found],
    tree: xr.DataTree,
    groups: tuple[str, ...],
    damaged: dict[str, str],
) -> Found | None:
    """What groups hold; None if none of them is there, or one is not as it should be, which ``damaged`` then tells."""
    there = [name for name in groups if name in tree.children]
    if not there:
        return None
    try:
        return read(tree)
    except UserError as problem:
        damaged[there[0]] = str(problem)
    except (KeyError, ValueError, TypeError) as problem:
        damaged[there[0]] = f"its group {there[0]} is of another form ({_line(problem)})"
    return None


def validation(tree: xr.DataTree) -> dict[str, Columns]:
    """``p``, ``y`` and ``owner`` of validation examples, by ``personal`` and ``global``."""
    names = {"personal": "validation_stats", "global": "global_validation_stats"}
    found: dict[str, Columns] = {}
    for model, name in names.items():
        if name in tree.children:
            group = group_of(tree, name)
            # The global model's group may leave out what both have in common.
            common = name if {"y", "client_of"} <= set(group.variables) else names["personal"]
            y, owner = (_whole_numbers(tree, common, part) for part in ("y", "client_of"))
            found[model] = {"p": variable(tree, name, "p").to_numpy(), "y": y, "owner": owner}
            _check_length(found[model], name)
            check_labels(y, found[model]["p"].shape[1], name)
    return found


def unseen(tree: xr.DataTree) -> Columns:
    """The columns of `CLASS_COLUMNS`, and ``owner``."""
    name = "unseen_stats"
    found = {each: variable(tree, name, each).to_numpy() for each in CLASS_COLUMNS}
    return _checked(found | {"owner": _whole_numbers(tree, name, "client_of_example")}, name)


def foreign(tree: xr.DataTree) -> Columns:
    """The same of every client on examples of another data set."""
    name, dims = "foreign_stats", ("client", "example")
    n = group_of(tree, name).sizes["example"]
    owner = _whole_numbers(tree, name, "client").repeat(n)
    return _checked(_flat_columns(tree, name, dims) | {"owner": owner}, name)


def foreign_name(tree: xr.DataTree) -> str:
    """Name of the other data set; empty if there is none."""
    if "foreign_stats" not in tree.children:
        return ""
    return str(tree.children["foreign_stats"].attrs.get("data", "another data set"))


def corrupted(tree: xr.DataTree) -> Columns:
    """The same of damaged examples; and ``y``, ``index``, ``corruption`` (a text) and ``strength``."""
    name = "corrupted_stats"
    group = group_of(tree, name)
    kinds, strengths, n = (group.sizes[dim] for dim in _SHIFTS)
    flat = _flat_columns(tree, name, _SHIFTS)
    for each, part in (("owner", "client_of_example"), ("index", "index"), ("y", "y")):
        flat[each] = np.tile(_whole_numbers(tree, name, part), kinds * strengths)
    flat["corruption"] = group["corruption"].to_numpy().astype(str).repeat(strengths * n)
    flat["strength"] = np.tile(group["strength"].to_numpy().astype(np.int64).repeat(n), kinds)
    checked = _checked(flat, name)
    check_labels(flat["y"], flat["p"].shape[1], name)
    return checked


def gain(tree: xr.DataTree) -> Columns:
    """``kl [N, sites]`` in nats, ``client [N]``, ``site [sites]``."""
    kl = variable(tree, "information_gain", "kl").transpose("client", "site")
    sites = kl["site"].to_numpy().astype(str) if "site" in kl.coords else np.array(["all"])
    return {"kl": kl.to_numpy(), "client": kl["client"].to_numpy().astype(np.int64), "site": sites}


def _flat_columns(tree: xr.DataTree, group: str, dims: tuple[str, ...]) -> dict[str, Array]:
    """The columns of `CLASS_COLUMNS`, with ``dims`` made one."""
    found = {
        name: variable(tree, group, name).transpose(*dims, ...).to_numpy() for name in CLASS_COLUMNS
    }
    return {
        name: values.reshape(math.prod(values.shape[: len(dims)]), *values.shape[len(dims) :])
        for name, values in found.items()
    }


def _whole_numbers(tree: xr.DataTree, group: str, name: str) -> Array:
    return variable(tree, group, name).to_numpy().astype(np.int64)


def _checked(columns: dict[str, Array], group: str) -> Columns:
    _check_length(columns, group)
    if columns["p"].ndim != 2:
        raise UserError(f"its group {group} has probabilities of another shape")
    return columns


def _check_length(columns: Columns, group: str) -> None:
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise UserError(f"the variables of its group {group} differ in length")


def _line(problem: Exception) -> str:
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text[:160]
