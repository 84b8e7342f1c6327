"""What a run's folder holds, read so that whatever is missing or damaged is told of and the rest still serves."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.runfolder import RunFolder

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Posterior", "RunFiles", "read_run"]

Array = NDArray[Any]
Columns = Mapping[str, Array]
_CLASS = ("p", "total", "aleatoric", "epistemic")
_NUMBER = ("mean", "sd", "aleatoric", "epistemic")
_NEWER = ("log_density", "crps", "below", "equal")
_SHIFTS = ("corruption", "strength", "example")


@dataclass(frozen=True)
class Posterior:
    """What ``posterior.nc`` says of n test examples.

    Attributes:
        y: Outcomes ``[n]``: labels (-1 unknown), or numbers (NaN missing).
        owner: Number of the client of each ``[n]``.
        index: Where each lies in its data set ``[n]``; None in files that do not say.
        personal: ``p [n, C]``, ``total``, ``aleatoric``, ``epistemic`` in nats; or ``mean``, ``sd``, ``aleatoric``,
            ``epistemic`` (variances) and in newer files ``log_density`` (nats), ``crps``, and counts of draws ``below``
            each outcome and ``equal`` to it, ``[n]``.
        global_: The same of the global model; None if not stored.
        classes: Names of the classes; none for numbers.
        names: Names of the clients that have examples, by number.
        draws: Draws of the weights that statistics are over.
        kept: Of these, those that are stored one by one.
        outcomes: Outcomes drawn ``[K, n]``, for numbers.
        log_likelihood: log p(y | x, weights) in nats ``[K, n]``, for numbers.
        validation: ``p``, ``y``, ``owner`` of validation examples by ``personal`` and ``global``.
        unseen: ``p``, ``total``, ``aleatoric``, ``epistemic``, ``owner`` of examples of unseen classes.
        foreign: The same of examples of another data set, each asked of every client.
        foreign_name: Of the other data set.
        corrupted: The same of damaged test examples; and ``y``, ``index`` in the data set, ``corruption`` (a text)
            and ``strength``.
        gain: ``kl [N, sites]``, ``client [N]``, ``site [sites]``.
        attrs: Of the whole tree.
    """

    y: Array
    owner: Array
    index: Array | None
    personal: Columns
    global_: Columns | None
    classes: tuple[str, ...]
    names: Mapping[int, str]
    draws: int
    kept: int
    outcomes: Array | None = None
    log_likelihood: Array | None = None
    validation: Mapping[str, Columns] = field(default_factory=dict)
    unseen: Columns | None = None
    foreign: Columns | None = None
    foreign_name: str = ""
    corrupted: Columns | None = None
    gain: Columns | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_class(self) -> bool:
        """Whether outcomes are classes."""
        return "p" in self.personal


@dataclass(frozen=True)
class RunFiles:
    """A run's folder.

    Attributes:
        folder: The run.
        settings: ``config.toml``.
        summary: ``summary.json``; empty if it is missing.
        history: ``metrics.jsonl``.
        posterior: ``posterior.nc``; None if it is missing or damaged.
        problems: What is missing or damaged, by file.
    """

    folder: RunFolder
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    posterior: Posterior | None
    problems: Mapping[str, str]


def read_run(path: Path) -> RunFiles:
    """Read what a report needs of a run's folder, whatever version wrote it.

    Raises:
        UserError: It is no run's folder, or its ``config.toml`` is damaged.
    """
    folder = RunFolder.open(path)
    try:
        settings = tomllib.loads(folder.config_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UserError(f"{folder.config_file} is not readable TOML: {problem}") from problem
    problems: dict[str, str] = {}
    summary = _summary(folder, problems)
    history = _history(folder, problems)
    posterior = None
    try:
        posterior = _posterior(folder.posterior)
    except UserError as problem:
        problems["posterior.nc"] = str(problem)
    return RunFiles(folder, settings, summary, history, posterior, problems)


def _summary(folder: RunFolder, problems: dict[str, str]) -> Mapping[str, Any]:
    if not folder.summary.is_file():
        problems["summary.json"] = "the run is not finished (it holds no summary.json)"
        return {}
    try:
        found = json.loads(folder.summary.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        found = problem
    if not isinstance(found, dict):
        problems["summary.json"] = "summary.json is damaged; its figures are left out"
        return {}
    return found


def _history(folder: RunFolder, problems: dict[str, str]) -> tuple[Mapping[str, Any], ...]:
    try:
        lines = folder.metrics.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        problems["metrics.jsonl"] = "metrics.jsonl is missing or not readable"
        return ()
    records: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record["round"], int) or not isinstance(record["personal"], dict):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            problems["metrics.jsonl"] = f"line {number} of metrics.jsonl is damaged and left out"
            continue
        records.append(record)
    return tuple(records)


def _posterior(path: Path) -> Posterior:
    """Read the groups that a report uses, and of them only the variables that it uses.

    Raises:
        UserError: No file, not a netCDF file, or not one of a run.
    """
    import xarray as xr

    if not path.is_file():
        raise UserError(
            "the run stored no predictions (no posterior.nc): it is not finished, "
            "has no test examples, or ran with run.posterior_draws = 0"
        )
    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            return _taken(tree)
    except KeyError as problem:
        raise UserError(
            f"posterior.nc lacks {problem}: it is of another version, or damaged"
        ) from None
    except Exception as problem:  # h5py and xarray raise many types on damaged files
        told = " ".join(str(problem).split()) or type(problem).__name__
        raise UserError(f"posterior.nc is damaged: {told[:160]}") from None


def _taken(tree: xr.DataTree) -> Posterior:
    stats, observed = _group(tree, "observation_stats"), _group(tree, "observed_data")
    number = "p" not in stats
    kind = _NUMBER if number else _CLASS
    personal = _present(stats, kind)
    y, owner = observed["y"].to_numpy(), observed["client_of"].to_numpy().astype(np.int64)
    if any(len(values) != len(y) for values in (owner, *personal.values())):
        raise UserError("its groups differ in length")
    index = None
    if "constant_data" in tree.children and "index" in _group(tree, "constant_data"):
        index = _group(tree, "constant_data")["index"].to_numpy().astype(np.int64)
    per_draw = _group(tree, "log_likelihood")["y"]
    kept = per_draw.sizes["chain"] * per_draw.sizes["draw"]
    return Posterior(
        y=y,
        owner=owner,
        index=index,
        personal=personal,
        global_=_columns(tree, "global_stats", kind, len(y)),
        classes=() if number else tuple(str(c) for c in stats["class"].to_numpy()),
        names=_names(tree),
        draws=int(tree.attrs.get("draws", kept)),
        kept=kept,
        outcomes=_flat(_group(tree, "posterior_predictive")["y"]) if number else None,
        log_likelihood=_flat(per_draw) if number else None,
        validation={} if number else _validation(tree),
        unseen=None if number else _unseen(tree),
        foreign=None if number else _optional(_foreign, tree),
        foreign_name=_foreign_name(tree),
        corrupted=None if number else _optional(_corrupted, tree),
        gain=_gain(tree),
        attrs={str(key): _value(value) for key, value in tree.attrs.items()},
    )


def _group(tree: xr.DataTree, name: str) -> xr.Dataset:
    """One group.

    Raises:
        KeyError: There is none of that name.
    """
    return tree.children[name].to_dataset()


def _present(group: xr.Dataset, kind: tuple[str, ...]) -> dict[str, Array]:
    """The columns that there must be, and those of newer versions."""
    found = {name: group[name].to_numpy() for name in kind}
    return found | {name: group[name].to_numpy() for name in _NEWER if name in group}


def _columns(tree: xr.DataTree, name: str, kind: tuple[str, ...], n: int) -> Columns | None:
    if name not in tree.children:
        return None
    found = _present(_group(tree, name), kind)
    if any(len(values) != n for values in found.values()):
        raise UserError(f"its group {name} is of another length than its observations")
    return found


def _validation(tree: xr.DataTree) -> dict[str, Columns]:
    names = {"personal": "validation_stats", "global": "global_validation_stats"}
    found: dict[str, Columns] = {}
    for model, name in names.items():
        if name in tree.children:
            group = _group(tree, name)
            # The global model's group may leave out what both have in common.
            common = (
                _group(tree, names["personal"]) if names["personal"] in tree.children else group
            )
            y, owner = (
                (group if part in group.variables else common)[part].to_numpy().astype(np.int64)
                for part in ("y", "client_of")
            )
            found[model] = {"p": group["p"].to_numpy(), "y": y, "owner": owner}
    return found


def _unseen(tree: xr.DataTree) -> Columns | None:
    if "unseen_stats" not in tree.children:
        return None
    group = _group(tree, "unseen_stats")
    found = {name: group[name].to_numpy() for name in _CLASS}
    return {**found, "owner": group["client_of_example"].to_numpy().astype(np.int64)}


def _optional(read: Callable[[xr.DataTree], Columns], tree: xr.DataTree) -> Columns | None:
    """What a group of newer versions holds; None if it is not there, or not as it should be."""
    try:
        found = read(tree)
    except (KeyError, ValueError):
        return None
    n = len(found["owner"])
    good = n and found["p"].ndim == 2 and all(len(values) == n for values in found.values())
    return found if good else None


def _foreign(tree: xr.DataTree) -> Columns:
    group = _group(tree, "foreign_stats")
    clients, n = group.sizes["client"], group.sizes["example"]
    found = {name: group[name].transpose("client", "example", ...).to_numpy() for name in _CLASS}
    flat = {name: values.reshape(clients * n, *values.shape[2:]) for name, values in found.items()}
    return {**flat, "owner": group["client"].to_numpy().astype(np.int64).repeat(n)}


def _foreign_name(tree: xr.DataTree) -> str:
    if "foreign_stats" not in tree.children:
        return ""
    return str(tree.children["foreign_stats"].attrs.get("data", "another data set"))


def _corrupted(tree: xr.DataTree) -> Columns:
    group = _group(tree, "corrupted_stats")
    kinds, strengths, n = (group.sizes[dim] for dim in _SHIFTS)
    found = {name: group[name].transpose(*_SHIFTS, ...).to_numpy() for name in _CLASS}
    flat = {
        name: values.reshape(kinds * strengths * n, *values.shape[3:])
        for name, values in found.items()
    }
    for name, part in (("owner", "client_of_example"), ("index", "index"), ("y", "y")):
        flat[name] = np.tile(group[part].to_numpy().astype(np.int64), kinds * strengths)
    flat["corruption"] = group["corruption"].to_numpy().astype(str).repeat(strengths * n)
    flat["strength"] = np.tile(group["strength"].to_numpy().astype(np.int64).repeat(n), kinds)
    return flat


def _gain(tree: xr.DataTree) -> Columns | None:
    if "information_gain" not in tree.children:
        return None
    kl = _group(tree, "information_gain")["kl"].transpose("client", "site")
    sites = kl["site"].to_numpy().astype(str) if "site" in kl.coords else np.array(["all"])
    return {"kl": kl.to_numpy(), "client": kl["client"].to_numpy().astype(np.int64), "site": sites}


def _names(tree: xr.DataTree) -> dict[int, str]:
    if "client_metrics" not in tree.children:
        return {}
    group = _group(tree, "client_metrics")
    if "client_name" not in group.coords:
        return {}
    numbers, texts = group["client"].to_numpy(), group["client_name"].to_numpy()
    return {int(number): str(text) for number, text in zip(numbers, texts, strict=True)}


def _flat(values: xr.DataArray) -> Array:
    """``[chain, draw, n]`` as ``[K, n]``."""
    found = values.transpose("chain", "draw", "observation").to_numpy()
    return found.reshape(-1, found.shape[-1])


def _value(value: Any) -> Any:
    """An attribute as a plain value of Python's."""
    return (
        value.item()
        if isinstance(value, np.generic)
        else str(value)
        if isinstance(value, np.ndarray)
        else value
    )
