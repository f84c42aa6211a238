"""An `interop.Array` as text: its values, and where they are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from interop import _core
from interop._core import Array
from interop._libraries.base import numpy_dtype

__all__ = ["text"]

_THRESHOLD, _EDGE = 1000, 3  # as NumPy has them by default


def text(array: Array) -> str:
    """Return what `repr(array)` shows. Of a large array only the corners are read, as NumPy prints no more."""
    facts = [f"dtype={array.dtype}", f"device={array.device}"]
    if array.memory not in ("host", "device"):
        facts.append(f"memory={array.memory}")
    try:
        values, threshold = _values(array)
    except Exception as error:  # printing must not fail: in a capture, of a broken context, a dtype of no NumPy
        reason = str(error).partition("\n")[0]
        return f"interop.Array(shape={array.shape}, {', '.join(facts)}: no values: {reason})"
    if array.size == 0 or array.size > _THRESHOLD:  # which the values do not show
        facts.insert(0, f"shape={array.shape}")
    body = np.array2string(values, separator=", ", threshold=threshold, edgeitems=_EDGE, prefix="interop.Array(")
    return f"interop.Array({body}, {', '.join(facts)})"


def _values(array: Array) -> tuple[Any, int]:
    """Read the values that are printed, and with which threshold."""
    if array.size <= _THRESHOLD:
        return _read(array), _THRESHOLD
    long = [size > 2 * _EDGE for size in array.shape]
    shape = tuple(2 * _EDGE + 1 if is_long else size for size, is_long in zip(array.shape, long, strict=True))
    values = np.zeros(shape, numpy_dtype(array.dtype))
    ends = [(slice(None, _EDGE), slice(-_EDGE, None)) if is_long else (slice(None),) for is_long in long]
    for corner in itertools.product(*ends):
        values[corner] = _read(array[corner])
    return values, 0


def _read(array: Array) -> Any:
    if array.memory != "device":
        return np.asarray(array)
    function = "interop.Array.__repr__"
    copied = _core.empty(array.shape, array.dtype, "host", None, None, function)
    _core.copyto(copied, array, None, function, "the copy", "the array")
    return np.asarray(copied)
