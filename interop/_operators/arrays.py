"""The shape and the dtype of an array of any library, without reading it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from interop import _core

__all__ = ["Facts", "discrete", "dtype_name", "facts_of", "readable"]

#: A shape, and the name of a dtype.
Facts = tuple[tuple[Any, ...], str]

_names: dict[Any, str] = {}  # of dtypes that were met


def dtype_name(dtype: Any) -> str:
    """Return the name of a library's dtype, such as "float32"."""
    try:
        return _names[dtype]
    except KeyError:
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
        return _names.setdefault(dtype, str(name).rpartition(".")[2])


def facts_of(x: Any) -> Facts:
    """Return the shape and the dtype's name of an array that says them, as those that `readable` returns do."""
    shape = x.shape
    return (shape if type(shape) is tuple else tuple(shape)), dtype_name(x.dtype)


def discrete(results: Sequence[Facts]) -> tuple[int, ...]:
    """Return the places of those that have no gradients: of integers, and of truth values."""
    return tuple(place for place, (_, dtype) in enumerate(results) if dtype.startswith(("int", "uint", "bool")))


def readable(label: str, name: str, x: Any, always: bool = False) -> Any:
    """Return an array that says its shape and dtype: `x`, or an `interop.Array` of its memory, as it `always` is.

    Throws TypeError, which names the argument, for what is no array.
    """
    if not always and hasattr(x, "shape") and hasattr(x, "dtype"):
        return x
    return _core.asarray(x, label, None, name)
