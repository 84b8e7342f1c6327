"""What a run's method says of its own results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro_pfedbayes.errors import UserError

BOTH = ("personal", "global")


def models_of_method(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The models that the method of a run is about, of ``personal`` and ``global``; both where nothing tells.

    Args:
        settings: ``config.toml``.

    Example:
        >>> models_of_method({"algorithm": {"name": "fedavg"}}), models_of_method({"algorithm": {"name": "of old"}})
        (('global',), ('personal', 'global'))
    """
    from pyro_pfedbayes.experiments.config.registry import algorithm_class

    section = settings.get("algorithm")
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        return BOTH
    try:
        found = algorithm_class(name)
        told = found.models
        # A method whose settings decide has a property.
        told = found().models if isinstance(told, property) else told
    except (UserError, AttributeError, TypeError):
        return BOTH
    return tuple(model for model in BOTH if model in told) or BOTH
