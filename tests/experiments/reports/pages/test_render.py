"""Templates: each one compiles, an installed copy holds them, and other packages can extend the base page."""

from __future__ import annotations

import fnmatch
import tomllib
from pathlib import Path

from pyro_pfedbayes.experiments.reports.pages.render import environment

ROOT = Path(__file__).parents[4]
PAGES = ROOT / "experiments" / "reports" / "pages"


def test_every_template_compiles_and_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["pyro_pfedbayes.experiments.reports.pages"]
    names = environment().list_templates()
    assert "base.html.jinja" in names
    for name in names:
        environment().get_template(name)
        assert (PAGES / "templates" / name).is_file()
        assert any(fnmatch.fnmatch(f"templates/{name}", pattern) for pattern in patterns)


def test_a_caption_is_one_line_in_which_a_share_keeps_its_sign() -> None:
    source = (
        '{% from "macros.html.jinja" import paragraph %}{% call paragraph() %}\n'
        "{{ text }}\n  of 5 %\n{% endcall %}"
    )
    found = environment().from_string(source).render(text="<b> 90 %")
    assert found.strip() == "<p>&lt;b&gt; 90&nbsp;% of 5&nbsp;%</p>"
