"""Values in tuples, lists, dicts, named tuples and dataclasses, however deep."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from interop._arguments import type_name
from interop._libraries.arrays import is_array

__all__ = ["PLAIN", "holds_nothing", "is_plain", "leaves", "mapped"]

#: What is neither an array nor holds one.
PLAIN = frozenset(
    (int, float, complex, bool, str, bytes, slice, range, type, type(None), type(...), type(NotImplemented))
)
_LEAVES: set[type] = set()  # types that were met, whose objects hold nothing


def is_plain(x: Any) -> bool:
    """Is it neither an array nor does it hold one, as far as types say: a number, a name, a tuple of axes?"""
    kind = type(x)
    return kind in PLAIN or (kind in (tuple, list) and all(type(part) in PLAIN for part in x))


def holds_nothing(x: Any) -> bool:
    """Is it a value of its own, and no container of others?"""
    return type(x) in _LEAVES or _parts(x) is None


def leaves(x: Any, within: tuple[int, ...] = ()) -> Iterator[Any]:
    """Give the values in order: `x` itself where it holds no others. `within`: the ids of what it is in."""
    parts = _parts(x)
    if parts is None:
        yield x
    elif id(x) not in within:
        for part in parts:
            yield from leaves(part, (*within, id(x)))


def mapped(x: Any, function: Callable[[Any], Any], label: str, within: dict[int, bool] | None = None) -> Any:
    """Return the same with what `function` makes of each value; the same objects where it changes none.

    ValueError for what holds itself, and a value that is changed. `within`: by its id, was what `x` is in met again?
    """
    if type(x) in _LEAVES:
        return function(x)
    parts = _parts(x)
    if parts is None:
        return function(x)
    within = {} if within is None else within
    if id(x) in within:
        within[id(x)] = True
        return x
    within[id(x)] = False
    made = [mapped(part, function, label, within) for part in parts]
    holds_itself = within.pop(id(x))
    if all(new is old for new, old in zip(made, parts, strict=True)):
        return x
    if holds_itself:
        raise ValueError(f"{label}: a {type_name(x)} with arrays in it holds itself; accepted: one that does not")
    return _with_parts(x, made)


def _parts(x: Any) -> list[Any] | None:
    """Return what it holds; None where it holds nothing, or cannot be made again of other parts."""
    kind = type(x)
    if kind in _LEAVES:
        return None
    if kind in (tuple, list):
        return list(x)
    if isinstance(x, dict):
        return list(x.values())
    if isinstance(x, list) or (isinstance(x, tuple) and (hasattr(kind, "_make") or hasattr(kind, "n_sequence_fields"))):
        return list(x)  # beside named tuples, those of C, such as torch's
    if isinstance(x, type) or not dataclasses.is_dataclass(kind):
        _LEAVES.add(kind)
    elif not is_array(x):
        return [getattr(x, name) for name in _fields(x)]
    return None


def _fields(x: Any) -> list[str]:
    """Return the names of a dataclass's fields that have a value."""
    return [field.name for field in dataclasses.fields(x) if hasattr(x, field.name)]


def _with_parts(x: Any, parts: list[Any]) -> Any:
    kind: Any = type(x)
    if kind in (tuple, list):
        return kind(parts)
    if isinstance(x, dict):
        changed = dict(zip(x, parts, strict=True))
        if kind is dict:
            return changed
        others = copy.copy(x)
        others.update(changed)
        return others
    if isinstance(x, list):
        made = copy.copy(x)
        made[:] = parts
        return made
    if isinstance(x, tuple):
        return kind._make(parts) if hasattr(kind, "_make") else kind(parts)
    made = kind.__new__(kind)  # without another `__init__`, which may do more than keep its arguments
    getattr(made, "__dict__", {}).update(getattr(x, "__dict__", {}))
    for name, part in zip(_fields(x), parts, strict=True):
        object.__setattr__(made, name, part)  # frozen or not
    return made
