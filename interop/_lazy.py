"""Calls of Dask arrays: lazy, so that they are not the compiled half's, which refuses such arrays."""

from __future__ import annotations

from typing import Any

from interop._libraries.dask import is_dask_array

__all__ = ["call_lazily", "is_lazy"]


def is_lazy(operands: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Is the call, which has raised a TypeError, one of Dask's, as it has an array of Dask's?

    The compiled half refuses what it does not know before it reads an array, so that no other call is asked this.
    """
    return any(map(is_dask_array, (*operands, *options.values())))


def call_lazily(function: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the lazy array of such a call of `interop.matmul`, of an elementwise function, or of an expression."""
    from interop.dask import _door

    return _door.compute(function, operands, options)
