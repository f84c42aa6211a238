"""Typed expressions that are kept, for the libraries that compute them by their own operations."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from interop._expressions.typed import Split, Typed
from interop._operations.promotion import configuration

__all__ = ["type_of", "typed_for"]


def typed_for(split: Split, library: str, arrays: tuple[Any, ...], scalars: Sequence[Any]) -> Typed:
    """Return the dtypes of all steps, as `Split.type` finds them, for these values of the sources."""
    typed = type_of(split, library, arrays, scalars)
    sides = typed.sides(scalars)
    return type_of(split, library, arrays, scalars, sides) if any(sides) else typed


def type_of(
    split: Split, library: str, arrays: tuple[Any, ...], scalars: Sequence[Any], sides: tuple[int, ...] = ()
) -> Typed:
    """Return what `Split.type` returns. Of the scalars the kinds alone count."""
    kinds = tuple(_Kind(x) for x in scalars)
    while True:
        asked = configuration(library)
        typed = _type(split, library, arrays, kinds, sides, asked)
        if typed.configuration in (None, asked):
            return typed
        _type.cache_clear()  # another thread has changed the configuration meanwhile


class _Kind:
    """A scalar, of which the kind alone counts."""

    def __init__(self, scalar: Any) -> None:
        self.scalar = scalar
        self.kind = scalar.dtype if isinstance(scalar, np.generic) else type(scalar)

    def __hash__(self) -> int:
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self.kind == other.kind


@functools.lru_cache(maxsize=1024)
def _type(
    split: Split,
    library: str,
    arrays: tuple[Any, ...],
    scalars: tuple[_Kind, ...],
    sides: tuple[int, ...],
    _configuration: Any,
) -> Typed:
    return split.type(library, arrays, [x.scalar for x in scalars], sides)
