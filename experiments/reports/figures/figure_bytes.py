"""Figures as bytes: the same figure gives the same ones."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawing(figure: Figure, form: Literal["svg", "pdf"] = "svg") -> bytes:
    """A figure as an SVG element or a PDF file.

    Args:
        figure: What to draw.
        form: ``"svg"`` or ``"pdf"``.
    """
    import matplotlib

    out = io.BytesIO()
    # A fixed salt and no date: the same run gives the same page.
    options = {"svg.hashsalt": "pfedbayes", "svg.fonttype": "path"}
    date = "Date" if form == "svg" else "CreationDate"
    with matplotlib.rc_context(options), warnings.catch_warnings():
        # A letter that the font lacks is shown as a box; the table beside the figure has the name.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(out, format=form, metadata={date: None})
    found = out.getvalue()
    # An SVG without the prolog, which names a document type on the network.
    return found[found.index(b"<svg") :] if form == "svg" else found
