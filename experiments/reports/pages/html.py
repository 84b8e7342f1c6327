"""Pieces of a self-contained HTML page: everything that comes from a run is escaped."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from pyro_pfedbayes.experiments.reports.figures.figure_bytes import drawing
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    UNDEFINED as UNDEFINED,
)
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    amount as amount,
)
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    number as number,
)
from pyro_pfedbayes.experiments.reports.pages.formatting import (
    percent as percent,
)
from pyro_pfedbayes.experiments.reports.pages.render import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHORT = 22  # letters of a name that is not broken, but on a phone
Section = tuple[str, str]
"""Heading and content, HTML."""


def escaped(text: object) -> str:
    """Text as HTML, quotes included.

    Example:
        >>> escaped('<b> & "x"')
        '&lt;b&gt; &amp; &quot;x&quot;'
    """
    # Characters that no XML may hold, such as a terminal's escapes, would only spoil the page.
    return html.escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "?", str(text)), quote=True)


def prose(text: str) -> str:
    """Running text as HTML, in which no line ends between a number and its per-cent sign."""
    return escaped(text).replace(" %", "&nbsp;%")


def side_by_side(*blocks: str) -> str:
    """Blocks next to one another where there is room, else one below the other."""
    return f'<div class="figures">{"".join(blocks)}</div>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_class(kind)}>{prose(text)}</p>"


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    text: Sequence[int] = (),
    marked: Sequence[int] = (),
) -> str:
    """A table that scrolls sideways where it does not fit.

    Args:
        caption: Plain text.
        head: Headings of the columns.
        rows: Plain texts; the first of each names its row.
        text: Columns of running text.
        marked: Rows that need attention.
    """
    heads = "".join(
        f'<th scope="col"{_class("text" if i in text else "")}>{escaped(cell)}</th>'
        for i, cell in enumerate(head)
    )
    lines = []
    for place, row in enumerate(rows):
        cells = "".join(
            f"<td{_class('text' if i in text else '')}>{escaped(cell)}</td>"
            for i, cell in enumerate(row)
            if i
        )
        kind = _class("need" if place in marked else "")
        short = _class("short" if len(row[0]) <= _SHORT else "")
        lines.append(f'<tr{kind}><th scope="row"{short}>{escaped(row[0])}</th>{cells}</tr>')
    body = "\n".join(lines)
    return (
        f'<div><p class="caption">{prose(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(caption)}">'
        f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></div>"
    )


def figure_block(figure: Figure, alt: str, caption: str) -> str:
    """A figure as an image within the page.

    Args:
        figure: What to show.
        alt: What it shows, for those who do not see it: plain text.
        caption: How to read it: plain text.
    """
    content = base64.b64encode(drawing(figure)).decode()
    return (
        f'<figure><img src="data:image/svg+xml;base64,{content}" alt="{escaped(alt)}">'
        f"<figcaption>{prose(caption)}</figcaption></figure>"
    )


def document(title: str, under: str, opening: str, sections: Sequence[Section]) -> str:
    """The whole page.

    Args:
        title: Plain text.
        under: What stands below it, plain text.
        opening: What stands above the table of contents, HTML.
        sections: The rest.
    """
    shown = [(heading, Markup(content)) for heading, content in sections]
    return render(
        "report.html.jinja", title=title, subtitle=under, answer=Markup(opening), sections=shown
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
