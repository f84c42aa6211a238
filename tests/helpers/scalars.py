"""Scalars of types that are derived from Python's."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np


class Integer(int):
    """With a representation of its own, as units and counters have."""

    def __repr__(self) -> str:
        return f"Integer({int(self)})"


class Real(float):
    def __repr__(self) -> str:
        return f"Real({float(self)})"


class Number(complex):
    def __repr__(self) -> str:
        return f"Number({complex(self)})"


class Choice(enum.IntEnum):
    """No member is 1."""

    three = 3


OF_A_KIND = (Integer(3), Choice.three, Real(2.5), Number(1, 2))


def plain(scalar: Any) -> Any:
    """The same one, of Python's own type."""
    if isinstance(scalar, np.bool_):
        return bool(scalar)
    return next(kind(scalar) for kind in (int, float, complex) if isinstance(scalar, kind))
