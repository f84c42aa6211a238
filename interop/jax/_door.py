"""The way from the compiled half to JAX: the operations on JAX arrays."""

from __future__ import annotations

from typing import Any

import jax

from interop._expressions.typed import Split
from interop.jax import _expression
from interop.jax._elementwise import elementwise, elementwise_of_arrays
from interop.jax._matmul import matmul, matmul_of_arrays

__all__ = ["compute"]


def compute(operation: str | Split, options: dict[str, Any] | None, *operands: Any) -> jax.Array:
    """Compute "matmul", an elementwise function by its name, or an expression.

    The operands are JAX arrays, concrete or traced, and scalars; the second one of a unary function is None. `options`
    are the arguments with a name. None is for a function of concrete arrays alone, with none: most calls, in fewer
    steps.
    """
    if not isinstance(operation, str):
        return _expression.compute(operation, operands, **(options or {}))
    if options is None:
        a, b = operands
        return matmul_of_arrays(a, b) if operation == "matmul" else elementwise_of_arrays(operation, a, b)
    if operation == "matmul":
        return matmul(*operands, **options)
    return elementwise(operation, *operands, **options)
