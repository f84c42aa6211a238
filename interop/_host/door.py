"""The way from the compiled half to the operations on host arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from interop._expressions.typed import Typed
from interop._host import elementwise, expression, kept, matmul

__all__ = ["compute", "keep"]

_Array = np.ndarray[Any, Any]
_AS_THEY_ARE = contextlib.nullcontext()  # NumPy's errors


def compute(operation: str | Typed, operands: Sequence[Any], out: _Array, dtype: Any, more: Any, warns: bool) -> None:
    """Write an operation on host arrays to `out`: "matmul", an elementwise function by its name, or an expression.

    `dtype` is that of the operation; an expression has its own. `more` is what else the operation takes: the terms of a
    product, the `where_zero` of a function, the scalars of an expression. `warns`: NumPy's floating-point warnings are
    the caller's own.
    """
    with _AS_THEY_ARE if warns else np.errstate(all="ignore"):
        if isinstance(operation, Typed):
            expression.compute(operation, operands, out, more)
            return
        a, b = operands
        if operation == "matmul":
            matmul.compute(a, b, out, dtype, **more)
        else:
            elementwise.compute(operation, a, b, out, dtype, more)


def keep(operation: str | Typed, names: Sequence[Any], has_out: bool, dtype: Any, out_dtype: Any) -> kept.Plan | None:
    """Return what the compiled half keeps of an operation on NumPy's arrays; None if it is more than calls of NumPy's.

    `names` are the dtypes of a function's operands, with None for a scalar; of an expression, what messages call its
    scalars.
    """
    if isinstance(operation, Typed):
        return kept.of_expression(operation, names, has_out)
    return kept.of_function(operation, names, has_out, dtype, out_dtype)
