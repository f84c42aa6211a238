"""Products of Dask arrays: a product for each pair of blocks, and sums of these along k, in a tree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
import numpy as np

from interop import _core
from interop._operations.finish import finish_dtype
from interop._operations.promotion import numpy_dtype
from interop.dask._arrays import (
    as_dask,
    check_blocks,
    check_libraries,
    is_known,
    is_number,
    meta_of,
    refuse,
    refuse_options,
    unified,
)
from interop.dask._sums import added, sum_over

__all__ = ["matmul"]

_FUNCTION = "interop.matmul"
_TERMS = ("c", "bias")  # arrays beside the operands
_OF_BLOCKS = ("alpha", "scale_a", "scale_b", "precision", "backend")  # what each product of blocks takes


def matmul(function: Any, a: Any, b: Any, options: dict[str, Any]) -> Any:
    """Make the lazy product of two arrays, of which blocks are multiplied by `function`, `interop.matmul`.

    Where k is of several blocks, their products are of the dtype in which one product would be added up. What follows
    the product, but for its factors, is done once, after the whole sum.
    """
    given = refuse_options(_FUNCTION, options)
    arrays = {"a": as_dask(_FUNCTION, "a", a), "b": as_dask(_FUNCTION, "b", b)}
    arrays |= {name: as_dask(_FUNCTION, name, given[name]) for name in _TERMS if name in given}
    check_libraries(_FUNCTION, arrays)
    for name in ("scale_a", "scale_b"):
        if name in given:
            given[name] = _scale(name, given[name])
    ndim, dtype = _checked(arrays, given)
    if "backend" in given:  # which only arrays on a GPU take
        function(arrays["a"]._meta, arrays["b"]._meta, backend=given["backend"])

    index = _indices(arrays, ndim)
    check_blocks(_FUNCTION, index, arrays)
    of_blocks: dict[str, Any] = {name: given[name] for name in _OF_BLOCKS if name in given}
    last: dict[str, Any] = {name: given[name] for name in ("beta", "epilogue") if name in given}
    if last.get("beta") == 0:  # c is not read
        del arrays["c"], last["beta"]
    if all(len(arrays[name].chunks[index[name].index(_K)]) == 1 for name in "ab"):
        compute = functools.partial(_product, function, tuple(arrays), {**of_blocks, **last, "dtype": dtype})
        return _blockwise(compute, index, arrays, dtype)
    work = finish_dtype(dtype)
    total = sum_over(_partial_products(function, index, arrays, {**of_blocks, "dtype": work}), 1)
    terms = {name: arrays[name] for name in _TERMS if name in arrays}
    if not terms and not last and work == dtype:
        return total
    finish = functools.partial(_finish, function, ("total", *terms), {**last, "dtype": dtype})
    return _blockwise(finish, index, {"total": total, **terms}, dtype)


def _checked(arrays: dict[str, Any], given: dict[str, Any]) -> tuple[int, Any]:
    """Return how many dimensions the product has, and its dtype, or raise the error of `interop.matmul`."""
    shapes = _known_shapes(arrays)
    facts = {name: (shape, arrays[name].dtype.name) for name, shape in shapes.items()}
    terms: dict[str, Any] = {name: x for name, x in given.items() if name != "dtype"}
    terms |= {name: facts[name] for name in _TERMS if name in facts}
    answer = _core.abstract_matmul(facts["a"], facts["b"], given.get("dtype"), library="numpy", **terms)
    return len(answer["shape"]), numpy_dtype(answer["dtype"])


def _scale(name: str, scale: Any) -> Any:
    """Return the factor of a float8 operand as a number, which goes with each product of blocks."""
    if isinstance(scale, np.ndarray) and scale.size == 1 and scale.dtype == np.float32:
        return float(scale.reshape(()))
    if not is_number(scale):
        refuse(_FUNCTION, name, scale, "a scalar, or an array of NumPy of one float32")
    return scale


def _known_shapes(arrays: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the arrays' shapes; where a size is unknown, shapes of ones, but for k where that is known."""
    shapes = {name: x.shape for name, x in arrays.items()}
    if all(map(is_known, shapes.values())):
        return shapes
    found = {name: [1] * x.ndim for name, x in arrays.items()}
    a, b = arrays["a"], arrays["b"]
    k_of_b = max(b.ndim - 2, 0)
    if a.ndim and b.ndim and is_known((a.shape[-1], b.shape[k_of_b])):
        found["a"][-1], found["b"][k_of_b] = a.shape[-1], b.shape[k_of_b]
    return {name: tuple(shape) for name, shape in found.items()}


# ---- indices ----

_K = "k"


def _indices(arrays: dict[str, Any], ndim: int) -> dict[str, tuple[str, ...]]:
    """Return the index of each axis of each array, and of the result, which is called "total"."""
    a, b = arrays["a"], arrays["b"]
    axes = tuple(f"axis {axis} of the result" for axis in range(ndim))
    rows, columns = a.ndim > 1, b.ndim > 1
    batch = axes[: ndim - rows - columns]
    index: dict[str, tuple[str, ...]] = {
        "total": axes,
        "a": (*batch[len(batch) - (a.ndim - 2) :], axes[len(batch)], _K) if rows else (_K,),
        "b": (*batch[len(batch) - (b.ndim - 2) :], _K, axes[-1]) if columns else (_K,),
    }
    for name in _TERMS:
        if name in arrays:
            index[name] = axes[ndim - arrays[name].ndim :]
    return index


def _blockwise(compute: Callable[..., Any], index: dict[str, Any], arrays: dict[str, Any], dtype: Any) -> Any:
    pairs = unified((x, index[name]) for name, x in arrays.items())
    meta = meta_of(next(iter(arrays.values())), len(index["total"]), dtype)
    return da.blockwise(compute, index["total"], *pairs, meta=meta, token="interop-matmul")


def _partial_products(function: Any, index: dict[str, Any], arrays: dict[str, Any], options: dict[str, Any]) -> Any:
    """Return the product of each pair of blocks along k, at a last axis of its own, which the sum is over."""
    a, b = arrays["a"], arrays["b"]
    out = (*index["total"], _K)
    return da.blockwise(
        functools.partial(_partial_product, function, options),
        out,
        *unified([(a, index["a"]), (b, index["b"])]),
        adjust_chunks={_K: 1},
        meta=meta_of(a, len(out), options["dtype"]),
        token="interop-matmul-part",
    )


# ---- on blocks ----


def _product(function: Any, names: Sequence[str], options: dict[str, Any], *blocks: Any) -> Any:
    """Compute a whole product of blocks; of the axis k, which is not of the result, there is a list of one block."""
    a, b, *terms = blocks
    return function(a[0], b[0], **dict(zip(names[2:], terms, strict=True)), **options)


def _partial_product(function: Any, options: dict[str, Any], a: Any, b: Any) -> Any:
    return function(a, b, **options)[..., None]


def _finish(function: Any, names: Sequence[str], options: dict[str, Any], *blocks: Any) -> Any:
    """Do what follows a sum of products: that of a product over no k at all, whose c is this sum."""
    given = dict(zip(names, blocks, strict=True))
    total, dtype = given.pop("total"), options["dtype"]
    terms = {name: x.astype(total.dtype, copy=False) for name, x in given.items()}
    if "c" in terms:
        c, beta = terms.pop("c"), options.get("beta")
        total = added([total, c if beta is None else function(*_nothing(total), c=c, beta=beta)])
    epilogue = options.get("epilogue")
    if terms or epilogue is not None:
        total = function(*_nothing(total), c=total, epilogue=epilogue, **terms)
    return total.astype(dtype, copy=False)


def _nothing(total: Any) -> tuple[Any, Any]:
    """Return two arrays whose product has the shape of `total`, and adds up nothing."""
    if total.ndim > 1:
        return total[..., :0], total[..., :0, :]
    empty = total[None][:0]
    return (empty, empty) if total.ndim == 0 else (total[:0], empty)
