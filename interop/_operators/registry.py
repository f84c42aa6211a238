"""The operators that are defined, by name: the newest of each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from interop._operators.description import Description

__all__ = ["all_newest", "check_newest", "find", "listen", "register"]

_newest: dict[str, Description] = {}
_listeners: list[Callable[[Description], object]] = []
_lock = threading.Lock()


def register(description: Description) -> Description:
    """Return the newest operator of this name: the one that is there, if it is made of the same; else this one."""
    with _lock:
        found = _newest.get(description.name)
        if found is None or found.key != description.key:
            for listener in _listeners:
                listener(description)
            found = _newest[description.name] = description
        return found


def listen(listener: Callable[[Description], object]) -> None:
    """Call a function with each operator that is defined from now on; what it raises, the definition raises."""
    with _lock:
        _listeners.append(listener)


def all_newest() -> list[Description]:
    """Return the operators that are defined."""
    return list(_newest.values())


def find(name: str) -> Description | None:
    """Return the newest operator of this name, or None."""
    return _newest.get(name)


def check_newest(description: Description) -> None:
    """Raise for an operator in whose place another one has come since, where what follows goes by its name."""
    found = _newest.get(description.name)
    if found is not None and found.key != description.key:
        raise ValueError(
            f"{description.label}: it has been defined again, of other content; accepted: the newest operator of this "
            "name, or two names"
        )
