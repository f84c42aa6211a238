"""Which of its arguments a function of the user's reads, as far as its bytecode says."""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["reads_of"]

#: By which a function reads variables that it does not mention, its own or its caller's.
_INTROSPECTIVE = (
    builtins.locals,
    builtins.vars,
    builtins.eval,
    builtins.exec,
    sys._getframe,
    inspect.currentframe,
    inspect.stack,
)
#: The names of these, and of what evaluates texts by the variables of its caller, in any package.
_NAMES = {*(function.__name__ for function in _INTROSPECTIVE), "evaluate", "f_locals"}


def reads_of(function: Callable[..., Any] | None, count: int) -> list[bool]:
    """Tell which of the `count` arguments behind the first a function may read: all, where that is not known.

    An argument is not read where the code of a plain function nowhere mentions its parameter. That of a decorator, a
    method, a `functools.partial` or a function of C says nothing of what is called in the end.
    """
    if function is None:
        return [False] * count
    if not isinstance(function, types.FunctionType):
        return [True] * count
    code = function.__code__
    names = code.co_varnames[1 : code.co_argcount][:count]
    if len(names) < count or code.co_flags & inspect.CO_VARARGS or _may_introspect(function):
        return [True] * count
    mentioned = {*code.co_cellvars}  # of nested functions
    for step in dis.get_instructions(code):
        # Two variables in one instruction, from Python 3.13 on. Other names, such as those of attributes, do no harm.
        found = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        mentioned |= {name for name in found if isinstance(name, str)}
        if "FAST" in step.opname and not all(isinstance(name, str) for name in found):
            return [True] * count  # an instruction of a Python to come, of variables that it does not name
    return [name in mentioned for name in names]


def _may_introspect(function: types.FunctionType) -> bool:
    names = function.__code__.co_names
    reached = [function.__globals__.get(name) for name in names]
    for cell in function.__closure__ or ():
        try:
            reached.append(cell.cell_contents)
        except ValueError:  # it is empty yet
            return True
    return not _NAMES.isdisjoint(names) or any(x is known for x in reached for known in _INTROSPECTIVE)
