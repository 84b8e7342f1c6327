"""A page of headings, paragraphs and tables, and how it is written in Markdown, HTML and LaTeX."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import jinja2

from pyro_pfedbayes.experiments.reports.pages.render import environment, render
from pyro_pfedbayes.experiments.tables.pages.sweep_figure import Curves

PACKAGE = "pyro_pfedbayes.experiments.tables.pages"
_LATEX: dict[str, str | int | None] = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "|": "\\textbar{}",
    "±": "$\\pm$",
    "−": "$-$",
    "–": "--",
    "…": "\\dots{}",
    "“": "``",
    "”": "''",
    "<": "$<$",
    ">": "$>$",
}


@dataclass(frozen=True)
class Mark:
    """What stands in a cell; the best of a column is bold."""

    text: str
    bold: bool = False


@dataclass(frozen=True)
class Heading:
    """A heading of the second level."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Sheet:
    """A table."""

    caption: str
    columns: tuple[str, ...]  # headings; the first is that of the rows' names
    rows: tuple[tuple[Mark, ...], ...]
    notes: tuple[str, ...] = ()  # below the table, a line each


@dataclass(frozen=True)
class Picture:
    """A figure, which has files of its own beside the page."""

    caption: str
    stem: str  # name of its files, without an ending
    curves: Curves


Block = Heading | Text | Sheet | Picture


@dataclass(frozen=True)
class Document:
    """A page."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def pictures(self) -> list[Picture]:
        """Its figures."""
        return [block for block in self.blocks if isinstance(block, Picture)]


def to_markdown(page: Document) -> str:
    r"""GitHub's Markdown.

    Example:
        >>> print(to_markdown(Document("T", (Sheet("c", ("m", "PM"), ((Mark("a|b"), Mark("1", True)),)),))))
        # T
        <BLANKLINE>
        c
        <BLANKLINE>
        | m | PM |
        | --- | ---: |
        | a\|b | **1** |
        <BLANKLINE>
    """
    return _plain("table.md.jinja", page, lambda text: re.sub(r"([\\|*_`<])", r"\\\1", text))


def to_latex(page: Document) -> str:
    """Tables to be put into a document that uses the packages booktabs and, if there are figures, graphicx."""
    return _plain("table.tex.jinja", page, lambda text: text.translate(str.maketrans(_LATEX)))


def to_html(page: Document) -> str:
    """One file; nothing is loaded, and there are no scripts."""
    pictures = {p.stem: base64.b64encode(p.curves.svg()).decode() for p in page.pictures}
    return render(
        "table.html.jinja", PACKAGE, title=page.title, page=page, kind=_kind, pictures=pictures
    )


def _plain(template: str, page: Document, escape: Callable[[str], str]) -> str:
    found = plain_environment().get_template(template)
    return found.render(page=page, kind=_kind, text=lambda text: escape(" ".join(text.split())))


@functools.cache
def plain_environment() -> jinja2.Environment:
    """Templates of other than HTML; braces are LaTeX's."""
    return environment(PACKAGE).overlay(
        autoescape=False, variable_start_string="<<", variable_end_string=">>"
    )


def _kind(block: Block) -> str:
    return type(block).__name__


RENDERERS = {"md": to_markdown, "html": to_html, "tex": to_latex}
"""By the ending of a file's name."""
