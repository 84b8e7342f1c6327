"""A page of headings, paragraphs and tables, before it is written in Markdown, HTML or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_pfedbayes.experiments.tables.pages.sweep_figure import Curves


@dataclass(frozen=True)
class Mark:
    """What stands in a cell.

    Attributes:
        text: Plain; empty for nothing.
        bold: Whether it is the best of its column.
    """

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
    """A table.

    Attributes:
        caption: What it shows.
        columns: Headings; the first is that of the rows' names.
        rows: Name and cells.
        notes: Below the table, a line each.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Mark, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """A figure, with files of its own beside the page.

    Attributes:
        caption: What it shows.
        stem: Name of its files, without an ending.
        curves: What is drawn.
    """

    caption: str
    stem: str
    curves: Curves


Block = Heading | Text | Sheet | Picture


@dataclass(frozen=True)
class Document:
    """A page.

    Attributes:
        title: Of the page.
        blocks: From top to bottom.
    """

    title: str
    blocks: tuple[Block, ...]
