"""Elementwise operations and expressions on Dask arrays: `dask.array.core.elemwise` of the operation on blocks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from dask.array.core import elemwise

from interop import _core
from interop._libraries.dask import is_dask_array
from interop.dask._arrays import as_dask, check_blocks, is_known, is_number, refuse, refuse_options, unified

__all__ = ["elementwise"]


def elementwise(label: str, function: Any, operands: dict[str, Any], options: dict[str, Any]) -> Any:
    """Make the lazy array that an elementwise function or an expression gives, block by block.

    The operands are in the order of the signature. Numbers go to each block as they are, and so does the one element of
    an array of NumPy of no dimension. The dtype, and what of the arguments is refused, is what the function says of
    empty arrays like the blocks.
    """
    given = refuse_options(label, options)
    if is_dask_array(given.get("where_zero")):
        refuse(label, "where_zero", given["where_zero"], "None, or a scalar")
    for name, x in operands.items():
        if isinstance(x, np.ndarray) and x.ndim == 0:
            operands[name] = x[()]  # an array that came first would say whose the result is
        elif not is_number(x):
            operands[name] = as_dask(label, name, x)
    arrays = {name: x for name, x in operands.items() if not is_number(x)}
    index = {name: [f"axis {axis} of the result" for axis in range(-x.ndim, 0)] for name, x in arrays.items()}
    check_blocks(label, index, arrays)
    if all(is_known(x.shape) for x in arrays.values()):
        _core.abstract_operands(label, [(name, x.shape, None) for name, x in arrays.items()])
    compute = functools.partial(function, **given) if given else function
    with np.errstate(all="ignore"):
        made = compute(*(getattr(x, "_meta", x) for x in operands.values()))
    operands.update(zip(arrays, unified((x, index[name]) for name, x in arrays.items())[::2], strict=True))
    return elemwise(compute, *operands.values(), dtype=made.dtype)
