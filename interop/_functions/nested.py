"""Values in tuples, lists, dicts, named tuples and dataclasses, however deep."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from interop._libraries.arrays import is_array

__all__ = ["leaves", "mapped"]

_LEAVES: set[type] = set()  # types that were met, whose objects hold nothing


def leaves(x: Any) -> Iterator[Any]:
    """Give the values in order: `x` itself where it holds no others."""
    parts = _parts(x)
    if parts is None:
        yield x
        return
    for part in parts:
        yield from leaves(part)


def mapped(x: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same with what `function` makes of each value; the same objects where it changes none."""
    if type(x) in _LEAVES:
        return function(x)
    parts = _parts(x)
    if parts is None:
        return function(x)
    made = [mapped(part, function) for part in parts]
    if all(new is old for new, old in zip(made, parts, strict=True)):
        return x
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
        fields = dataclasses.fields(x)
        return [getattr(x, field.name) for field in fields] if all(field.init for field in fields) else None
    return None


def _with_parts(x: Any, parts: list[Any]) -> Any:
    kind = type(x)
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
    return dataclasses.replace(x, **{field.name: y for field, y in zip(dataclasses.fields(x), parts, strict=True)})
