"""The figures that people quote: last, best and selected, of classes and of numbers."""

from __future__ import annotations

import math
from typing import Any

from pyro_pfedbayes.inference.federation.state import FederationState
from pyro_pfedbayes.inference.federation.summary import summarize

NONE = {"last": None, "best": None, "selected": None}


def summary(personal: list[dict[str, Any]], outcome: str = "class") -> dict[str, Any]:
    history = tuple({"personal": record, "global": {}} for record in personal)
    return summarize(FederationState(round=9, server={}, history=history), outcome)


def number(rmse: float, **further: Any) -> dict[str, Any]:
    return {"rmse": rmse, "mae": 1.0, "nll": 2.0, "coverage90": 0.9, **further}


def judged(rmse: float, validation: float | None, nll: float | None = 1.0) -> dict[str, Any]:
    return number(rmse, validation_rmse=validation, validation_nll=nll)


def test_numbers_are_the_better_the_lower() -> None:
    found = summary([judged(3.0, 5.0), judged(2.0, 6.0), judged(4.0, 4.0), judged(3.5, 7.0)])
    assert found["personal"] == {
        "rmse": {"last": 3.5, "best": 2.0, "selected": 4.0},
        "mae": 1.0,
        "nll": 2.0,
        "coverage90": 0.9,
    }


def test_the_likelihood_decides_between_equals() -> None:
    found = summary([judged(3.0, 5.0, nll=2.0), judged(2.0, 5.0, nll=1.5), judged(1.0, 5.0, nll=3)])
    assert found["personal"]["rmse"]["selected"] == 2.0


def test_a_round_without_a_number_is_never_the_best() -> None:
    """NaN while the run goes on; None after its checkpoint was read, as JSON has no NaN."""
    for bad in (math.nan, None):
        rows = [judged(7.0, 8.0, nll=bad), judged(bad, bad, nll=bad), judged(9.0, 8.0, nll=4.0)]  # type: ignore[arg-type]
        found = summary(rows)["personal"]["rmse"]
        assert (found["last"], found["best"], found["selected"]) == (9.0, 7.0, 9.0)


def test_the_mean_weights_stand_beside() -> None:
    found = summary([number(3.0, mean_weights_rmse=2.5)])
    assert found["personal"]["mean_weights_rmse"] == 2.5
    assert found["personal"]["rmse"] == {"last": 3.0, "best": 3.0, "selected": None}


def test_without_test_examples_there_are_no_figures_of_the_right_kind() -> None:
    assert summary([{}])["personal"] == {"accuracy": NONE}
    assert summary([{}], "number")["personal"] == {"rmse": NONE}
    only = {"validation_rmse": 1.0, "validation_nll": 1.0}
    assert summary([only])["personal"] == {"rmse": NONE}
    assert summary([])["global"] == {"accuracy": NONE}


def test_classes_are_the_better_the_higher() -> None:
    def row(accuracy: float, validation: float) -> dict[str, Any]:
        further = {"nll": 1.0, "ece": 0.1, "brier": 0.2, "validation_nll": 1.0}
        return {"accuracy": accuracy, "validation_accuracy": validation, **further}

    found = summary([row(0.7, 0.5), row(0.8, 0.4), row(0.6, 0.6), row(0.5, 0.1)])
    assert found["personal"]["accuracy"] == {"last": 0.5, "best": 0.8, "selected": 0.6}
