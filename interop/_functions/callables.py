"""What is known of a callable before it is called."""

from __future__ import annotations

import functools
import inspect
from typing import Any

__all__ = ["inner", "name_of", "runs_later"]


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


def runs_later(function: Any) -> bool:
    """Is it a generator or async function, or an object that is called as one?"""
    tests = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    return any(test(f) for f in (function, getattr(type(function), "__call__", None)) for test in tests)  # noqa: B004
