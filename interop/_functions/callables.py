"""What is known of a callable before it is called."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from interop._arguments import type_name

__all__ = ["check_callable", "inner", "name_of"]


def check_callable(label: str, function: Any) -> None:
    """Raise TypeError for what cannot be called, or would do its work after the call."""
    if not callable(function):
        raise TypeError(f"{label}: function is {type_name(function)}; accepted: a callable")
    if _runs_later(inner(function)):
        raise TypeError(
            f"{label}: function is {name_of(function)}, a generator or async function, which runs after the call; "
            "accepted: one that does its work in the call"
        )


def inner(function: Any) -> Any:
    """Return the function that `functools.partial` has arguments for."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def name_of(function: Any) -> str:
    """Return its name, or that of its type."""
    function = inner(function)
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def _runs_later(function: Any) -> bool:
    """Is it a generator or async function, or an object that is called as one?"""
    tests = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(test(f) for f in (function, getattr(type(function), "__call__", None)) for test in tests)  # noqa: B004
