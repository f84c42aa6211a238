"""Calls of Dask arrays: lazy, so that they are not the compiled half's, which refuses such arrays."""

from __future__ import annotations

from typing import Any

from interop._libraries.dask import is_dask_array

__all__ = ["call_lazily"]


def call_lazily(function: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Make the lazy array of a call that has raised a TypeError, if one of its arrays is Dask's.

    NotImplemented if none is, or if the call does not fit the function. The compiled half refuses what it does not know
    before it reads an array, so that no other call is asked whether it is Dask's.
    """
    if not any(map(is_dask_array, (*operands, *options.values()))):
        return NotImplemented
    from interop.dask import _door

    return _door.compute(function, operands, options)
