"""The elementwise operations as one JAX primitive: an FFI call into our kernels on CUDA, JAX's own on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from interop import _core
from interop._libraries.jax import is_wide, keeping
from interop._operations.promotion import (
    as_promoted,
    comparison_of,
    element_of,
    numpy_dtype,
    promote,
    weak_scalar,
)
from interop._operations.table import COMPARISONS, OPERATIONS
from interop.jax._calls import compute, run
from interop.jax._placement import check_operands, name_of, placed_as, refuse_in_trace, refuse_outputs
from interop.jax._primitive import set_rules

__all__ = ["computed", "converted", "described", "elementwise", "elementwise_of_arrays"]

_TARGET = "interop_elementwise"
_Tracer = jax.core.Tracer


def elementwise(
    operation: str, a: Any, b: Any, out: Any, stream: int | None, execution: str | None, where_zero: complex | None
) -> jax.Array:
    """Compute one of the package's functions on JAX arrays, concrete or traced, and scalars.

    `b` is None for the unary ones. Raises as the public function does, and NotImplementedError for derivatives.
    """
    function = f"interop.{operation}"
    refuse_outputs(function, out=out)
    operands = dict(zip(OPERATIONS[operation].parameters, (a, b), strict=False))
    arrays, inputs = operands, [*operands.values()]
    dtype = _dtype_of_all(operation, inputs)
    zero = None if dtype is None else _bytes_of(where_zero, dtype)
    if dtype is None:  # the long way
        arrays = {name: x for name, x in operands.items() if isinstance(x, jax.Array | _Tracer)}
        dtype = _common_dtype(function, operation, inputs)
        # A scalar becomes an operand, so that another value compiles nothing.
        kind = numpy_dtype(dtype)
        zero = _bytes_of(where_zero, dtype)
        operation, inputs = _with_elements(operation, operands, kind)
        if any(isinstance(x, _Tracer) for x in arrays.values()):
            refuse_in_trace(function, stream, execution)
            params = {"operation": operation, "dtype": dtype, "where_zero": zero}
            traced: jax.Array = _with_wide(inputs, arrays, lambda: elementwise_p.bind(*inputs, **params))
            return traced

    compiled = _compiled(operation, dtype, zero)
    return compute(function, arrays, stream, execution, lambda: _with_wide(inputs, arrays, lambda: compiled(*inputs)))


def elementwise_of_arrays(operation: str, a: jax.Array, b: jax.Array | None) -> jax.Array:
    """Compute an operation on concrete arrays, with nothing else given: most calls, in fewer steps."""
    compiled = _of_one_dtype(operation, a.dtype) if b is None or a.dtype == b.dtype else None
    if compiled is None:
        return elementwise(operation, a, b, None, None, None, None)
    return run(f"interop.{operation}", compiled, a, b)


@functools.lru_cache(maxsize=1024)
def _of_one_dtype(operation: str, dtype: Any) -> Callable[..., jax.Array] | None:
    """Return what computes arrays of that dtype alone; None where it is not the operation's."""
    promotes = OPERATIONS[operation].in_float and dtype.kind in "biu"
    return None if promotes else _compiled(operation, name_of(dtype), None)


def _with_elements(operation: str, operands: dict[str, Any], kind: Any) -> tuple[str, list[Any]]:
    """Return the operands, each scalar as an element, and the operation, which may be another comparison by now."""
    function = f"interop.{operation}"
    inputs = []
    for place, (name, x) in enumerate(operands.items()):
        if isinstance(x, jax.Array | _Tracer):
            element = x
        elif operation in COMPARISONS:
            operation, element = comparison_of(function, operation, name, x, kind, place == 0)
        else:
            element = element_of(function, name, x, kind)
        inputs.append(element)
    return operation, inputs


def result_of(operation: str, a: Any, b: Any, where_zero: complex | None) -> tuple[tuple[int, ...], str]:
    """Return the shape and dtype of the result, or raise as the call would; for `interop.explain`."""
    operands = dict(zip(OPERATIONS[operation].parameters, (a, b), strict=False))
    common = _common_dtype(f"interop.{operation}", operation, [*operands.values()])
    _bytes_of(where_zero, common)
    _, inputs = _with_elements(operation, operands, numpy_dtype(common))
    return _abstract(operation, common, inputs)


def _abstract(operation: str, dtype: str, operands: Sequence[Any]) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of what an operation computed in `dtype` gives, or raise what such a call does."""
    return _core.abstract_elementwise(operation, dtype, [(x.shape, name_of(x.dtype)) for x in operands])


def _bytes_of(where_zero: complex | None, dtype: str) -> bytes | None:
    """Return the element as a parameter that equals itself, which a NaN does not."""
    if where_zero is None:
        return None
    element: bytes = element_of("interop.divide", "where_zero", where_zero, numpy_dtype(dtype)).tobytes()
    return element


def _dtype_of_all(operation: str, operands: list[Any]) -> str | None:
    """Return the dtype of concrete arrays that share one; None for all else, and where it is not the operation's."""
    first, last = operands[0], operands[-1]
    if type(first) is not type(last) or isinstance(first, _Tracer) or first.dtype != last.dtype:
        return None
    if OPERATIONS[operation].in_float and first.dtype.kind in "biu":
        return None
    return name_of(first.dtype)


def _common_dtype(function: str, operation: str, operands: Sequence[Any]) -> str:
    """Do what `promote` does, without asking where the operands have a dtype of their own."""
    kinds = [described(x) if isinstance(x, jax.Array | _Tracer) else x for x in operands]
    dtype = _core.shared_dtype(operation, kinds)
    if dtype is not None:
        return dtype
    try:
        return promote(function, "jax", OPERATIONS[operation].in_float, *as_promoted(kinds))
    except TypeError:
        named = zip(OPERATIONS[operation].parameters, operands, strict=True)
        # It says whose dtype it is.
        _core.abstract_operands(
            function, [(name, (), str(x.dtype)) for name, x in named if isinstance(x, jax.Array | _Tracer)]
        )
        raise


def described(x: Any) -> tuple[Any, ...]:
    """Return an array as promotion takes it; of a weakly typed one also the scalar that it stands for."""
    return (name_of(x.dtype), x.ndim == 0, *((weak_scalar(x.dtype),) if x.weak_type else ()))


def _with_wide(inputs: list[Any], arrays: dict[str, Any], call: Callable[[], Any]) -> Any:
    """Compute; outside JAX's x64 mode, a scalar beside a 64-bit array would be narrowed on its way in."""
    if len(inputs) == len(arrays):
        return call()
    with keeping(*(x.dtype for x in inputs)):
        return call()


# ---- the primitive and its rules ----

elementwise_p: Any = Primitive("interop_elementwise")


@functools.lru_cache(maxsize=1024)
def _compiled(operation: str, dtype: str, where_zero: bytes | None) -> Callable[..., jax.Array]:
    """Put the primitive under `jax.jit`: what calls with concrete arrays run, compiled once for each shape."""

    def interop_elementwise(*operands: jax.Array) -> Any:
        return elementwise_p.bind(*operands, operation=operation, dtype=dtype, where_zero=where_zero)

    compiled: Callable[..., jax.Array] = jax.jit(interop_elementwise)
    return compiled


def _type(*operands: Any, operation: str, dtype: str, where_zero: bytes | None) -> Any:
    check_operands(f"interop.{operation}", dict(zip(OPERATIONS[operation].parameters, operands, strict=True)))
    shape, result = _abstract(operation, dtype, operands)
    place = placed_as(shape, *operands)
    return operands[0].update(shape=shape, dtype=numpy_dtype(result), weak_type=False, **place)


def computed(*operands: jax.Array, operation: str, dtype: str, where_zero: bytes | None) -> jax.Array:
    """Compute an operation by JAX's own, with this package's rules."""
    kind = numpy_dtype(dtype)
    # Not the user's x64 mode, which would narrow what is wide, or widen what is weakly typed.
    with jax.enable_x64(any(map(is_wide, (kind, *(x.dtype for x in operands))))):
        if operation in COMPARISONS and kind == np.uint64 and any(x.dtype.kind == "i" for x in operands):
            return _compare_with_signs(operation, *operands)
        x, *rest = [converted(x, kind) for x in operands]
        if where_zero is not None:
            (divisor,) = rest
            return jnp.where(divisor == 0, np.frombuffer(where_zero, kind)[0], jnp.divide(x, divisor))
        special = _SPECIAL.get(kind.kind, _OF_FLOATS).get(operation)
        return (special or getattr(jnp, operation))(x, *rest)


def _compare_with_signs(operation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Compare uint64 with signed integers: by their bits, where both are negative or neither is."""
    compare = getattr(jnp, operation)
    a_negative, b_negative = (x < 0 for x in (a, b))
    by_bits = compare(converted(a, np.dtype("uint64")), converted(b, np.dtype("uint64")))
    return jnp.where(a_negative == b_negative, by_bits, compare(b_negative, a_negative))


def converted(x: jax.Array, kind: Any) -> jax.Array:
    """Convert to a dtype."""
    result = jax.lax.convert_element_type(x, kind)
    # XLA on the CPU would make a select of a converted bool, and of the select's 0 / 0 a 0.
    return jax.lax.optimization_barrier(result) if x.dtype == bool else result


def _integer_floor_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(b == 0, jnp.zeros_like(a), jnp.floor_divide(a, jnp.where(b == 0, jnp.ones_like(b), b)))


def _integer_remainder(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.where(b == 0, jnp.zeros_like(a), jnp.remainder(a, jnp.where(b == 0, jnp.ones_like(b), b)))


def _integer_pow(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Compute by squaring, over all bits of the exponent: jnp.power uses only some of them."""
    base, exponent = jnp.broadcast_arrays(base, exponent)

    def step(i: Any, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        product, square = state
        is_set = (exponent >> jnp.asarray(i, exponent.dtype)) & 1
        return jnp.where(is_set == 1, product * square, product), square * square

    power, _ = jax.lax.fori_loop(0, 8 * base.dtype.itemsize, step, (jnp.ones_like(base), base))
    if base.dtype.kind == "u":
        return power
    one = jnp.ones_like(base)
    inverse = jnp.where(base == 1, one, jnp.where(base == -1, jnp.where(exponent & 1, -one, one), 0 * one))
    return jnp.where(exponent < 0, inverse, power)


def _in_float(function: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Compute 16-bit floats in float32, and round once."""

    def rounded(a: jax.Array, b: jax.Array) -> jax.Array:
        if a.dtype.itemsize > 2:
            return function(a, b)
        return function(a.astype(jnp.float32), b.astype(jnp.float32)).astype(a.dtype)

    return rounded


@_in_float
def _float_remainder(a: jax.Array, b: jax.Array) -> jax.Array:
    rest = jax.lax.rem(*jnp.broadcast_arrays(a, b))
    signed = jnp.where((rest < 0) != (b < 0), rest + b, rest)
    return jnp.where(b == 0, jnp.nan, jnp.where(rest == 0, jnp.copysign(0 * jnp.ones_like(b), b), signed))


@_in_float
def _float_floor_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    rest = jax.lax.rem(*jnp.broadcast_arrays(a, b))
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    down = jnp.floor(quotient)
    down = jnp.where(quotient - down > 0.5, down + 1, down)
    down = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(down), a / b), down)
    return jnp.where(b == 0, a / b, down)


def _complex_abs(x: jax.Array) -> jax.Array:
    """Return infinity where a part is infinite, even if the other is NaN: XLA returns NaN there."""
    return jnp.where(jnp.isinf(x.real) | jnp.isinf(x.imag), jnp.inf, jnp.abs(x))


def _complex_pow(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Multiply repeatedly, as NumPy does, where the exponent is integral and between -100 and 100."""
    base, exponent = jnp.broadcast_arrays(base, exponent)
    is_small = (exponent.imag == 0) & (jnp.abs(exponent.real) < 100)
    whole = jnp.where(is_small, exponent.real, 0).astype(jnp.int32)
    is_whole = is_small & (whole == exponent.real) & (whole != 0) & (base != 0)
    twice = base * base
    product, square, left = jnp.ones_like(base), base, jnp.abs(whole)
    for bit in range(7):
        product = jnp.where((left >> bit) & 1 == 1, product * square, product)
        square = square * square
    power = jnp.where(whole < 0, 1 / product, product)
    for exactly, value in ((1, base), (2, twice), (3, base * twice)):  # without the detour by 1
        power = jnp.where(whole == exactly, value, power)
    return jnp.where(is_whole, power, jnp.power(base, exponent))


_OF_INTEGERS: dict[str, Callable[..., jax.Array]] = {
    "floor_divide": _integer_floor_divide,
    "remainder": _integer_remainder,
    "pow": _integer_pow,
}
_OF_FLOATS: dict[str, Callable[..., jax.Array]] = {
    "floor_divide": _float_floor_divide,
    "remainder": _float_remainder,
    "pow": jnp.power,
}
_OF_COMPLEX: dict[str, Callable[..., jax.Array]] = {"abs": _complex_abs, "pow": _complex_pow}
_SPECIAL = {"i": _OF_INTEGERS, "u": _OF_INTEGERS, "c": _OF_COMPLEX}  # by kind; all others are as floats


def _lower_cuda(
    ctx: mlir.LoweringRuleContext, *operands: Any, operation: str, dtype: str, where_zero: bytes | None
) -> Any:
    low, high = _bits(where_zero or b"")
    rule = jax.ffi.ffi_lowering(_TARGET)
    return rule(
        ctx,
        *operands,
        operation=operation,
        dtype=dtype,
        replaces_zero=where_zero is not None,
        where_zero_low=np.int64(low),
        where_zero_high=np.int64(high),
    )


def _bits(element: bytes) -> tuple[int, int]:
    """Return the bytes of one element as two integers."""
    data = element.ljust(16, b"\0")
    return int.from_bytes(data[:8], "little", signed=True), int.from_bytes(data[8:], "little", signed=True)


def _vmap(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
    """Put the mapped axis first, where it broadcasts as any other leading axis."""
    rank = max(x.ndim - (dim is not None) for x, dim in zip(operands, dims, strict=True))

    def aligned(x: Any, dim: int | None) -> Any:
        if dim is None:
            return x
        x = jnp.moveaxis(x, dim, 0)
        return x.reshape(x.shape[:1] + (1,) * (rank + 1 - x.ndim) + x.shape[1:])

    return elementwise_p.bind(*map(aligned, operands, dims), **params), 0


set_rules(
    elementwise_p,
    lambda operation, **_: f"interop.{operation}",
    _TARGET,
    compiled=_compiled,
    type_of=_type,
    compute_on_host=computed,
    lower_cuda=_lower_cuda,
    vmap=_vmap,
    instead="jax.numpy",
)
