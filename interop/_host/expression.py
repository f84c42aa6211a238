"""An expression on host arrays: NumPy's operations, one after the other, with this package's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from interop import _core
from interop._expressions.typed import ArrayRef, Constant, Reference, Step, Typed, ValueRef
from interop._host import elementwise
from interop._operations.promotion import element_of, numpy_dtype

__all__ = ["compute"]

_Array = np.ndarray[Any, Any]


def compute(typed: Typed, arrays: Sequence[_Array], out: _Array, scalars: Sequence[tuple[str, Any]]) -> None:
    """Write the expression of `arrays` to `out`. `scalars` are (name, value) of each of `typed.values`."""
    values = [
        element_of(typed.function, name, scalar, numpy_dtype(dtype), warns=True)
        for (name, scalar), (_, dtype) in zip(scalars, typed.values, strict=True)
    ]
    results: dict[int, _Array] = {}

    def find(ref: Reference) -> Any:
        if isinstance(ref, ArrayRef):
            return arrays[ref.index]
        if isinstance(ref, ValueRef):
            return values[ref.index]
        return ref.value if isinstance(ref, Constant) else results[ref.index]

    last_uses = typed.last_uses()
    for place, step in enumerate(typed.steps):
        operands = [_nonzero(find(ref), to) for ref, to in step.args]
        is_last = step is typed.steps[-1]
        # Not NumPy's broadcast_shapes, which stops at 32 dimensions.
        shape = _core.abstract_operands(typed.function, [("", x.shape, None) for x in operands])
        result = out if is_last else np.empty(shape, numpy_dtype(step.out_dtype))
        _apply(step, operands, result)
        results[place] = result
        for index in last_uses[place]:  # no more memory than the expression needs
            del results[index]


def _nonzero(x: _Array, to: str) -> _Array:
    return x != 0 if to == "bool" and x.dtype != bool else x


def _apply(step: Step, operands: list[_Array], out: _Array) -> None:
    operation, dtype = step.operation, numpy_dtype(step.dtype)
    if operation.is_function:
        a, b = operands if len(operands) > 1 else (operands[0], None)
        elementwise.compute(operation.name, a, b, out, dtype, None)
        return
    truths = operands[: operation.truths]
    rest = [x.astype(dtype, copy=False) for x in operands[operation.truths :]]
    if operation.keeps(dtype.kind):
        np.copyto(out, rest[0])
        return
    if operation.name == "square":
        elementwise.compute("multiply", rest[0], rest[0], out, dtype, None)
        return
    if dtype.itemsize == 2 and dtype.kind in "fV" and operation.name != "where":
        rest = [x.astype(np.float32) for x in rest]  # and rounded once; ml_dtypes has not all of them
    np.copyto(out, getattr(np, operation.numpy)(*truths, *rest), casting="unsafe")
