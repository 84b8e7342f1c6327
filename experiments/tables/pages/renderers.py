"""A page in Markdown, HTML and LaTeX."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Mapping

from pyro_pfedbayes.experiments.tables.pages.document import (
    Document,
    Heading,
    Mark,
    Picture,
    Sheet,
    Text,
)

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; padding: 0 1rem; max-width: 75rem; }
figure { margin: 1rem 0; }
figcaption { font-style: italic; }
img { max-width: 100%; background: #fff; }
div { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #8886; }
th:first-child { text-align: left; }
td, th[scope=row] { white-space: nowrap; }
thead th:not(:first-child) { min-width: 4.5rem; }
td.long { white-space: normal; text-align: left; min-width: 16rem; }
"""

# Characters; longer than any figure with its interval.
_LONG = 45


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
    parts = [f"# {_markdown(page.title)}"]
    for block in page.blocks:
        if isinstance(block, Sheet):
            rule = ["---", *["---:"] * (len(block.columns) - 1)]
            rows = [[_markdown(c) for c in block.columns], rule]
            rows += [[_bold(m, _markdown, "**{}**") for m in row] for row in block.rows]
            parts.append(_markdown(block.caption))
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
            if block.notes:
                parts.append("\n".join(f"- {_markdown(note)}" for note in block.notes))
        elif isinstance(block, Picture):
            parts.append(f"![{_markdown(block.caption)}]({block.stem}.svg)")
        elif isinstance(block, Heading):
            parts.append(f"## {_markdown(block.text)}")
        else:
            parts.append(_markdown(block.text))
    return "\n\n".join(parts) + "\n"


def to_html(page: Document) -> str:
    """One file; nothing is loaded, and there are no scripts."""
    parts, number = [f"<h1>{html.escape(page.title)}</h1>"], 0
    for block in page.blocks:
        if isinstance(block, Sheet):
            head = "".join(f'<th scope="col">{html.escape(c)}</th>' for c in block.columns)
            rows = "\n".join(
                "<tr>"
                + f'<th scope="row">{html.escape(row[0].text)}</th>'
                + "".join(map(_html_cell, row[1:]))
                + "</tr>"
                for row in block.rows
            )
            # A wide table scrolls in a box of its own, which the keyboard reaches as well; its caption stays.
            number += 1
            notes = "".join(f"<li>{html.escape(note)}</li>" for note in block.notes)
            parts.append(
                f'<figure><figcaption id="t{number}">{html.escape(block.caption)}</figcaption>\n'
                f'<div role="region" aria-labelledby="t{number}" tabindex="0"><table>\n'
                f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
                f"{f'<ul>{notes}</ul>' if notes else ''}</figure>"
            )
        elif isinstance(block, Picture):
            drawing, caption = (
                base64.b64encode(block.curves.svg()).decode(),
                html.escape(block.caption),
            )
            parts.append(
                f'<figure><img src="data:image/svg+xml;base64,{drawing}" alt="{caption}; the table above has the '
                f'figures"><figcaption>{caption}</figcaption></figure>'
            )
        else:
            tag = "h2" if isinstance(block, Heading) else "p"
            parts.append(f"<{tag}>{html.escape(block.text)}</{tag}>")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(page.title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _html_cell(mark: Mark) -> str:
    """Figures stay on one line; reasons and settings may break."""
    kind = ' class="long"' if len(mark.text) > _LONG else ""
    return f"<td{kind}>{_bold(mark, html.escape, '<b>{}</b>')}</td>"


def to_latex(page: Document) -> str:
    """Tables to be put into a document that uses the packages booktabs and, if there are figures, graphicx."""
    drawn = any(isinstance(block, Picture) for block in page.blocks)
    packages = "booktabs,graphicx" if drawn else "booktabs"
    parts = [
        f"% {' '.join(page.title.split())}: needs \\usepackage{{{packages}}}; names in other than Latin letters need "
        "XeLaTeX or LuaLaTeX"
    ]
    for block in page.blocks:
        if isinstance(block, Heading):
            parts.append(f"\\subsection*{{{_latex(block.text)}}}")
        elif isinstance(block, Text):
            parts.append(_latex(block.text))
        elif isinstance(block, Picture):
            parts.append(
                "\\begin{figure}[htbp]\n\\centering\n"
                f"\\includegraphics[width=\\linewidth]{{{block.stem}.pdf}}\n"
                f"\\caption{{{_latex(block.caption)}}}\n\\end{{figure}}"
            )
        else:
            parts.append(_latex_table(block))
    return "\n\n".join(parts) + "\n"


def _latex_table(sheet: Sheet) -> str:
    rows = [" & ".join(_bold(m, _latex, "\\textbf{{{}}}") for m in row) for row in sheet.rows]
    body = "\n".join(f"{row} \\\\" for row in rows)
    notes = "".join(f"\n\\par {_latex(note)}" for note in sheet.notes)
    return (
        "\\begin{table}[htbp]\n\\centering\\small\n"
        f"\\caption{{{_latex(sheet.caption)}}}\n"
        f"\\begin{{tabular}}{{l{'r' * (len(sheet.columns) - 1)}}}\n\\toprule\n"
        f"{' & '.join(_latex(c) for c in sheet.columns)} \\\\\n\\midrule\n{body}\n\\bottomrule\n"
        f"\\end{{tabular}}{notes}\n\\end{{table}}"
    )


def _bold(mark: Mark, escape: Callable[[str], str], form: str) -> str:
    text = escape(mark.text)
    return form.format(text) if mark.bold and text else text


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<])", r"\\\1", " ".join(text.split()))


_LATEX = {
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


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


RENDERERS: Mapping[str, Callable[[Document], str]] = {
    "md": to_markdown,
    "html": to_html,
    "tex": to_latex,
}
"""By the ending of a file's name."""
