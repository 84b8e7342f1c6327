"""The user's exception is a one-line ValueError, and mistyped names get a hint."""

from __future__ import annotations

import pytest

from pyro_pfedbayes.errors import UserError, nearest


def test_user_error_is_a_value_error_and_keeps_its_message() -> None:
    with pytest.raises(ValueError, match=r"^zeta is -1: give a number >= 0$"):
        raise UserError("zeta is -1: give a number >= 0")


def test_user_error_folds_its_message_onto_one_line() -> None:
    assert str(UserError("cannot read  x.npz:\n\n   no such file\n")) == (
        "cannot read  x.npz: no such file"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mnits", "; did you mean 'mnist'?"),
        ("MNIST", "; did you mean 'mnist'?"),
        ("cifar", "; did you mean 'CIFAR10'?"),
        ("imagenet", ""),
        ("", ""),
    ],
)
def test_nearest_hints_at_the_closest_name_only_if_one_is_close(name: str, hint: str) -> None:
    assert nearest(name, ["digits", "mnist", "CIFAR10"]) == hint


def test_nearest_reads_any_iterable_and_survives_an_empty_one() -> None:
    assert nearest("mnist", iter(())) == ""
    assert nearest("mnit", {"fmnist": 1, "mnist": 2}) == "; did you mean 'mnist'?"
