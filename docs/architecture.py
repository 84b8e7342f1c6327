"""Keep ``architecture.md`` true: its drawing of the rooms from the imports, its line numbers from the code they name.

``python docs/architecture.py`` rewrites the page; a test runs the same functions and compares.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
STOREYS = ("experiments", "inference", "models", "pyro_pfedbayes")
LINK = re.compile(r'\]\(\.\./(?P<file>[\w/]+\.py)(?:#L\d+)? "(?P<code>[^"]+)"\)')


def room_of(name: str) -> str | None:
    """The room ``storey/room`` of a dotted name of ours; models is drawn as one room."""
    parts = name.split(".")
    if parts[0] != "pyro_pfedbayes" or len(parts) < 2:
        return None
    storey, rest = (parts[1], parts[2:]) if parts[1] in STOREYS else (parts[0], parts[1:])
    if storey == "models":
        return storey
    if not rest or not any((ROOT / storey / rest[0]).with_suffix(s).exists() for s in ("", ".py")):
        return None
    return f"{storey}/{rest[0]}"


def rooms() -> dict[str, set[str]]:
    """Which rooms each room imports."""
    found: dict[str, set[str]] = defaultdict(set)
    for storey in STOREYS:
        for path in sorted((ROOT / storey).rglob("*.py")):
            dotted = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            own = room_of(dotted if storey == "pyro_pfedbayes" else f"pyro_pfedbayes.{dotted}")
            if own is None or own.endswith("__init__"):
                continue
            found[own] |= set()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                else:
                    continue
                found[own] |= {r for r in map(room_of, names) if r and r != own}
    return dict(found)


def floors(arrows: dict[str, set[str]]) -> dict[str, int]:
    """How high each room lies within its storey: one above the highest that it imports there."""
    heights: dict[str, int] = {}

    def height(room: str) -> int:
        if room not in heights:
            storey = room.split("/")[0]
            below = [height(r) for r in arrows[room] if r.split("/")[0] == storey]
            heights[room] = 1 + max(below, default=-1)
        return heights[room]

    for room in arrows:
        height(room)
    return heights


def drawing() -> str:
    """The rooms as a Mermaid chart: a box a storey, the highest floor first, without arrows that follow from others."""
    arrows = rooms()
    above: dict[str, set[str]] = {}

    def reach(room: str) -> set[str]:
        if room not in above:
            above[room] = set().union(*({r} | reach(r) for r in arrows[room]), set())
        return above[room]

    heights = floors(arrows)
    lines = ["```mermaid", "flowchart TD"]
    for storey in STOREYS:
        lines.append(f'  subgraph {storey}_storey["{storey}/"]')
        own = [room for room in arrows if room.split("/")[0] == storey]
        for room in sorted(own, key=lambda room: (-heights[room], room)):
            lines.append(f'    {room.replace("/", "_")}["{room.split("/")[-1]}"]')
        lines.append("  end")
    for room in sorted(arrows):
        direct = {r for r in arrows[room] if not any(r in reach(o) for o in arrows[room] - {r})}
        lines += [f"  {room.replace('/', '_')} --> {r.replace('/', '_')}" for r in sorted(direct)]
    return "\n".join([*lines, "```"])


def with_line_numbers(text: str) -> str:
    """The page with each link on the first line that holds the code in the link's title."""

    def linked(match: re.Match[str]) -> str:
        file, code = match["file"], match["code"]
        for number, line in enumerate((ROOT / file).read_text().splitlines(), 1):
            if code in line:
                return f'](../{file}#L{number} "{code}")'
        raise LookupError(f"docs/architecture.md: no line of {file} holds {code!r}")

    return LINK.sub(linked, text)


def updated(text: str) -> str:
    """The page as it should read today."""
    drawn = re.sub(r"```mermaid\n.*?```", lambda _: drawing(), text, flags=re.DOTALL)
    return with_line_numbers(drawn)


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
