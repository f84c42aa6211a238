"""Functions whose results are constants in what torch's compiler traces."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

__all__ = ["constant"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def constant(function: FunctionT) -> FunctionT:
    """Have Dynamo call a function of constants as it traces, and take the result as a constant.

    The arguments are strings, numbers, dtypes and tuples of such: torch 2.11 has no other object as a constant.
    An error of the function is raised in what is traced, where Dynamo takes it for one of the user's: the call is then
    made outside the graph, for its error, or that is said. `torch.compiler.assume_constant_result` loads Dynamo.
    """

    def found(*args: Any) -> tuple[str, str, Any]:
        try:
            return "", "", function(*args)
        except Exception as error:
            kind = next(x.__name__ for x in type(error).__mro__ if hasattr(builtins, x.__name__))
            return kind, str(error), None

    found._dynamo_marked_constant = True  # type: ignore[attr-defined]

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return function(*args)
        kind, words, result = found(*args)
        if kind:
            raise getattr(builtins, kind)(words)
        return result

    return call  # type: ignore[return-value]
