"""What a run's folder holds, read so that whatever is missing or damaged is named and the rest still serves."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.files import tree_groups as groups
from pyro_pfedbayes.experiments.reports.files.tree_groups import Columns
from pyro_pfedbayes.experiments.runs.folder import RunFolder

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Columns", "Posterior", "RunFiles", "read_run"]

Array = NDArray[Any]
_NUMBER = ("mean", "sd", "aleatoric", "epistemic")
_NEWER = ("log_density", "crps", "below", "equal")


@dataclass(frozen=True)
class Posterior:
    """What ``posterior.nc`` says of n test examples."""

    y: Array  # outcomes ``[n]``: labels (-1 unknown), or numbers (NaN missing)
    owner: Array  # number of the client of each ``[n]``
    index: Array | None  # where each lies in its data set ``[n]``; None in files that do not say
    personal: Columns
    """``p [n, C]``, ``total``, ``aleatoric``, ``epistemic`` in nats; or ``mean``, ``sd``, ``aleatoric``, ``epistemic``
    (variances) and in newer files ``log_density`` (nats), ``crps``, and counts of draws ``below`` each outcome and
    ``equal`` to it, ``[n]``."""
    global_: Columns | None  # the same of the global model; None if not stored
    classes: tuple[str, ...]  # names of the classes; none for numbers
    names: Mapping[int, str]  # names of the clients that have examples, by number
    draws: int  # draws of the weights that statistics are over
    kept: int  # of these, those that are stored one by one
    outcomes: Array | None = None  # outcomes drawn ``[K, n]``, for numbers
    log_likelihood: Array | None = None  # log p(y | x, weights) in nats ``[K, n]``, for numbers
    validation: Mapping[str, Columns] = field(default_factory=dict)
    """``p``, ``y``, ``owner`` of validation examples by ``personal`` and ``global``."""
    unseen: Columns | None = None
    """``p``, ``total``, ``aleatoric``, ``epistemic``, ``owner`` of examples of unseen classes."""
    foreign: Columns | None = None
    """The same of examples of another data set, put to every client."""
    foreign_name: str = ""  # of the other data set
    corrupted: Columns | None = None
    """The same of damaged test examples; and ``y``, ``index`` in the data set, ``corruption`` (a text) and
    ``strength``."""
    gain: Columns | None = None  # ``kl [N, sites]``, ``client [N]``, ``site [sites]``
    attrs: Mapping[str, Any] = field(default_factory=dict)  # of the whole tree
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Optional groups that are there but could not be read, and why, by name."""

    @property
    def is_class(self) -> bool:
        """Whether outcomes are classes."""
        return "p" in self.personal

    @property
    def known(self) -> Array:
        """Which outcomes are known ``[n]``."""
        return np.asarray(self.y >= 0 if self.is_class else np.isfinite(self.y))

    @property
    def is_point(self) -> bool:
        """Whether one set of weights made all predictions: one draw, and nothing epistemic at all."""
        models = [self.personal, *([] if self.global_ is None else [self.global_])]
        return self.draws == 1 and not any(columns["epistemic"].any() for columns in models)


@dataclass(frozen=True)
class RunFiles:
    """A run's folder: the files' content, and what is missing or damaged, by file."""

    folder: RunFolder
    settings: Mapping[str, Any]
    summary: Mapping[str, Any]
    history: tuple[Mapping[str, Any], ...]
    posterior: Posterior | None
    problems: Mapping[str, str]
    damaged: tuple[str, ...] = ()


def read_run(path: Path) -> RunFiles:
    """Read what a report needs of a run's folder, whatever version wrote it."""
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
    damaged = [name for name in problems if (folder.path / name).exists()]
    if posterior is not None:
        damaged += posterior.damaged
        problems |= {
            name: f"posterior.nc is damaged: {why}" for name, why in posterior.damaged.items()
        }
    return RunFiles(folder, settings, summary, history, posterior, problems, tuple(damaged))


def _summary(folder: RunFolder, problems: dict[str, str]) -> Mapping[str, Any]:
    if not folder.summary.is_file():
        problems["summary.json"] = "the run is not finished (it holds no summary.json)"
        return {}
    try:
        found: Any = json.loads(folder.summary.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("it is no object")
        if not isinstance(found.get("personal"), dict):
            raise TypeError("it lacks personal")
    except (OSError, ValueError, TypeError) as problem:
        problems["summary.json"] = f"summary.json is damaged ({problem}); its figures are left out"
        return {}
    return found


def _history(folder: RunFolder, problems: dict[str, str]) -> tuple[Mapping[str, Any], ...]:
    try:
        lines = folder.metrics.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        problems["metrics.jsonl"] = "the run holds no metrics.jsonl"
        return ()
    except (OSError, UnicodeDecodeError) as problem:
        problems["metrics.jsonl"] = f"metrics.jsonl is not readable ({problem})"
        return ()
    records: list[Mapping[str, Any]] = []
    bad: list[int] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record["round"], int) or not isinstance(record["personal"], dict):
                raise TypeError
        except (ValueError, KeyError, TypeError):
            bad.append(number)
            continue
        records.append(record)
    if bad:
        named = ", ".join(map(str, bad[:5])) + (" and more" if len(bad) > 5 else "")
        line, verb = ("line", "is") if len(bad) == 1 else ("lines", "are")
        problems["metrics.jsonl"] = f"{line} {named} of metrics.jsonl {verb} damaged and left out"
    return tuple(records)


def _posterior(path: Path) -> Posterior:
    """Read the groups that a report uses, and of them only the variables that it uses."""
    import xarray as xr

    if not path.is_file():
        raise UserError(
            "the run stored no predictions (no posterior.nc): it is not finished, "
            "has no test examples, or ran with run.posterior_draws = 0"
        )
    try:
        with xr.open_datatree(path, engine="h5netcdf") as tree:
            return _taken(tree)
    except UserError as problem:
        raise UserError(f"posterior.nc is of another version, or damaged: {problem}") from None
    except Exception as problem:  # h5py and xarray raise many types on damaged files
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise UserError(f"posterior.nc is damaged: {reason[:160]}") from None


def _taken(tree: xr.DataTree) -> Posterior:
    stats = groups.group_of(tree, "observation_stats")
    number = "p" not in stats and ("mean" in stats or "sd" in stats)
    kind = _NUMBER if number else groups.CLASS_COLUMNS
    personal = _present(tree, "observation_stats", kind)
    y, owner = (groups.variable(tree, "observed_data", name) for name in ("y", "client_of"))
    seen, owners = y.to_numpy(), owner.to_numpy().astype(np.int64)
    if any(len(values) != len(seen) for values in (owners, *personal.values())):
        raise UserError("its groups observation_stats and observed_data differ in length")
    if (owners < 0).any():
        raise UserError("its group observed_data has a client below 0")
    if not number:
        groups.check_labels(seen, personal["p"].shape[1], "observed_data")
    per_draw = groups.variable(tree, "log_likelihood", "y")
    kept = per_draw.sizes["chain"] * per_draw.sizes["draw"]
    damaged: dict[str, str] = {}
    both = ("validation_stats", "global_validation_stats")
    unlike = (groups.unseen, groups.foreign, groups.corrupted)
    optional_groups: dict[str, Columns | None] = {}
    validation = None
    if not number:
        for read in unlike:
            name = read.__name__
            optional_groups[name] = groups.optional(read, tree, (f"{name}_stats",), damaged)
        validation = groups.optional(groups.validation, tree, both, damaged)
    return Posterior(
        y=seen,
        owner=owners,
        index=_index(tree),
        personal=personal,
        global_=groups.optional(
            lambda found: _columns(found, "global_stats", kind, len(seen)),
            tree,
            ("global_stats",),
            damaged,
        ),
        classes=() if number else _classes(tree, personal["p"].shape[1]),
        names=_names(tree),
        draws=int(tree.attrs.get("draws", kept)),
        kept=kept,
        outcomes=_flat(groups.variable(tree, "posterior_predictive", "y")) if number else None,
        log_likelihood=_flat(per_draw) if number else None,
        validation=validation or {},
        foreign_name=groups.foreign_name(tree),
        **optional_groups,
        gain=groups.optional(groups.gain, tree, ("information_gain",), damaged),
        attrs={str(key): _value(value) for key, value in tree.attrs.items()},
        damaged=damaged,
    )


def _index(tree: xr.DataTree) -> Array | None:
    if "constant_data" not in tree.children:
        return None
    found = groups.group_of(tree, "constant_data")
    return found["index"].to_numpy().astype(np.int64) if "index" in found.variables else None


def _classes(tree: xr.DataTree, classes: int) -> tuple[str, ...]:
    stats = groups.group_of(tree, "observation_stats")
    named = stats["class"].to_numpy() if "class" in stats.variables else np.arange(classes)
    return tuple(str(each) for each in named)


def _present(tree: xr.DataTree, group: str, kind: tuple[str, ...]) -> dict[str, Array]:
    """The columns that there must be, and those of newer versions."""
    found = {name: groups.variable(tree, group, name).to_numpy() for name in kind}
    held = groups.group_of(tree, group)
    return found | {name: held[name].to_numpy() for name in _NEWER if name in held}


def _columns(tree: xr.DataTree, name: str, kind: tuple[str, ...], n: int) -> Columns:
    found = _present(tree, name, kind)
    if any(len(values) != n for values in found.values()):
        raise UserError(f"its group {name} is of another length than its observations")
    return found


def _names(tree: xr.DataTree) -> dict[int, str]:
    if "client_metrics" not in tree.children:
        return {}
    group = groups.group_of(tree, "client_metrics")
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
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, np.ndarray) else value
