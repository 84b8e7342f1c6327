"""Pieces of a self-contained HTML page: everything that comes from a run is escaped."""

from __future__ import annotations

import base64
import html
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyro_pfedbayes.errors import UserError
from pyro_pfedbayes.experiments.reports.figures.figure_bytes import drawing
from pyro_pfedbayes.experiments.runs.folder import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNDEFINED = "–"
_SHORT = 22  # letters of a name that is not broken, but on a phone
_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 68rem; background: #fff; color: #1a1a1a;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.55rem; line-height: 1.25; margin: .4rem 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .5rem; padding-top: .5rem; border-top: 1px solid #bbb; }
p, ul { margin: .5rem 0; max-width: 46rem; }
a { color: #0b4f8a; }
.sub { color: #555; }
.answer { border-left: .35rem solid #0b4f8a; background: #f3f6f9; padding: .6rem 1rem; margin: 1rem 0; }
.answer p, .answer ul { max-width: none; }
.note { border-left: .35rem solid #9a6a00; background: #fdf8ec; padding: .3rem 1rem; margin: .8rem 0; }
.gone { color: #555; font-style: italic; }
nav ul { columns: 15rem; padding-left: 1.2rem; max-width: none; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem;
  align-items: start; }
figure { margin: .6rem 0; max-width: 34rem; }
figure img { width: 100%; height: auto; display: block; }
figcaption { font-size: .88rem; color: #444; }
.scroll { overflow-x: auto; margin: 0 0 .6rem; padding-bottom: .1rem;
  background: linear-gradient(to left, #fff 1rem, transparent 3rem) right / 3rem 100% no-repeat local,
  linear-gradient(to left, #9aa 0, transparent 1.1rem) right / 1.1rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.caption { font-size: .88rem; color: #444; margin: .6rem 0 .2rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; vertical-align: top;
  white-space: nowrap; }
thead th { border-bottom: 2px solid #555; vertical-align: bottom; white-space: normal; max-width: 14rem; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
th.text, td.text { white-space: normal; }
td.text { min-width: 9rem; }
th[scope=row] { font-weight: 600; max-width: 14rem; white-space: normal; }
th.short[scope=row] { white-space: nowrap; }
tr.need th[scope=row]::before { content: "! "; }
pre { overflow-x: auto; background: #f6f6f6; padding: .7rem; font-size: .82rem; line-height: 1.4; columns: 20rem; }
.figures > * { min-width: 0; }
@media (max-width: 40rem) { body { padding: .7rem; } th, td { padding: .25rem .4rem; }
  table { font-size: .82rem; } .scroll th[scope=row] { position: sticky; left: 0; background: #fff; max-width: 9rem;
  border-right: 1px solid #ddd; } .scroll thead th:first-child { position: sticky; left: 0; background: #fff; }
  .scroll th.short[scope=row] { max-width: none; } td.text { min-width: 14rem; } }
@page { margin: 14mm; }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } nav { display: none; }
  figure, tr, .answer, .note { break-inside: avoid; } h2 { break-after: avoid; } a { color: inherit; }
  .scroll { overflow: visible; } th, td { padding: .15rem .35rem; font-size: 8.5pt; white-space: normal; }
  pre { white-space: pre-wrap; } .figures { grid-template-columns: 1fr 1fr; } }
"""
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


def amount(number: int, what: str) -> str:
    """A number and its noun.

    Example:
        >>> amount(1, "client"), amount(20_000, "example")
        ('1 client', '20,000 examples')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def percent(value: float | None, digits: int = 1) -> str:
    """A share in per cent, without the sign; a dash where it is not defined."""
    defined = value is not None and math.isfinite(value)
    return f"{100 * value:.{digits}f}" if defined and value is not None else UNDEFINED


def number(value: float | None) -> str:
    """A number to three significant places or more; a dash where it is not defined.

    Example:
        >>> number(0.12345), number(1234.5), number(float("nan"))
        ('0.123', '1,234', '–')
    """
    if value is None or not math.isfinite(value):
        return UNDEFINED
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-4:
        return f"{value:.2e}"
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:.3f}"
        if abs(value) < 10
        else f"{value:.1f}"
    )


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
    anchors = [_anchor(heading) for heading, _ in sections]
    contents = "".join(
        f'<li><a href="#{anchor}">{escaped(heading)}</a></li>'
        for anchor, (heading, _) in zip(anchors, sections, strict=True)
    )
    body = "\n".join(
        f'<section><h2 id="{anchor}">{escaped(heading)}</h2>\n{content}\n</section>'
        for anchor, (heading, content) in zip(anchors, sections, strict=True)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{escaped(title)}</h1>\n<p class="sub">{escaped(under)}</p></header>\n<main>\n{opening}\n'
        f'<nav aria-label="contents"><h2>Contents</h2><ul>{contents}</ul></nav>\n{body}\n</main>\n</body>\n</html>\n'
    )


def check_page_path(path: Path) -> None:
    """Refuse, before any work, a file that a page could not be written to."""
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; give a file, such as {path / 'report.html'}")
    if not path.parent.is_dir():
        raise UserError(f"--output {path}: there is no folder {path.parent}")


def write_page(path: Path, text: str) -> None:
    """Write a page in one step: what was there stays until the new one is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            temporary.write_text(text, encoding="utf-8", errors="replace")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
