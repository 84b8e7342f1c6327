"""Whether the parts of a table's file fit together."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.config.registry import ALGORITHMS, algorithm_class, known
from pyro_pfedbayes.experiments.tables.declaration.spec import Method, Spec
from pyro_pfedbayes.experiments.tables.declaration.sweeps import Sweep, check_sweep

# Of the names of figures; file systems allow 255 bytes.
LONGEST_STEM = 120


def check_spec(spec: Spec, where: str) -> None:
    """See that the parts of a table fit together."""
    labels = [entry.label for entry in spec.data]
    _check_seeds(spec.head.seeds, f"{where}table.")
    _check_seeds(spec.tuning.seeds, f"{where}tuning.")
    _unique(labels, f"{where}two [[data]] are called", "give one a label of its own")
    for method in spec.methods:
        own = f"{where}method '{method.name}': "
        try:
            known("method", method.algorithm_name, ALGORITHMS)
        except UserError as problem:
            raise UserError(f"{own}{problem}") from None
        for name in method.on or ():
            if name not in spec.data_names:
                raise UserError(f"{own}on names no data '{name}'{nearest(name, spec.data_names)}")
        for label in method.paper:
            if label not in labels:
                raise UserError(f"{own}paper names no data '{label}'{nearest(label, labels)}")
        _check_seeds(method.seeds, own)
        _check_grid(method, own)
    _check_sweeps(spec, where)
    for entry in spec.entries():
        _unique(
            [method.name for method in spec.methods_on(entry)],
            f"{where}two methods on {entry.label} are called",
            "give one a name of its own, or tell them apart by `on`",
        )
    _check_reference(spec, where)
    _check_budget(spec, where)


def _check_seeds(seeds: Sequence[int] | None, where: str) -> None:
    if seeds is not None and len(set(seeds)) < len(seeds):
        raise UserError(f"{where}seeds holds a seed twice: {list(seeds)}")


def _check_grid(method: Method, where: str) -> None:
    if "name" in method.settings or "name" in method.grid:
        raise UserError(f"{where}settings and grid do not name the method; give algorithm")
    for key, values in method.grid.items():
        if not values:
            raise UserError(f"{where}grid.{key} is empty; give the values to try")
        if len({json.dumps(value) for value in values}) < len(values):
            raise UserError(f"{where}grid.{key} holds a value twice")
        if key in method.settings:
            raise UserError(f"{where}{key} is both fixed in settings and tuned in grid; keep one")
        if not re.fullmatch(r"(model\.)?\w+", key):
            raise UserError(f"{where}grid.{key}: give a setting of the method, or model.KEY")


def _check_sweeps(spec: Spec, where: str) -> None:
    _unique([s.name for s in spec.sweeps], f"{where}two [[sweep]] are called", "rename one")
    if spec.head.only_sweeps and not spec.sweeps:
        raise UserError(f"{where}table.only_sweeps is true, but there is no [[sweep]]")
    names = {method.name for method in spec.methods}
    for sweep in spec.sweeps:
        run = [m for m in spec.methods if sweep.methods is None or m.name in sweep.methods]
        check_sweep(sweep, spec.data_names, names, {key for m in run for key in m.grid}, where)
        _check_has_setting(sweep, run, where)
        if not any(spec.methods_on(entry) for entry in spec.swept(sweep)):
            raise UserError(
                f"{where}sweep '{sweep.name}': none of its methods runs on any of its data; look at `on`"
            )
    _check_stems(spec, where)


def _check_stems(spec: Spec, where: str) -> None:
    """Refuse names under which two figures would be one file, or none."""
    stems: dict[str, str] = {}
    for sweep in spec.sweeps:
        for base in dict.fromkeys(entry.base for entry in spec.swept(sweep)):
            stem, told = sweep.stem(base), f"sweep '{sweep.name}' on {base}"
            if len(stem) > LONGEST_STEM:
                raise UserError(
                    f"{where}{told}: its figure's name would have {len(stem)} characters, at most {LONGEST_STEM} are "
                    "allowed; shorten its name"
                )
            if stem in stems:
                raise UserError(
                    f"{where}{told} and {stems[stem]} would both draw {stem}.svg; give one another name (Latin "
                    "letters and digits count)"
                )
            stems[stem] = told


def _check_has_setting(sweep: Sweep, methods: Sequence[Method], where: str) -> None:
    """Refuse a method without the setting that is varied, and name those that have it."""
    if "." in sweep.setting:
        return
    having = [
        method.name
        for method in methods
        if sweep.setting
        in {field.name for field in dataclasses.fields(algorithm_class(method.algorithm_name))}
    ]
    for method in methods:
        if method.name not in having:
            hint = f"; name those that have it in methods ({', '.join(having)})" if having else ""
            raise UserError(
                f"{where}sweep '{sweep.name}': method '{method.name}' has no setting '{sweep.setting}'{hint}"
            )


def _check_reference(spec: Spec, where: str) -> None:
    names = list(dict.fromkeys(method.name for method in spec.methods))
    wanted = spec.head.paired_with
    if wanted is not None and wanted not in names:
        raise UserError(
            f"{where}table.paired_with is '{wanted}', which is no method of the table"
            f"{nearest(wanted, names)} (methods: {', '.join(names)})"
        )


def _check_budget(spec: Spec, where: str) -> None:
    """An equal budget: at most so many points, or else equally many for all methods."""
    sizes: dict[str, int] = {}
    most = spec.tuning.points
    for method in spec.methods:
        name, size = method.name, method.grid_size
        sizes[name] = max(size, sizes.get(name, 0))
        if most is not None and size > most:
            raise UserError(
                f"{where}method '{name}': its grid has {size} points, tuning.points allows {most}"
            )
    if most is None and len(set(sizes.values())) > 1:
        few, many = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
        raise UserError(
            f"{where}tuning is not equal: the grid of '{many}' has {sizes[many]} points, that of '{few}' "
            f"{sizes[few]}; make them equal, or state a maximum for all in tuning.points"
        )
    for entry in spec.entries():
        tuned = [method.name for method in spec.methods_on(entry) if method.grid_size > 1]
        if tuned and spec.validation(entry) == 0:
            told = f"{where}table.validation is 0"
            if "validation" in entry.settings or entry.swept is not None:
                told = f"{where}validation is 0 on {entry.label}"
            raise UserError(
                f"{told}, but the grid of '{tuned[0]}' is chosen on validation examples; give a share, such as 0.1"
            )


def _unique(names: list[str], what: str, then: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{what} '{name}'; {then}")
