"""The operations and functions that an expression may use: what each accepts, gives, and is called elsewhere."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from interop import _core

__all__ = [
    "BINARY",
    "COMPARISONS",
    "COMPARISONS_BY_NAME",
    "FUNCTIONS",
    "PLACES",
    "ROUNDINGS",
    "UNARY",
    "Operation",
    "of_scalars",
]

#: The places of those that are functions of this package, too.
ROUNDINGS = ("floor", "ceil", "trunc", "round")  # which leave integers as they are
PLACES = {name: place for place, name in enumerate(_core.elementwise_operations())}


@dataclass(frozen=True)
class Operation:
    """One operation on elements. The first `truths` of its arguments are only asked whether they are zero."""

    name: str  #: as the array API calls it
    arity: int
    functor: str  #: in src/cuda/*_functors.cuh
    accepts: str = "biufc"  #: kinds of dtypes: bool, signed and unsigned integers, floats, complex numbers
    result: str = "same"  #: "same" dtype, "bool", or "part": that of the parts of complex numbers
    in_float: bool = False  #: integers and bool are computed in the library's default float, as by `divide`
    truths: int = 0


_KINDS_IN_WORDS = {"b": "bool", "iu": "integers", "f": "floats", "c": "complex numbers"}


def accepted_in_words(accepts: str) -> str:
    """Name kinds of dtypes, for a message."""
    words = [word for kinds, word in _KINDS_IN_WORDS.items() if kinds[0] in accepts]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _named(name: str, functor: str, arity: int = 2) -> Operation:
    """Make one that is a function of this package; the compiled half knows what it accepts and gives."""
    return Operation(name, arity, functor, in_float=name == "divide")


BINARY: dict[type, tuple[str, Operation]] = {
    ast.Add: ("+", _named("add", "Add")),
    ast.Sub: ("-", _named("subtract", "Subtract")),
    ast.Mult: ("*", _named("multiply", "Multiply")),
    ast.Div: ("/", _named("divide", "Divide")),
    ast.FloorDiv: ("//", _named("floor_divide", "FloorDivide")),
    ast.Mod: ("%", _named("remainder", "Remainder")),
    ast.Pow: ("**", _named("pow", "Pow")),
    ast.BitAnd: ("&", Operation("bitwise_and", 2, "BitwiseAnd", "biu")),
    ast.BitOr: ("|", Operation("bitwise_or", 2, "BitwiseOr", "biu")),
    ast.BitXor: ("^", Operation("bitwise_xor", 2, "BitwiseXor", "biu")),
    ast.LShift: ("<<", Operation("bitwise_left_shift", 2, "LeftShift", "iu")),
    ast.RShift: (">>", Operation("bitwise_right_shift", 2, "RightShift", "iu")),
}
UNARY: dict[type, tuple[str, Operation]] = {
    ast.USub: ("-", _named("negative", "Negative", 1)),
    ast.UAdd: ("+", Operation("positive", 1, "Real", "iufc")),
    ast.Invert: ("~", Operation("bitwise_invert", 1, "BitwiseInvert", "biu")),
}
COMPARISONS: dict[type, tuple[str, Operation]] = {
    ast.Eq: ("==", _named("equal", "Equal")),
    ast.NotEq: ("!=", _named("not_equal", "NotEqual")),
    ast.Lt: ("<", _named("less", "Less")),
    ast.LtE: ("<=", _named("less_equal", "LessEqual")),
    ast.Gt: (">", _named("greater", "Less")),  # of the other operand
    ast.GtE: (">=", _named("greater_equal", "LessEqual")),
}
COMPARISONS_BY_NAME = {operation.name: operation for _, operation in COMPARISONS.values()}

_OF_FLOATS = [
    "sqrt",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
]
FUNCTIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        _named("abs", "Abs", 1),
        _named("minimum", "Minimum"),
        _named("maximum", "Maximum"),
        Operation("where", 3, "Where", truths=1),
        *(Operation(name, 1, name.capitalize(), "f", in_float=True) for name in _OF_FLOATS),
        Operation("atan2", 2, "Atan2", "f", in_float=True),
        Operation("hypot", 2, "Hypot", "f", in_float=True),
        Operation("copysign", 2, "Copysign", "f", in_float=True),
        Operation("floor", 1, "Floor", "iuf"),
        Operation("ceil", 1, "Ceil", "iuf"),
        Operation("trunc", 1, "Trunc", "iuf"),
        Operation("round", 1, "RoundEven", "iuf"),
        Operation("square", 1, "Square", "iufc"),
        Operation("sign", 1, "Sign", "iuf"),
        Operation("real", 1, "Real", "iufc", "part"),
        Operation("imag", 1, "Imag", "c", "part"),
        Operation("conj", 1, "Conj", "iufc"),
        Operation("isnan", 1, "IsNan", result="bool"),
        Operation("isinf", 1, "IsInf", result="bool"),
        Operation("isfinite", 1, "IsFinite", result="bool"),
        Operation("signbit", 1, "SignBit", "iuf", "bool"),
        Operation("logical_and", 2, "LogicalAnd", result="bool", truths=2),
        Operation("logical_or", 2, "LogicalOr", result="bool", truths=2),
        Operation("logical_xor", 2, "LogicalXor", result="bool", truths=2),
        Operation("logical_not", 1, "LogicalNot", result="bool", truths=1),
    )
}

#: An array as it is: what an expression of a name alone is.
COPY = Operation("copy", 1, "Real")
SQUARE = FUNCTIONS["square"]
_NUMPY_NAMES = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "atan2": "arctan2", "round": "rint", "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift", "abs": "absolute",
}  # fmt: skip


def numpy_function(name: str) -> Callable[..., Any]:
    """Return NumPy's own, also of a version before it took the array API's names."""
    function: Callable[..., Any] = getattr(np, _NUMPY_NAMES.get(name, name))
    return function


# ---- scalars among themselves ----

_MOST_BITS = 4096  # of an integer on the way: no literal may keep the process busy

_OF_PYTHON: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
    "negative": operator.neg,
    "positive": operator.pos,
    "abs": operator.abs,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def of_scalars(operation: Operation, *operands: Any) -> Any:
    """Compute with scalars alone, which stay scalars: operators are Python's own, functions NumPy's."""
    name = operation.name
    if all(isinstance(x, int) for x in operands):
        _check_size(name, *operands)
    if name == "bitwise_invert":
        (x,) = operands
        return not x if isinstance(x, bool) else ~x
    if name in COMPARISONS_BY_NAME:  # Python's numbers are compared exactly, whatever their size
        operands = tuple(x.item() if isinstance(x, np.generic) else x for x in operands)
    with np.errstate(all="ignore"):
        if name in _OF_PYTHON:
            return _OF_PYTHON[name](*operands)
        result = numpy_function(name)(*operands)
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
