"""Sums over blocks: `dask.array.reduction`, a tree, with the package's own addition."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import dask.array as da

from interop import _core
from interop.dask._arrays import meta_of

__all__ = ["added", "sum_over"]


def sum_over(x: Any, count: int, dtype: Any = None) -> Any:
    """Return the sum over the last `count` axes, along which each block has size 1, as an array of that dtype."""
    axes = tuple(range(x.ndim - count, x.ndim))
    dtype = x.dtype if dtype is None else dtype
    return da.reduction(
        x,
        chunk=_whole,
        combine=_sum,
        aggregate=functools.partial(_sum, dtype=dtype),
        axis=axes,
        dtype=dtype,
        concatenate=False,
        meta=meta_of(x, x.ndim - count, dtype),
        name="interop-sum",
    )


def added(parts: Sequence[Any]) -> Any:
    """Return the sum of arrays; where there are more than two, in the memory of the first sum."""
    total, *rest = parts
    options: dict[str, Any] = {}
    for x in rest:
        total = _core.elementwise("add", total, x, options)
        options = {"out": total}
    return total


def _whole(x: Any, axis: Any, keepdims: Any) -> Any:
    return x


def _sum(parts: Any, axis: Sequence[int], keepdims: bool, dtype: Any = None) -> Any:
    total = added([*_flat(parts)])
    if not keepdims:
        total = total[(..., *(0 for _ in axis))]
    return total if dtype is None else total.astype(dtype, copy=False)


def _flat(parts: Any) -> Iterator[Any]:
    """The blocks, in order: there is a list within the other for each axis, and a single block has none."""
    if isinstance(parts, list):
        for part in parts:
            yield from _flat(part)
    else:
        yield parts
