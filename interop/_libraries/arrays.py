"""Whether an object is an array of any library, asked of all arguments of a call."""

from __future__ import annotations

from typing import Any

import numpy as np

from interop import _core
from interop._libraries.dask import is_dask_array

__all__ = ["forget_types", "is_array", "is_buffer"]

#: Types whose objects are no arrays. To ask the compiled half, which refuses them in words, takes longer.
_OTHERS: set[type] = set()


def is_array(x: Any) -> bool:
    """Is it an array, or one that is refused because its meaning would be lost, or because it has no values yet?"""
    kind = type(x)
    if kind in _OTHERS:
        return False
    try:
        _core.route(x)
    except TypeError:
        if isinstance(x, np.ndarray) or is_dask_array(x):
            return True
        if kind.__dictoffset__ == 0:  # else another object of it may have a protocol of its own
            _OTHERS.add(kind)
        return False
    return True


def is_buffer(x: Any) -> bool:
    """Is it an array by the buffer protocol alone, of no library: a bytearray, a memoryview, an array of ctypes?"""
    try:
        return bool(_core.route(x) == ("interop", "buffer protocol"))
    except TypeError:
        return False


def forget_types() -> None:
    """Ask anew of all types, as one was registered."""
    _OTHERS.clear()
