"""Expressions over the arrays of any library, each computed by one kernel: `interop.elementwise`."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from interop import _core
from interop._arguments import named, shown
from interop._expressions.parser import OPTIONS, parse
from interop._expressions.source import load
from interop._expressions.typed import Split
from interop._lazy import call_lazily, is_lazy
from interop._streams import StreamLike
from interop._traced import traced_by

__all__ = ["Expression", "elementwise"]


@named("interop.elementwise")
def elementwise(expression: str, /) -> Expression:
    """Make a function of an expression over arrays, which one kernel computes.

    The parameters are the names in it, in order of appearance, each an array or a scalar, by position or by name. The
    shapes broadcast, and any strides are read where they are. The call takes `out=`, `stream=` and `execution=`, as
    `interop.add` does, and gives an array of the library of the first array.

    Parameters
    ----------
    expression : str
        Numbers, names, ``+ - * / // % **``, ``& | ^ ~ << >>``, one comparison at a time, and calls of these functions:
        abs minimum maximum where sqrt square exp expm1 log log1p log2 log10 sin cos tan asin acos atan atan2 sinh cosh
        tanh asinh acosh atanh hypot copysign floor ceil trunc round sign signbit isnan isinf isfinite real imag conj
        logical_and logical_or logical_xor logical_not. 16 names at most, 200 operations within one another, on any
        number of lines.

    Returns
    -------
    Expression
        To be called, again and again: what is found out and compiled for some dtypes is kept.

    Raises
    ------
    TypeError
        `expression` is no str. In a call: as of `interop.add`; an operation does not accept the dtype that it meets.
    ValueError
        `expression` holds anything else; the message points at the character. In a call: as of `interop.add`.
    OverflowError
        In a call: an integer scalar does not fit the dtype of the array that it meets, other than in a comparison.
    CudaError
        In a call, on a GPU: `cuda.core` or NVRTC is missing, which the message says how to install; or CUDA fails.

    Notes
    -----
    The result is that of the same operations called one after the other, such as
    ``interop.add(interop.multiply(x, y), a)``: each step promotes its operands as their library does, scalars of Python
    count by their kind alone, integers wrap, an integer divided by zero is 0, and 16-bit floats are rounded after each
    step. Comparisons of integers are exact, whatever their dtypes and the size of a scalar. No two steps are contracted
    to one rounding (a fused multiply-add), except by XLA for JAX arrays. A literal exponent of 2 is a square. Operators
    between scalars alone are Python's own.

    The first call with new dtypes, or with another class of layout, compiles a kernel, in about half a second; the
    cache on disk (``INTEROP_CACHE_DIR``, or ``~/.cache/interop``) spares later processes that. Scalars are passed by
    value: a new value compiles nothing, but for one beyond all elements that it is compared with. Host arrays are
    computed by NumPy, step by step.

    Examples
    --------
    >>> import numpy as np
    >>> import interop
    >>> f = interop.elementwise("where(x > 0, x * y + a, 0)")
    >>> f
    interop.elementwise('where(x > 0, x * y + a, 0)')
    >>> f(np.array([1.0, -1.0, 2.0]), np.array([[10.0], [20.0]]), a=0.5)
    array([[10.5,  0. , 20.5],
           [20.5,  0. , 40.5]])
    """
    return Expression(expression)


def _traced(expression: Expression, /, *args: Any, **named: Any) -> Any:
    from interop.torch import _tracing  # by torch's compiler, as it traces

    return _tracing.expression(expression, *args, **named)


class Expression:
    """An expression that is called with arrays; `interop.elementwise` makes it, and says how it computes.

    Two of one text are equal, and one may be pickled.
    """

    def __init__(self, expression: str) -> None:
        parsed = parse(expression)
        parameters = parsed.parameters
        function = f"interop.elementwise({shown(expression)})"
        self._text = expression
        self._make_split = functools.partial(Split, function, parsed)
        self._calls = _core.Expression(function, list(parameters), self._make_split, load)
        positional = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in parameters]
        options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in OPTIONS]
        self.__signature__ = inspect.Signature([*positional, *options])

    @traced_by(_traced, is_method=True)
    def __call__(
        self,
        *arrays: Any,
        out: Any = None,
        stream: StreamLike | None = None,
        execution: str | None = None,
        **named: Any,
    ) -> Any:
        """Compute it."""
        try:
            return _core.call_expression(self._calls, arrays, named, out, stream, execution)
        except TypeError:
            named = {**named, "out": out, "stream": stream, "execution": execution}
            if not is_lazy(arrays, named):
                raise
        return call_lazily(self, arrays, named)

    @property
    def expression(self) -> str:
        """The text."""
        return self._text

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return tuple(self.__signature__.parameters)[: -len(OPTIONS)]

    def __repr__(self) -> str:
        return f"interop.elementwise({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Expression) else NotImplemented

    def __hash__(self) -> int:
        return hash((Expression, self._text))

    def __reduce__(self) -> tuple[Any, ...]:
        return elementwise, (self._text,)
