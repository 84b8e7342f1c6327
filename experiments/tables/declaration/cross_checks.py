"""Whether the parts of a table's file fit together."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence

from pyro_pfedbayes.errors import UserError, nearest
from pyro_pfedbayes.experiments.config.registry import ALGORITHMS, algorithm_class, known
from pyro_pfedbayes.experiments.tables.declaration.spec import Method, Spec, Sweep, same, value_text

# Of the names of figures; file systems allow 255 bytes.
LONGEST_STEM = 120


def check_spec(spec: Spec, where: str) -> None:
    """Refuse a table whose parts do not fit, with the first mistake."""
    for mistake in _mistakes(spec):
        raise UserError(f"{where}{mistake}")


def _mistakes(spec: Spec) -> Iterator[str]:
    labels = [entry.label for entry in spec.data]
    data = sorted({name for entry in spec.data for name in (entry.name, entry.label)})
    yield from _repeated_seed(spec.head.seeds, "table.")
    yield from _repeated_seed(spec.tuning.seeds, "tuning.")
    for label in _repeated(labels):
        yield f"two [[data]] are called '{label}'; give one a label of its own"
    for method in spec.methods:
        for mistake in _in_method(method, labels, data):
            yield f"method '{method.name}': {mistake}"
    for name in _repeated([sweep.name for sweep in spec.sweeps]):
        yield f"two [[sweep]] are called '{name}'; rename one"
    if spec.head.only_sweeps and not spec.sweeps:
        yield "table.only_sweeps is true, but there is no [[sweep]]"
    for sweep in spec.sweeps:
        for mistake in _in_sweep(sweep, spec, data):
            yield f"sweep '{sweep.name}': {mistake}"
    yield from _in_stems(spec)
    for entry in spec.entries():
        for name in _repeated([method.name for method in spec.methods_on(entry)]):
            yield (
                f"two methods on {entry.label} are called '{name}'; give one a name of its own, or tell them apart "
                "by `on`"
            )
    names = list(dict.fromkeys(method.name for method in spec.methods))
    reference = spec.head.paired_with
    if reference is not None and reference not in names:
        yield (
            f"table.paired_with is '{reference}', which is no method of the table"
            f"{nearest(reference, names)} (methods: {', '.join(names)})"
        )
    yield from _in_budget(spec)


def _in_method(method: Method, labels: list[str], data: list[str]) -> Iterator[str]:
    try:
        known("method", method.algorithm_name, ALGORITHMS)
    except UserError as problem:
        yield str(problem)
    for what, names, options in (("on", method.on or (), data), ("paper", method.paper, labels)):
        for name in names:
            if name not in options:
                yield f"{what} names no data '{name}'{nearest(name, options)}"
    yield from _repeated_seed(method.seeds)
    if "name" in method.settings or "name" in method.grid:
        yield "settings and grid do not name the method; give algorithm"
    for key, values in method.grid.items():
        if not values:
            yield f"grid.{key} is empty; give the values to try"
        if _repeated([json.dumps(value) for value in values]):
            yield f"grid.{key} holds a value twice"
        if key in method.settings:
            yield f"{key} is both fixed in settings and tuned in grid; keep one"
        if not re.fullmatch(r"(model\.)?\w+", key):
            yield f"grid.{key}: give a setting of the method, or model.KEY"


def _in_sweep(sweep: Sweep, spec: Spec, data: list[str]) -> Iterator[str]:
    setting, methods = sweep.setting, sorted({method.name for method in spec.methods})
    if not re.fullmatch(r"(model\.\w+|data\.\w+|run\.participation|\w+)", setting):
        yield (
            f"setting is '{setting}'; give a setting of the methods, model.KEY, data.KEY or run.participation"
        )
    if setting in ("name", "data.name", "data.split"):
        yield f"{setting} is not varied by a sweep; declare rows or columns"
    for number, value in enumerate(sweep.values):
        # 1 is one client, 1.0 is all of them.
        exact = setting == "run.participation"
        earlier = sweep.values[:number]
        if any(same(value, v) and (not exact or type(value) is type(v)) for v in earlier):
            yield f"values holds {value_text(value)} twice"
    for what, noun, names, options in (
        ("methods", "method", sweep.methods, methods),
        ("on", "data", sweep.on, data),
    ):
        for name in names or ():
            if name not in options:
                hint = nearest(name, options) or f" (known: {', '.join(options)})"
                yield f"{what} names no {noun} '{name}'{hint}"
    for number, row in enumerate(sweep.paper):
        at = value_text(row.at)
        if not any(same(row.at, value) for value in sweep.values):
            values = ", ".join(map(value_text, sweep.values))
            yield f"paper has figures at {at}, which is no value of it ({values})"
        if any(same(row.at, other.at) for other in sweep.paper[:number]):
            yield f"paper has figures at {at} twice"
    run = [m for m in spec.methods if sweep.methods is None or m.name in sweep.methods]
    if any(setting in method.grid for method in run):
        yield f"{setting} is both swept and tuned in a grid; keep one"
    if "." not in setting:
        having = [method.name for method in run if setting in settings_of(method)]
        hint = f"; name those that have it in methods ({', '.join(having)})" if having else ""
        for method in run:
            if method.name not in having:
                yield f"method '{method.name}' has no setting '{setting}'{hint}"
    if not any(spec.methods_on(entry) for entry in spec.swept(sweep)):
        yield "none of its methods runs on any of its data; look at `on`"


def _in_stems(spec: Spec) -> Iterator[str]:
    """Names under which two figures would be one file, or none."""
    stems: dict[str, str] = {}
    for sweep in spec.sweeps:
        for base in dict.fromkeys(entry.base for entry in spec.swept(sweep)):
            stem, place = sweep.stem(base), f"sweep '{sweep.name}' on {base}"
            if len(stem) > LONGEST_STEM:
                yield (
                    f"{place}: its figure's name would have {len(stem)} characters, at most {LONGEST_STEM} are "
                    "allowed; shorten its name"
                )
            if stem in stems:
                yield (
                    f"{place} and {stems[stem]} would both draw {stem}.svg; give one another name (Latin letters and "
                    "digits count)"
                )
            stems[stem] = place


def _in_budget(spec: Spec) -> Iterator[str]:
    """An equal budget: at most so many points, or else equally many for all methods."""
    most = spec.tuning.points
    sizes: dict[str, int] = {}
    for method in spec.methods:
        name, size = method.name, method.grid_size
        sizes[name] = max(size, sizes.get(name, 0))
        if most is not None and size > most:
            yield f"method '{name}': its grid has {size} points, tuning.points allows {most}"
    few, many = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if most is None and sizes[few] < sizes[many]:
        yield (
            f"tuning is not equal: the grid of '{many}' has {sizes[many]} points, that of '{few}' {sizes[few]}; make "
            "them equal, or state a maximum for all in tuning.points"
        )
    for entry in spec.entries():
        tuned = [method.name for method in spec.methods_on(entry) if method.grid_size > 1]
        swept = entry.sweep is not None and entry.sweep.setting == "data.validation"
        default = entry.settings.get("validation", spec.head.validation)
        if tuned and (entry.value if swept else default) == 0:
            own = "validation" in entry.settings or entry.sweep is not None
            place = f"validation is 0 on {entry.label}" if own else "table.validation is 0"
            yield (
                f"{place}, but the grid of '{tuned[0]}' is chosen on validation examples; give a share, such as 0.1"
            )


def settings_of(method: Method) -> set[str]:
    """The settings that the algorithm of a method has."""
    return {field.name for field in dataclasses.fields(algorithm_class(method.algorithm_name))}


def _repeated_seed(seeds: Sequence[int] | None, place: str = "") -> Iterator[str]:
    if seeds is not None and len(set(seeds)) < len(seeds):
        yield f"{place}seeds holds a seed twice: {list(seeds)}"


def _repeated(names: list[str]) -> list[str]:
    return [name for name in names if names.count(name) > 1]
