"""Calls of concrete JAX arrays: the checks before, and JAX's errors as ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import jax

from interop._core import CudaError
from interop.jax._placement import check_concrete, devices_of, make_wait, refuse_devices, refuse_in_trace

__all__ = ["compute", "raise_as_ours", "run"]

_Tracer = jax.core.Tracer


def compute(
    function: str,
    arrays: dict[str, jax.Array],
    stream: int | None,
    execution: str | None,
    call: Callable[[], jax.Array],
) -> jax.Array:
    """Make a call with concrete arrays after checks. Its errors become ours, and `stream` waits for its result."""
    check_concrete(function, arrays, stream, execution)
    try:
        result = call()
    except (RuntimeError, ValueError) as error:
        raise_as_ours(function, error, arrays)
    if stream is not None:
        if isinstance(result, _Tracer):  # constants of a function that is being traced
            refuse_in_trace(function, stream, execution)
        make_wait(stream, result)
    return result


def run(function: str, compiled: Callable[..., jax.Array], a: jax.Array, b: jax.Array) -> jax.Array:
    """Run what was compiled for two concrete arrays: `compute` in fewer steps, where nothing else is given."""
    if devices_of(a.sharding) is not devices_of(b.sharding):
        refuse_devices(function, {"a": a, "b": b})
    try:
        return compiled(a, b)
    except (RuntimeError, ValueError) as error:
        raise_as_ours(function, error, {"a": a, "b": b})


def raise_as_ours(function: str, error: RuntimeError | ValueError, arrays: dict[str, jax.Array]) -> NoReturn:
    """Raise JAX's error as what it means: an array that is gone, or our handler's report to XLA."""
    for name, x in arrays.items():
        if x.is_deleted():
            raise BufferError(
                f"{function}: {name}: the JAX array has been deleted or donated; JAX says: {error}"
            ) from error
    code, found, message = str(error).partition(f"{function}: ")
    if found and code.startswith("INVALID_ARGUMENT"):
        raise ValueError(found + message) from error
    if found and code.startswith("INTERNAL"):
        raise CudaError(found + message) from error
    raise error
