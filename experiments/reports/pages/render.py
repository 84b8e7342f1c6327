"""Pages from templates: self-contained HTML, in which all that comes from a run is escaped."""

from __future__ import annotations

import base64
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
from markupsafe import Markup, escape

from pyro_pfedbayes.atomic_files import write_atomically
from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.collect.point_methods import POINT
from pyro_pfedbayes.experiments.reports.figures.figure_bytes import drawing
from pyro_pfedbayes.experiments.reports.figures.style import MODELS, MOST_CLIENTS
from pyro_pfedbayes.experiments.reports.pages import formatting
from pyro_pfedbayes.experiments.reports.schema import NOT_STORED
from pyro_pfedbayes.experiments.runs.folder import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HERE = "pyro_pfedbayes.experiments.reports.pages"


def render(template: str, package: str = _HERE, **values: object) -> str:
    """A page from a template.

    Args:
        template: File in the folder ``templates`` of the package, or of this one.
        package: Whose templates come before those of this package.
        values: What the template shows.
    """
    return environment(package).get_template(template).render(values)


def fragment(template: str, **values: object) -> Markup:
    """A part of a page, from a template of this package."""
    return Markup(environment().get_template(template).render(values))


@functools.cache
def environment(package: str = _HERE) -> jinja2.Environment:
    """Templates of a package, which may extend those of this one."""
    loaders = [jinja2.PackageLoader(name) for name in dict.fromkeys((package, _HERE))]
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    shown = (
        formatting.amount,
        formatting.number,
        formatting.percent,
        formatting.sentence,
        anchor,
        data_url,
        one_line,
        prose,
    )
    made.globals |= {
        "MODELS": MODELS,
        "MOST_CLIENTS": MOST_CLIENTS,
        "NOT_ABOUT": formatting.NOT_ABOUT,
        "NOT_STORED": NOT_STORED,
        "POINT": POINT,
        "SHORT": formatting.SHORT,
        "UNDEFINED": formatting.UNDEFINED,
    }
    made.filters |= {function.__name__: function for function in shown}
    return made


def one_line(text: str) -> Markup:
    """Text without line breaks, such as those of a template."""
    return Markup(re.sub(r"\s*\n\s*", " ", escape(_printable(text))).strip())


def prose(text: str) -> Markup:
    """Running text, in which no line ends between a number and its per-cent sign."""
    return one_line(text).replace(" %", Markup("&nbsp;%"))


def data_url(figure: Figure) -> str:
    """A figure as the address of an image within the page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(drawing(figure)).decode()}"


def anchor(heading: str) -> str:
    """The id of a section."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def check_page_path(path: Path) -> None:
    """Refuse, before any work, a file that a page could not be written to."""
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; give a file, such as {path / 'report.html'}")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: there is no folder {path.parent}")


def write_page(path: Path, text: str) -> None:
    """Write a page in one step: what was there stays until the new one is whole."""
    with writing(path):
        write_atomically(path, text.encode(errors="replace").decode())


def _printable(value: object) -> object:
    """Text without characters that no XML may hold, such as a terminal's escapes."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "?", value)
    return value
