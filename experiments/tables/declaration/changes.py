"""How two declarations of a table differ, in words: what was added is passed over where runs stay what they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# What changes no run.
_WITHOUT_EFFECT = ("title", "paired_with", "keep_checkpoints", "models", "paper")
_SHORT = 60


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What the first declaration has and the second has not, or has in another way, a line each.

    Args:
        before: Sections ``table``, ``tuning``, ``data``, ``method`` and ``sweep`` as ``table.json`` holds them.
        now: The same, of today.

    Example:
        >>> before = {"method": {"a": {"name": "a", "rounds": 3}, "b": {"name": "b", "on": ["wine"]}}}
        >>> changes(before, {"method": {"a": {"name": "a", "rounds": 4}}})
        ["method 'a': rounds was 3, is 4", "method 'b' on wine is gone"]
    """
    found: list[str] = []
    for section in ("table", "tuning"):
        found += _settings(before.get(section, {}), now.get(section, {}), f"{section}.")
    for section in ("data", "method", "sweep"):
        found += _members(section, before.get(section, {}), now.get(section, {}))
    return found


def _members(section: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key, member in before.items():
        called = f"{section} '{member.get('name', key) if section == 'method' else key}'"
        # One whose `on` has changed has another key.
        same = [m for m in now.values() if m.get("name") == member.get("name")]
        other = now.get(key) or (same[0] if section == "method" and len(same) == 1 else None)
        if other is not None:
            yield from _settings(member, other, f"{called}: ")
            continue
        on = ", ".join(member.get("on") or ())
        yield f"{called}{f' on {on}' if on else ''} is gone"


def _settings(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> Iterator[str]:
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if key in _WITHOUT_EFFECT or old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _settings(old, new, f"{name}{key}.")
        elif key == "on" and new is None:
            continue
        elif isinstance(old, list) and isinstance(new, list) and _is_choice(f"{name}{key}"):
            gone = [_brief(value) for value in old if value not in new]
            if gone:
                yield f"{name}{key} has no {' and no '.join(gone)} any more"
        else:
            yield f"{name}{key} {_was(old)}, {_is(new)}"


def _is_choice(name: str) -> bool:
    """Whether a list stands for so many runs, and may grow; another one is a value, such as ``hidden = [50]``."""
    return name.endswith((".seeds", ": seeds", " on", ": values", ": methods")) or ": grid." in name


def _was(value: Any) -> str:
    return "was not set" if value is None else f"was {_brief(value)}"


def _is(value: Any) -> str:
    return "is left out" if value is None else f"is {_brief(value)}"


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHORT else f"a value of {len(text)} characters"
