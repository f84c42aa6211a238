"""The way from the public functions to Dask: the operations of which an array is Dask's."""

from __future__ import annotations

import inspect
from typing import Any

from interop._arguments import missing, refuse_call
from interop.dask import _elementwise, _matmul

__all__ = ["compute"]


def compute(function: Any, operands: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Make the lazy array of `interop.matmul`, of an elementwise function, or of an expression.

    `function` is itself what each block is computed by.
    """
    name = getattr(function, "__name__", None)
    label = repr(function) if name is None else f"interop.{name}"
    given = [x for x in operands if x is not missing]
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*given, **options)
    except TypeError:
        bound = None
    if bound is None:
        refuse_call(label, signature, given, options)
    parameters = signature.parameters
    named = {name for name in bound.arguments if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY}
    arrays = {name: x for name, x in bound.arguments.items() if name not in named}
    others = {name: x for name, x in bound.arguments.items() if name in named}
    if name == "matmul":
        return _matmul.matmul(function, arrays["a"], arrays["b"], others)
    return _elementwise.elementwise(label, function, arrays, others)
