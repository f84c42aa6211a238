"""What functions are made of, as a text that is the same in every process, as far as there is one."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import os
import types
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from interop._functions.array_function import ArrayFunction
from interop._operators.description import Description

__all__ = ["changeable", "content_of", "key_of", "portable"]

_PROCESS = str(uuid.uuid4())
_count = itertools.count()
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def key_of(*made_of: object) -> str:
    """Return a key of what something is made of: the same for the same, in every process where it is `portable`."""
    content = content_of(made_of)
    key = hashlib.blake2b(content.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"{key}-{_PROCESS}" if _PROCESS in content else key


def portable(key: str) -> bool:
    """Does the key mean the same in every process?"""
    return "-" not in key


def content_of(x: object, within: tuple[int, ...] = ()) -> str:
    """Return what it is made of. `within` are the ids of what it is met in.

    Functions of Python are told apart by their names, code, defaults and what they close over, and not by the globals
    that they read. What is not known here is equal to nothing else.
    """
    if id(x) in within:
        return "itself"
    inner = functools.partial(content_of, within=(*within, id(x)))
    if isinstance(x, _PLAIN):
        return repr(x)
    if isinstance(x, tuple | list):
        return f"{type(x).__name__}({', '.join(map(inner, x))})"
    if isinstance(x, set | frozenset):
        return f"set({', '.join(sorted(map(inner, x)))})"
    if isinstance(x, dict):
        return f"dict({', '.join(sorted(f'{inner(key)}: {inner(value)}' for key, value in x.items()))})"
    if isinstance(x, os.PathLike):
        return f"path({os.fspath(x)!r})"
    if isinstance(x, types.FunctionType):
        closed = [inner(cell.cell_contents) for cell in x.__closure__ or () if cell != _EMPTY]
        parts = (_name_of(x), inner(x.__code__), inner(x.__defaults__), inner(x.__kwdefaults__), *closed)
        return f"function({', '.join(parts)})"
    if isinstance(x, types.CodeType):
        return f"code({x.co_code.hex()}, {inner(x.co_consts)}, {x.co_names}, {x.co_varnames}, {x.co_flags})"
    if isinstance(x, functools.partial):
        return f"partial({inner(x.func)}, {inner(x.args)}, {inner(x.keywords)})"
    if isinstance(x, types.MethodType):
        return f"method({inner(x.__self__)}, {inner(x.__func__)})"
    if isinstance(x, type | types.BuiltinFunctionType):
        return _name_of(x)
    if isinstance(description := getattr(x, "_description", None), Description):
        return f"operator({description.name}, {description.key})"
    if isinstance(x, ArrayFunction) or type(x).__module__.partition(".")[0] == "interop":
        if dataclasses.is_dataclass(x):
            return f"{_name_of(type(x))}({inner(vars(x))})"
        made = x.__reduce__()  # what it is pickled as
        return inner(made[:2]) if isinstance(made, tuple) else made
    return f"{_name_of(type(x))}({_PROCESS}, {next(_count)})"


def changeable(x: object, seen: set[int] | None = None) -> Iterator[object]:
    """Give the lists, dicts and sets that functions close over, whose content may be another one later."""
    seen = set() if seen is None else seen
    if id(x) in seen:
        return
    seen.add(id(x))
    parts: Iterable[object] = ()
    if isinstance(x, types.FunctionType):
        parts = [cell.cell_contents for cell in x.__closure__ or () if cell != _EMPTY]
        yield from (part for part in parts if isinstance(part, list | dict | set))
    elif isinstance(x, tuple | list | set | frozenset):
        parts = x
    elif isinstance(x, dict):
        parts = x.values()
    elif isinstance(x, functools.partial):
        parts = (x.func, x.args, x.keywords)
    elif isinstance(x, types.MethodType):
        parts = (x.__self__, x.__func__)
    elif (wrapped := getattr(x, "__wrapped__", None)) is not None:  # what `interop.adapt` makes
        parts = (wrapped,)
    for part in parts:
        yield from changeable(part, seen)


_EMPTY = types.CellType()


def _name_of(x: Any) -> str:
    return f"{x.__module__}.{x.__qualname__}"
