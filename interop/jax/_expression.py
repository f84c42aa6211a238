"""An expression on JAX arrays: JAX's own operations with this package's rules, which XLA fuses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from interop import _core
from interop._expressions.known import type_of, typed_for
from interop._expressions.typed import ArrayRef, Constant, Reference, Split, Step, Typed, ValueRef
from interop._libraries.jax import in_own_mode, keeping
from interop._operations.promotion import element_of, numpy_dtype
from interop.jax._calls import compute as compute_concrete
from interop.jax._elementwise import described
from interop.jax._formulas import computed, converted, imag, real
from interop.jax._placement import check_shapes, name_of, refuse_in_trace, refuse_outputs
from interop.jax._plans import Plan, is_planned, scalar_as_operand

__all__ = ["compute", "plan_of", "result_of"]

_Tracer = jax.core.Tracer


def compute(
    split: Split, arguments: Sequence[Any], out: Any = None, stream: int | None = None, execution: str | None = None
) -> jax.Array:
    """Compute the expression of JAX arrays, concrete or traced, and scalars, in the order of its parameters."""
    function = split.function
    refuse_outputs(function, out=out)
    arrays, typed, values = _typed(split, arguments)
    operands = [*arrays.values(), *values]
    traced = any(isinstance(x, _Tracer) for x in arrays.values())
    if traced:
        refuse_in_trace(function, stream, execution)
    compiled = _compiled(split, typed)

    def call() -> jax.Array:
        with keeping(*typed.dtypes):
            return compiled(*operands)

    return call() if traced else compute_concrete(function, arrays, stream, execution, call)


def result_of(split: Split, arguments: Sequence[Any]) -> tuple[dict[str, Any], tuple[int, ...], str]:
    """Return the arrays by name, and the shape and dtype of the result, or raise as the call would."""
    arrays, typed, _ = _typed(split, arguments)
    return arrays, _shape_of(split.function, arrays), typed.out_dtype


def _shape_of(function: str, arrays: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of the result, or raise as the call would. The dtypes are known to be served."""
    return _core.abstract_operands(function, [(name, x.shape, None) for name, x in arrays.items()])


def _typed(split: Split, arguments: Sequence[Any]) -> tuple[dict[str, Any], Typed, list[Any]]:
    """Return the arrays by name, the typed expression, and its scalars as elements.

    They are operands, so that another value compiles nothing.
    """
    arrays = {name: x for name, x in zip(split.parameters, arguments, strict=True) if name in split.arrays}
    scalars = split.evaluate(*arguments) if split.sources else []
    kinds = tuple(map(described, arrays.values()))
    typed = typed_for(split, "jax", kinds, scalars)
    values = [
        element_of(split.function, split.labels[source], scalars[source], numpy_dtype(dtype))
        for source, dtype in typed.values
    ]
    return arrays, typed, values


def plan_of(split: Split, kinds: Sequence[Any]) -> Plan | None:
    """Return what computes concrete arrays of these dtypes, and scalars of these types, if a plan does."""
    arrays = tuple(place for place, name in enumerate(split.parameters) if name in split.arrays)
    scalars = [place for place in range(len(kinds)) if place not in arrays]
    if -1 in split.places or not all(is_planned(kinds[place]) for place in scalars):
        return None
    samples = [kinds[place](1) for place in split.places]
    typed = type_of(split, "jax", tuple((name_of(kinds[place]), False) for place in arrays), samples)
    compared: dict[int, list[Any]] = {}
    for source, dtype in typed.compared:
        compared.setdefault(source, []).append(numpy_dtype(dtype))
    found = [
        scalar_as_operand(split.places[x], kinds[split.places[x]], numpy_dtype(dtype), compared.pop(x, ()))
        for x, dtype in typed.values
    ]
    if None in found or compared:
        return None
    compiled = _compiled(split, typed)
    operands = tuple(filter(None, found))
    return Plan(split.function, split.parameters, compiled, arrays, operands, typed.configuration)


@functools.lru_cache(maxsize=1024)
def _compiled(split: Split, typed: Typed) -> Callable[..., jax.Array]:
    """Return what calls run, compiled once for each shape."""

    def interop_expression(*operands: Any) -> jax.Array:
        arrays, scalars = operands[: len(split.arrays)], operands[len(split.arrays) :]
        check_shapes(split.function, dict(zip(split.arrays, arrays, strict=True)))
        with in_own_mode(*typed.dtypes):
            values = [
                jax.lax.convert_element_type(x, numpy_dtype(dtype))
                for x, (_, dtype) in zip(scalars, typed.values, strict=True)
            ]
            return _evaluate(typed, arrays, values)

    compiled: Callable[..., jax.Array] = jax.jit(interop_expression, inline=True)
    return compiled


def _evaluate(typed: Typed, arrays: Sequence[jax.Array], values: Sequence[jax.Array]) -> jax.Array:
    results: list[jax.Array] = []

    def find(ref: Reference) -> jax.Array:
        if isinstance(ref, ArrayRef):
            return arrays[ref.index]
        if isinstance(ref, ValueRef):
            return values[ref.index]
        return jnp.asarray(ref.value) if isinstance(ref, Constant) else results[ref.index]

    for step in typed.steps:
        # The operations convert by themselves: comparisons see what was signed.
        operands = [find(ref) if step.operation.is_function else _as(find(ref), to) for ref, to in step.args]
        results.append(_apply(step, operands))
    return jnp.broadcast_to(results[-1], jnp.broadcast_shapes(*(x.shape for x in arrays)))


def _as(x: jax.Array, to: str) -> jax.Array:
    return x != 0 if to == "bool" and x.dtype != bool else converted(x, numpy_dtype(to))


def _apply(step: Step, operands: list[jax.Array]) -> jax.Array:
    name, dtype = step.operation.name, numpy_dtype(step.dtype)
    if step.operation.is_function:
        return computed(*operands, operation=name, dtype=step.dtype, where_zero=None)
    if step.operation.keeps(dtype.kind):
        return operands[0]
    if name in ("bitwise_left_shift", "bitwise_right_shift"):
        return _shift(name, *operands)
    if name == "sign" and dtype.kind not in "iu":
        return jnp.where(operands[0] == 0, jnp.zeros_like(operands[0]), jnp.sign(operands[0]))
    if name in ("real", "imag", "conj") and dtype.kind != "c":
        return operands[0]
    if name in ("real", "imag"):
        return real(*operands) if name == "real" else imag(*operands)
    if dtype.itemsize == 2 and dtype.kind in "fV" and step.operation.in_float:
        wide = [x.astype(jnp.float32) for x in operands]
        result: jax.Array = getattr(jnp, name)(*wide)
        return converted(result, dtype)
    return getattr(jnp, name)(*operands)


def _shift(name: str, x: jax.Array, count: jax.Array) -> jax.Array:
    """Shift as NumPy does: a shift by all bits or more, or by a negative count, leaves only the sign."""
    bits = 8 * x.dtype.itemsize
    outside = (count < 0) | (count >= bits)
    inside = jnp.where(outside, 0, count).astype(count.dtype)
    if name == "bitwise_left_shift":
        return jnp.where(outside, jnp.zeros_like(x), x << inside)
    return jnp.where(outside, jnp.where(x < 0, -jnp.ones_like(x), jnp.zeros_like(x)), x >> inside)
