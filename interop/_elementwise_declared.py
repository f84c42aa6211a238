"""What the elementwise functions share: the sections of their docstrings, and the function that stands for each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import cleandoc
from typing import Any, TypeVar

from interop import _core
from interop._arguments import missing, refuse_call_of
from interop._lazy import call_lazily, is_lazy
from interop._traced import traced_by

__all__ = ["BINARY", "COMPARISON", "UNARY", "operation"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_OPTIONS = """
out : array, shape and dtype of the result, same device, optional
    Written in place, whatever its strides, and returned. It may be an operand, or overlap one. Not for JAX.
stream : int handle or stream object, optional
    Where the work is queued; the current stream of the array library by default. For device arrays.
{more}execution : "cuda" or "cuda:<index>", optional
    Computes host arrays on that GPU, and gives a host array."""

UNARY = (
    """Parameters
----------
x : array of any shape, {dtypes}
    Of any library, as for `interop.matmul`. Any strides."""
    + _OPTIONS
    + """

Returns
-------
array of the library of `x`, {result}
    On the operands' device, ready in stream order; never a NumPy scalar.

Raises
------
TypeError
    An argument is no array; the dtype is not served;
    host and device arrays are mixed; `out` is read-only, immutable, or of another dtype.
ValueError
    `out` has another shape, or overlaps
    itself.
BufferError
    The producer of an array refuses to export it.
CudaError
    CUDA fails, or there is no GPU or no driver."""
)

BINARY = (
    """Parameters
----------
a : array of any shape, or scalar; {dtypes}
    Of any library, as for `interop.matmul`. Any strides.
b : array that broadcasts with `a`, or scalar; not both scalars
    Of any library too, on the same device; a 0-d host array may join device arrays. Two dtypes are promoted as
    the library of the first array does, where scalars of Python count by their kind alone."""
    + _OPTIONS
    + """

Returns
-------
array of the library of the first array, {result}
    On the operands' device, ready in stream order; never a NumPy scalar.

Raises
------
TypeError
    An argument is no array, or both are scalars; the dtype is not served, or the library refuses the mix;
    host and device arrays are mixed; `out` is read-only, immutable, or of another dtype.
ValueError
    The shapes do not broadcast; the arrays are on two devices; `out` has another shape, or overlaps
    itself.
OverflowError
    An integer scalar does not fit the dtype of the array.
BufferError
    The producer of an array refuses to export it.
CudaError
    CUDA fails, or there is no GPU or no driver."""
)

COMPARISON = BINARY.replace(
    """Two dtypes are promoted as
    the library of the first array does, where scalars of Python count by their kind alone.""",
    """Integers and bools are
    compared exactly, whatever their dtypes, and a scalar may have any size. Floats are promoted as by `add`.""",
).replace("OverflowError\n    An integer scalar does not fit the dtype of the array.\n", "")


def operation(
    sections: str, dtypes: str, result: str = "the operands' dtype", more: str = ""
) -> Callable[[FunctionT], FunctionT]:
    """Make an operation of its declaration; the sections that the docstrings share take the place of `{sections}`.

    The function itself takes what is given, as that of `interop.matmul`.
    """

    def make(declared: FunctionT) -> FunctionT:
        name = declared.__name__
        function = f"interop.{name}"

        def binary(a: Any = missing, b: Any = missing, /, *more: Any, **options: Any) -> Any:
            if more:
                refuse_call_of(function, (a, b, *more), options)
            try:
                return _core.elementwise(name, a, b, options)
            except TypeError:
                if not is_lazy((a, b), options):
                    raise
            return call_lazily(made, (a, b), options)

        def unary(x: Any = missing, /, *more: Any, **options: Any) -> Any:
            if more:
                refuse_call_of(function, (x, *more), options)
            try:
                return _core.elementwise(name, x, None, options)
            except TypeError:
                if not is_lazy((x,), options):
                    raise
            return call_lazily(made, (x,), options)

        made: Any = functools.wraps(declared)(unary if sections is UNARY else binary)
        made.__code__ = made.__code__.replace(co_name=name)  # in tracebacks and profiles
        if declared.__doc__:  # there is none under python -OO
            words = sections.format(dtypes=dtypes, result=result, more=more)
            made.__doc__ = declared.__doc__ = cleandoc(declared.__doc__).replace("{sections}", words)

        def traced(*args: Any, **options: Any) -> Any:
            from interop.torch import _tracing  # by torch's compiler, as it traces

            return _tracing.elementwise(name, *args, **options)

        traced.__code__ = traced.__code__.replace(co_name=f"traced_{name}")  # what is compiled is kept by the code
        return traced_by(traced)(made)  # type: ignore[no-any-return]

    return make
