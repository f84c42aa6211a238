"""The way from the compiled half to JAX: the operations on JAX arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from interop._expressions.typed import Split
from interop.jax import _elementwise, _expression, _matmul
from interop.jax._placement import devices_of
from interop.jax._plans import Plan

__all__ = ["compiled_for", "compute"]

_concrete: set[type] = set()  # the classes of concrete arrays, once met


def compute(operation: str | Split, options: dict[str, Any] | None, *operands: Any) -> jax.Array:
    """Compute "matmul", an elementwise function by its name, or an expression.

    The operands are JAX arrays, concrete or traced, and scalars. `options` are the arguments with a name; None stands
    for none of them.
    """
    if options is None:
        # A plan for the kinds of the operands: most calls of concrete arrays, in few steps.
        kinds: list[Any] = [operation]
        first: Any = None
        for x in operands:
            kind = type(x)
            if kind in _concrete:
                aval, place = x.aval, x.sharding
                kind = _Weak if aval.weak_type else aval.dtype
                if first is None:
                    first = place
                elif place is not first and place != first and devices_of(place) is not devices_of(first):
                    kind = _Elsewhere
            kinds.append(kind)
        plan = _plan_of(*kinds)
        if plan is not None and (passed := plan.passed(operands) if plan.asks else operands) is not None:
            try:
                return plan.compiled(*passed)
            except FloatingPointError:
                pass  # NumPy's, of a scalar that JAX rounds as the caller's errstate has it; or JAX's, of a NaN, again
            except (RuntimeError, ValueError) as error:
                plan.raise_as_ours(error, operands)
        met = {type(x) for x in operands if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer)}
        if not met <= _concrete:
            _concrete.update(met)
            return compute(operation, None, *operands)
        options = {}
    if operation == "matmul":
        return _matmul.matmul(*operands, **options)
    if isinstance(operation, str):
        return _elementwise.elementwise(operation, *operands, **options)
    return _expression.compute(operation, operands, **options)


def compiled_for(operation: str | Split, *dtypes: Any) -> Callable[..., jax.Array] | None:
    """Return what computes concrete arrays of these dtypes, on the same devices, whatever JAX's configuration.

    None if there is no such. The compiled half calls it without coming here again.
    """
    plan = _plan_of(operation, *dtypes)
    return None if plan is None or plan.asks else plan.compiled


class _Weak:
    """The kind of a weakly typed array, for which there is no plan."""


class _Elsewhere:
    """The kind of an array on another device than the first one."""


@functools.lru_cache(maxsize=4096)
def _plan_of(operation: str | Split, *kinds: Any) -> Plan | None:
    """Return what computes operands of these kinds, dtypes of arrays and types of scalars, if a plan does."""
    if _Weak in kinds or _Elsewhere in kinds:
        return None
    try:
        if operation == "matmul":
            return _matmul.plan_of(*kinds)
        if isinstance(operation, str):
            return _elementwise.plan_of(operation, kinds)
        return _expression.plan_of(operation, kinds)
    except (TypeError, ValueError, OverflowError):  # which the call raises, and says what of
        return None
