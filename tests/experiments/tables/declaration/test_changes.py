"""How a table differs from what it was, in words."""

from __future__ import annotations

from typing import Any

import pytest

from pyro_pfedbayes.experiments.tables.declaration.changes import changes

LONG = {"head": "x" * 100}
ONE = {"name": "a", "settings": {"lr": 0.1}, "grid": {"mu": [1, 2]}, "on": None, "model": {}}


def methods(**entries: Any) -> dict[str, Any]:
    return {"table": {"seeds": [1, 2], "rounds": 3, "title": "T"}, "method": entries}


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (methods(a=ONE), methods(), ["method 'a' is gone"]),
        (
            {"method": {"a+x+y": ONE | {"on": ["x", "y"]}}},
            {"method": {}},
            ["method 'a' on x, y is gone"],
        ),
        ({"data": {"digits": {"name": "digits"}}}, {"data": {}}, ["data 'digits' is gone"]),
        # What is new leaves the runs of before as they are.
        (methods(), methods(a=ONE), []),
        (methods(a=ONE), methods(a=ONE | {"grid": {"mu": [2, 3, 1]}, "paper": {}}), []),
        (methods(a=ONE | {"seeds": [1]}), methods(a=ONE | {"seeds": [1, 2]}), []),
        (methods(a=ONE), methods(a=ONE) | {"table": {"seeds": [2, 1, 3], "rounds": 3}}, []),
        (
            methods(a=ONE),
            methods(a=ONE | {"grid": {"mu": [1, 3]}}),
            ["method 'a': grid.mu has no 2 any more"],
        ),
        # ... but not if it is a setting of theirs.
        (
            methods(a=ONE),
            methods(a=ONE | {"settings": {"lr": 0.1, "b": True}}),
            ["method 'a': settings.b was not set, is true"],
        ),
        (
            methods(a=ONE | {"model": {"hidden": [50]}}),
            methods(a=ONE | {"model": {"hidden": [50, 50]}}),
            ["method 'a': model.hidden was [50], is [50, 50]"],
        ),
        (
            methods(a=ONE),
            methods(a=ONE | {"settings": {}}),
            ["method 'a': settings.lr was 0.1, is left out"],
        ),
        (
            methods(a=ONE | {"settings": LONG}),
            methods(a=ONE | {"settings": {"head": "y"}}),
            ["method 'a': settings.head was a value of 102 characters, is \"y\""],
        ),
        # `on` is a part of a method's key.
        (
            {"method": {"a+x+y": ONE | {"on": ["x", "y"]}}},
            {"method": {"a+x": ONE | {"on": ["x"]}}},
            ["method 'a': on has no \"y\" any more"],
        ),
        ({"method": {"a+x": ONE | {"on": ["x"]}}}, {"method": {"a": ONE}}, []),
        (
            {"method": {"a": ONE}},
            {"method": {"a+x": ONE | {"on": ["x"]}}},
            ["method 'a': on was not set, is [\"x\"]"],
        ),
    ],
)
def test_what_differs_is_said_in_words(
    before: dict[str, Any], now: dict[str, Any], told: list[str]
) -> None:
    assert changes(before, now) == told
