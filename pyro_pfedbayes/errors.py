"""The exceptions of the package: a mistake a user can mend, a run that is stopped; a hint for names mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user gave, in one line.

    The command line prints the message alone, without a traceback, so it is folded onto one line.

    Example:
        >>> raise UserError("zeta is -1: give a number >= 0")
        Traceback (most recent call last):
        ...
        pyro_pfedbayes.errors.UserError: zeta is -1: give a number >= 0
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(line.strip() for line in message.splitlines() if line.strip()))


class Interrupted(Exception):
    """The user stopped what was running; the message says how to carry on."""


def nearest(name: str, options: Iterable[str]) -> str:
    """A hint to append to a message about a name that is none of ``options``; "" if none is like it.

    Example:
        >>> nearest("mnits", ["digits", "mnist", "cifar10"])
        "; did you mean 'mnist'?"
        >>> nearest("imagenet", ["digits", "mnist", "cifar10"])
        ''
    """
    by_folded: dict[str, str] = {}
    for option in options:
        by_folded.setdefault(option.casefold(), option)
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=1)
    return f"; did you mean {by_folded[close[0]]!r}?" if close else ""


def unknown(what: str, name: str, options: Iterable[str]) -> UserError:
    """The error for a name that is none of ``options``: ``what`` and the name, a hint, and the options."""
    known = list(options)
    return UserError(f"{what} '{name}'{nearest(name, known)} (known: {', '.join(known)})")
