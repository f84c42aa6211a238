"""The scalars of an expression, computed among themselves."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from interop._operations.table import COMPARISONS, Operation

__all__ = ["of_scalars"]

_MOST_BITS = 4096  # of an integer on the way: no literal may keep the process busy

_OPERATORS: dict[tuple[str, int], Callable[..., Any]] = {
    ("+", 2): operator.add,
    ("-", 2): operator.sub,
    ("*", 2): operator.mul,
    ("/", 2): operator.truediv,
    ("//", 2): operator.floordiv,
    ("%", 2): operator.mod,
    ("**", 2): operator.pow,
    ("&", 2): operator.and_,
    ("|", 2): operator.or_,
    ("^", 2): operator.xor,
    ("<<", 2): operator.lshift,
    (">>", 2): operator.rshift,
    ("-", 1): operator.neg,
    ("+", 1): operator.pos,
    ("==", 2): operator.eq,
    ("!=", 2): operator.ne,
    ("<", 2): operator.lt,
    ("<=", 2): operator.le,
    (">", 2): operator.gt,
    (">=", 2): operator.ge,
}


def of_scalars(operation: Operation, *operands: Any) -> Any:
    """Compute with scalars alone, which stay scalars: operators are Python's own, functions NumPy's."""
    name = operation.name
    if all(isinstance(x, int) for x in operands):
        _check_size(name, *operands)
    if name == "bitwise_invert":
        (x,) = operands
        return not x if isinstance(x, bool) else ~x
    if name in COMPARISONS:  # Python's numbers are compared exactly, whatever their size
        operands = tuple(x.item() if isinstance(x, np.generic) else x for x in operands)
    function = _OPERATORS[operation.symbol, operation.arity] if operation.symbol else None
    if function and not any(isinstance(x, np.generic) for x in operands):
        return function(*operands)
    with np.errstate(all="ignore"):
        if function:
            return function(*operands)
        if name == "abs":
            return abs(*operands)
        result = getattr(np, operation.numpy)(*operands)
    return result if any(isinstance(x, np.generic) for x in operands) else result.item()


def _check_size(name: str, *operands: int) -> None:
    if name == "pow" and operands[1] > 0:
        bits = math.log2(max(abs(operands[0]), 1)) * operands[1]
    elif name == "bitwise_left_shift":
        bits = operands[1]
    else:
        return
    if bits > _MOST_BITS:
        raise OverflowError(f"interop.elementwise: a scalar of more than {_MOST_BITS} bits")
