"""Expressions to compute, and their answers: the same operations of interop, one call after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

import interop
from helpers import elements

#: Expressions of arrays x, y and z of one dtype each, by the kinds of dtypes (NumPy's letters) that they serve.
CHAINS = {
    "x * y + z": ("biufc", lambda x, y, z: interop.add(interop.multiply(x, y), z)),
    "-x - y * 3": ("iufc", lambda x, y, z: interop.subtract(interop.negative(x), interop.multiply(y, 3))),
    "x // y + x % y": ("iuf", lambda x, y, z: interop.add(interop.floor_divide(x, y), interop.remainder(x, y))),
    "x / y / z": ("iufc", lambda x, y, z: interop.divide(interop.divide(x, y), z)),
    "minimum(x, y) == maximum(y, z)": (
        "biuf",
        lambda x, y, z: interop.equal(interop.minimum(x, y), interop.maximum(y, z)),
    ),
    "(x > y) * z": ("biufc"[:-1], lambda x, y, z: interop.multiply(interop.greater(x, y), z)),
    "abs(x) <= abs(y)": ("iuf", lambda x, y, z: interop.less_equal(interop.abs(x), interop.abs(y))),
}


def cases_of(expressions: dict[str, tuple[str, Any]]) -> list[tuple[str, str]]:
    """Return each expression with each dtype that it serves."""
    return [
        (text, dtype)
        for text, (kinds, _) in expressions.items()
        for dtype in elements.DTYPES
        if elements.kind_of(dtype) in kinds
    ]


CASES = cases_of(CHAINS)


def chain(text: str, *arrays: Any) -> Any:
    with np.errstate(all="ignore"):
        return CHAINS[text][1](*arrays)


def call(text: str, *arrays: Any, **options: Any) -> Any:
    """Compute with as many of the arrays as the expression has parameters."""
    function = interop.elementwise(text)
    with np.errstate(all="ignore"):
        named = dict(zip("xyz", arrays, strict=True))
        return function(**{name: named[name] for name in function.parameters}, **options)


#: Functions on float arrays, as NumPy computes them in higher precision.
FUNCTIONS = {
    "sqrt(abs(x))": lambda x: np.sqrt(np.abs(x)),
    "exp(x)": np.exp,
    "expm1(x)": np.expm1,
    "log(abs(x))": lambda x: np.log(np.abs(x)),
    "log1p(abs(x))": lambda x: np.log1p(np.abs(x)),
    "log2(abs(x))": lambda x: np.log2(np.abs(x)),
    "log10(abs(x))": lambda x: np.log10(np.abs(x)),
    "sin(x)": np.sin,
    "cos(x)": np.cos,
    "tan(x)": np.tan,
    "asin(x)": np.arcsin,
    "acos(x)": np.arccos,
    "atan(x)": np.arctan,
    "sinh(x)": np.sinh,
    "cosh(x)": np.cosh,
    "tanh(x)": np.tanh,
    "asinh(x)": np.arcsinh,
    "acosh(abs(x))": lambda x: np.arccosh(np.abs(x)),
    "atanh(x)": np.arctanh,
    "atan2(x, 2.0)": lambda x: np.arctan2(x, 2.0),
    "hypot(x, 2.0)": lambda x: np.hypot(x, 2.0),
    "copysign(2.5, x)": lambda x: np.copysign(2.5, x),
    "floor(x)": np.floor,
    "ceil(x)": np.ceil,
    "trunc(x)": np.trunc,
    "round(x)": np.rint,
    "square(x)": np.square,
    "x ** 2": np.square,
    "sign(x)": np.sign,
    "+x": lambda x: x,
    "x": lambda x: x,
    "real(x)": lambda x: x,
    "conj(x)": lambda x: x,
    "where(x > 0, x, 0.5)": lambda x: np.where(x > 0, x, 0.5),
}

#: Those with an exact answer, of arrays x and y: NumPy's.
TESTS = {
    "isnan(x)": ("biufc", lambda x, y: np.isnan(x)),
    "isinf(x)": ("biufc", lambda x, y: np.isinf(x)),
    "isfinite(x)": ("biufc", lambda x, y: np.isfinite(x)),
    "signbit(x)": ("if", lambda x, y: np.signbit(x)),
    "logical_and(x, y)": ("biufc", np.logical_and),
    "logical_or(x, y)": ("biufc", np.logical_or),
    "logical_xor(x, y)": ("biufc", np.logical_xor),
    "logical_not(x)": ("biufc", lambda x, y: np.logical_not(x)),
    "x & y": ("biu", np.bitwise_and),
    "x | y": ("biu", np.bitwise_or),
    "x ^ y": ("biu", np.bitwise_xor),
    "~x": ("biu", lambda x, y: np.invert(x)),
    "x << 3": ("iu", lambda x, y: np.left_shift(x, x.dtype.type(3))),
    "x >> 3": ("iu", lambda x, y: np.right_shift(x, x.dtype.type(3))),
    "x << 200 - 100": ("iu", lambda x, y: np.zeros_like(x)),
    "x >> 100": ("iu", lambda x, y: np.where(x < 0, -1, 0).astype(x.dtype)),
    "sign(x)": ("iu", lambda x, y: np.sign(x)),
    "floor(x) + round(x)": ("iu", lambda x, y: x + x),
    "real(x)": ("c", lambda x, y: x.real),
    "imag(x) + 0.0": ("c", lambda x, y: x.imag),
    "conj(x)": ("c", lambda x, y: x.conj()),
    "where(x, y, x)": ("biufc", lambda x, y: np.where(x != 0, y, x)),
}
TEST_CASES = cases_of(TESTS)
