"""Conformance checks for other people's arrays: does interop read every dtype and layout of theirs, and right?

>>> import numpy as np
>>> import interop.testing
>>> report = interop.testing.check_producer(lambda values: values)
>>> [cell.outcome for cell in report if cell.dtype == "float32"]
['right', 'right', 'right', 'right', 'right', 'right', 'right', 'right', 'right']
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import interop
from interop import _core
from interop._arguments import named, shown

__all__ = ["DTYPES", "LAYOUTS", "Cell", "check_producer"]

_FUNCTION = "interop.testing.check_producer"
LISTED = (TypeError, ValueError, BufferError, interop.CudaError)  # what interop raises for what it cannot read


@dataclass(frozen=True)
class Cell:
    """What one kind of array gives."""

    dtype: str
    layout: str
    stream: str  #: the ``stream=`` of the call, "" for none
    outcome: str  #: "right", "none" (the library makes no such array), an exception's name, or "WRONG"
    detail: str  #: the protocol that read it, the exception's words, or what is wrong

    def __str__(self) -> str:
        stream = f", stream={self.stream}" if self.stream else ""
        return f"{self.dtype} {self.layout}{stream}: {self.outcome} ({self.detail})"


def _small_floats() -> dict[str, np.dtype[Any]]:
    return {name: np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}


#: The dtypes that are tried, by name.
DTYPES: dict[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("float16", "float32", "float64", "complex64", "complex128"),
        )
    },
    **_small_floats(),
}

#: The layouts that are tried. Each takes a compact array of shape (4, 6) and gives a view of it.
LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "compact": lambda base: base,
    "transposed": lambda base: base.T,
    "sliced": lambda base: base[::2, ::3],
    "offset": lambda base: base[1:, 1:],
    "reversed": lambda base: base[::-1, ::-1],
    "broadcast": lambda base: np.broadcast_to(base[:1], (3, 6)),
    "0-d": lambda base: base[1, 1:2].reshape(()),
    "empty": lambda base: base[:0],
    "size 1": lambda base: base[2:3, 4:5],
}


def _base(dtype: np.dtype[Any]) -> np.ndarray:
    """Return distinct values; those of complex numbers have imaginary parts."""
    numbers = np.arange(24).reshape(4, 6)
    if dtype.kind == "b":
        return np.equal(numbers % 3, 0)
    if dtype.kind == "c":
        return np.asarray(numbers - 1j * numbers - 5, dtype)
    return np.asarray(numbers if dtype.kind == "u" else numbers - 5, dtype)


@named("interop.testing.check_producer")
def check_producer(
    make: Callable[[np.ndarray], Any],
    *,
    dtypes: Sequence[str] = tuple(DTYPES),
    layouts: Sequence[str] = tuple(LAYOUTS),
    streams: Sequence[int] = (),
    strict: bool = True,
) -> list[Cell]:
    """Check that interop reads a library's arrays right, or refuses them with an exception that it documents.

    Parameters
    ----------
    make : callable, ``(values) -> array``
        Returns an array of the library with the values of this NumPy array, laid out like it: `values` is a view, and
        ``values.base`` the memory that it views. Returns None where the library has no such array (it has no negative
        strides, say).
    dtypes, layouts : sequence of str, optional
        Which of `DTYPES` and `LAYOUTS` to try; all by default.
    streams : sequence of int, optional
        Stream handles to read a compact array on, for arrays on a device.
    strict : bool, default True
        Whether to raise for a wrong cell, or only to report it.

    Returns
    -------
    list of Cell
        What each kind of array gave.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind, or there is no such dtype or layout.
    AssertionError
        An array was read wrong, raised what is not documented, or was not given back; or `make` returned none at all.

    Notes
    -----
    Each array is read twice: its values, shape and dtype must be right, and nothing may hold it afterwards.
    """
    if not callable(make):
        raise TypeError(f"{_FUNCTION}: make is {shown(make)}; accepted: a callable")
    for name, given, known in (("dtypes", dtypes, DTYPES), ("layouts", layouts, LAYOUTS)):
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise TypeError(f"{_FUNCTION}: {name} is {shown(given)}; accepted: a sequence of names")
        for one in given:
            if not isinstance(one, str) or one not in known:
                raise ValueError(f"{_FUNCTION}: {name} has {shown(one)}; accepted: {', '.join(known)}")
    if not isinstance(streams, Sequence) or not all(type(stream) is int for stream in streams):
        raise TypeError(f"{_FUNCTION}: streams is {shown(streams)}; accepted: a sequence of int handles")
    for stream in streams:
        _core.stream_handle(stream, _FUNCTION)
    kinds: list[tuple[str, int | None]] = [(layout, None) for layout in layouts]
    kinds += [("compact", stream) for stream in streams]
    cells = [_check(make, dtype, layout, stream) for dtype in dtypes for layout, stream in kinds]
    wrong = [str(cell) for cell in cells if cell.outcome == "WRONG"]
    if strict and cells and all(cell.outcome == "none" for cell in cells):
        wrong = [f"`make` returned no array at all; the first: {cells[0]}"]
    if strict and wrong:
        raise AssertionError("\n".join([f"{_FUNCTION}:", *wrong]))
    return cells


def _check(make: Callable[[np.ndarray], Any], dtype: str, layout: str, stream: int | None) -> Cell:
    values = LAYOUTS[layout](_base(DTYPES[dtype]))
    outcome, detail = "right", ""
    try:
        array = make(values)
    except Exception as error:  # whatever a library says to what it does not have
        return Cell(dtype, layout, _name(stream), "none", _words(error))
    if array is None:
        return Cell(dtype, layout, _name(stream), "none", "")
    try:
        first = _core.read(array, stream)
        if not _is_capsule(array):  # which is used once
            detail = _difference(first, _core.read(array, stream))
        detail = detail or _mistake(first, values, dtype) or _leak(array, stream)
        outcome, detail = ("WRONG", detail) if detail else ("right", first["protocol"])
    except LISTED as error:
        outcome, detail = type(error).__name__, _words(error)
    except Exception as error:
        outcome, detail = "WRONG", f"raises {type(error).__name__}: {_words(error)}"
    return Cell(dtype, layout, _name(stream), outcome, detail)


def _is_capsule(array: Any) -> bool:
    return type(array).__name__ == "PyCapsule"


def _name(stream: int | None) -> str:
    return "" if stream is None else str(stream)


def _words(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]


def _difference(first: dict[str, Any], second: dict[str, Any]) -> str:
    changed = [key for key in first if first[key] != second[key]]
    return f"read twice, it has another {changed[0]}" if changed else ""


def _mistakes(facts: dict[str, Any], values: np.ndarray, dtype: str) -> Iterator[str]:
    if facts["dtype"] != dtype:
        yield f"dtype {facts['dtype']}"
    if facts["shape"] != values.shape:
        yield f"shape {facts['shape']} for {values.shape}"
    if facts["values"] != values.tobytes():
        yield "other values"
    moving = [axis for axis, size in enumerate(values.shape) if size > 1] if values.size else []
    for axis in moving:
        step = values.strides[axis] // values.itemsize
        if facts["strides"][axis] != step:
            yield f"step {facts['strides'][axis]} for {step} along dimension {axis}: not laid out as asked"


def _mistake(facts: dict[str, Any], values: np.ndarray, dtype: str) -> str:
    return next(_mistakes(facts, values, dtype), "")


def _leak(array: Any, stream: int | None) -> str:
    """Has the array more owners after a reading than before? On a device, the reaper may hold it for a while."""
    if _is_capsule(array) or _core.held_count():
        return ""
    before = sys.getrefcount(array)
    _core.read(array, stream)
    if sys.getrefcount(array) > before and not _core.held_count():
        gc.collect()
        if sys.getrefcount(array) > before:
            return "it is still held after it was read"
    return ""
