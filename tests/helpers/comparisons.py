"""Comparisons of integers, bools and scalars of any size: operands at the edges, and Python's own answers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import elements

DTYPES = ("bool", *elements.INTEGERS)
ANSWERS = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
SYMBOLS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
#: Of Python's integers and NumPy's: around the edges of all dtypes, and far beyond them.
SCALARS: tuple[Any, ...] = (
    *(sign * (2**bits) + near for bits in (7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1) for near in (-1, 0, 1)),
    *(-2, -1, 0, 1, 2, 44, 300, True, False, 10**30, -(10**30), 10**400, -(10**5000)),
    *(np.int64(300), np.int64(-(2**63)), np.uint64(2**64 - 1), np.int8(-1), np.uint8(200), np.bool_(True)),
)


def edges(dtype: str) -> np.ndarray:
    """Elements at the edges of that dtype, and of the narrower ones."""
    if dtype == "bool":
        return np.array([False, True])
    limits = np.iinfo(dtype)
    found = {
        limits.min,
        limits.max,
        limits.max - 1,
        -2,
        -1,
        0,
        1,
        44,
        127,
        128,
        255,
        2**15,
        2**31,
        2**32 - 1,
        2**63 - 1,
    }
    return np.array(sorted(x for x in found | {2**63} if limits.min <= x <= limits.max), dtype)


def some_edges(dtype: str) -> np.ndarray:
    """The least element, the largest, and 300 or what is nearest to it."""
    found = edges(dtype)
    return np.array([found[0], found[-1], min(300, int(found[-1]))], found.dtype)


def text_of(x: Any) -> str:
    """What messages say of an operand; Python writes no decimal number of thousands of digits."""
    return hex(x) if isinstance(x, int) else str(getattr(x, "dtype", x))


def pairs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All edges of two dtypes beside each other: a column and a row."""
    for first, second in itertools.product(DTYPES, repeat=2):
        yield edges(first)[:, None], edges(second)


def answer(name: str, a: Any, b: Any) -> np.ndarray:
    """Python's answer, element by element."""
    a, b = np.broadcast_arrays(*(np.array(x, object) for x in (a, b)))
    flat = [ANSWERS[name](number(x), number(y)) for x, y in zip(a.flat, b.flat, strict=True)]
    return np.array(flat, bool).reshape(a.shape)


def number(x: Any) -> Any:
    return x.item() if isinstance(x, np.generic) else x
