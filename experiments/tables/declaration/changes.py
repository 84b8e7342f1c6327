"""How two declarations of a table differ, in words: what was added is passed over where runs stay what they were."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# What changes no run.
_WITHOUT_EFFECT = ("title", "paired_with", "keep_checkpoints", "models", "paper")
# Lists that stand for so many runs, and may grow; another one is a value, such as ``hidden = [50]``.
_CHOICES = (".seeds", ": seeds", " on", ": values", ": methods")
_SHORT = 60


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What the first declaration has and the second has not, or has in another way, a line each.

    Both hold the sections ``table``, ``tuning``, ``data``, ``method`` and ``sweep`` as in ``table.json``.

    Example:
        >>> before = {"method": {"a": {"name": "a", "rounds": 3}, "b": {"name": "b", "on": ["wine"]}}}
        >>> changes(before, {"method": {"a": {"name": "a", "rounds": 4}}})
        ["method 'a': rounds was 3, is 4", "method 'b' on wine is gone"]
    """
    return list(_changes(before, now))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for section in ("table", "tuning"):
        yield from _settings(before.get(section, {}), now.get(section, {}), f"{section}.")
    for section in ("data", "method", "sweep"):
        members = now.get(section, {})
        for key, member in before.get(section, {}).items():
            other = members.get(key)
            name = f"{section} '{key}'"
            if section == "method":
                name = f"method '{member['name']}'"
                # One whose `on` has changed has another key.
                same = [m for m in members.values() if m["name"] == member["name"]]
                other = other or (same[0] if len(same) == 1 else None)
            if other is not None:
                yield from _settings(member, other, f"{name}: ")
            else:
                on = ", ".join(member.get("on") or ())
                yield f"{name}{f' on {on}' if on else ''} is gone"


def _settings(before: Mapping[str, Any], now: Mapping[str, Any], name: str) -> Iterator[str]:
    for key in dict.fromkeys([*before, *now]):
        old, new, full = before.get(key), now.get(key), f"{name}{key}"
        if key in _WITHOUT_EFFECT or old == new or (key == "on" and new is None):
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _settings(old, new, f"{full}.")
        elif isinstance(old, list) and isinstance(new, list) and _is_choice(full):
            gone = [_brief(value) for value in old if value not in new]
            if gone:
                yield f"{full} has no {' and no '.join(gone)} any more"
        else:
            was = "was not set" if old is None else f"was {_brief(old)}"
            yield f"{full} {was}, {'is left out' if new is None else f'is {_brief(new)}'}"


def _is_choice(name: str) -> bool:
    return name.endswith(_CHOICES) or ": grid." in name


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHORT else f"a value of {len(text)} characters"
