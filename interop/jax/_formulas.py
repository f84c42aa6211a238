"""The elementwise operations by JAX's own, with this package's rules and derivatives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interop._libraries.jax import in_own_mode
from interop._operations.promotion import numpy_dtype
from interop._operations.table import COMPARISONS

__all__ = ["computed", "converted", "imag", "real"]


def computed(*operands: jax.Array, operation: str, dtype: str, where_zero: bytes | None) -> jax.Array:
    """Compute an operation by JAX's own, with this package's rules."""
    kind = numpy_dtype(dtype)
    with in_own_mode(kind, *(x.dtype for x in operands)):
        if operation in COMPARISONS and kind == np.uint64 and any(x.dtype.kind == "i" for x in operands):
            return _compare_with_signs(operation, *operands)
        x, *rest = [converted(x, kind) for x in operands]
        if where_zero is not None:
            return _divide_but_by_zero(x, rest[0], np.frombuffer(where_zero, kind)[0])
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


def _divide_but_by_zero(a: jax.Array, b: jax.Array, where_zero: Any) -> jax.Array:
    # No zero is divided by, so that the derivatives are zero there, not NaN.
    quotient = jnp.divide(a, jnp.where(b == 0, jnp.ones_like(b), b))
    return jnp.where(b == 0, where_zero, quotient)


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
def _float_floor_divide(a: jax.Array, b: jax.Array) -> jax.Array:
    return _rounded_quotient(*jnp.broadcast_arrays(a, b))


def _rounded_quotient(a: jax.Array, b: jax.Array) -> jax.Array:
    a, b = jax.lax.stop_gradient((a, b))  # it is constant in steps, also where XLA would divide by zero
    rest = jax.lax.rem(a, b)
    quotient = (a - rest) / b
    quotient = jnp.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    down = jnp.floor(quotient)
    down = jnp.where(quotient - down > 0.5, down + 1, down)
    down = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(down), a / b), down)
    return jnp.where(b == 0, a / b, down)


@_in_float
def _float_remainder(a: jax.Array, b: jax.Array) -> jax.Array:
    return _rest(*jnp.broadcast_arrays(a, b))


@jax.custom_jvp
def _rest(a: jax.Array, b: jax.Array) -> jax.Array:
    rest = jax.lax.rem(a, b)
    signed = jnp.where((rest < 0) != (b < 0), rest + b, rest)
    return jnp.where(b == 0, jnp.nan, jnp.where(rest == 0, jnp.copysign(0 * jnp.ones_like(b), b), signed))


def _rest_jvp(operands: tuple[jax.Array, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """Derive a - b floor(a / b), of which the floor is constant."""
    a, b = operands
    by_a, by_b = (None if _is_zero(x) else x for x in tangents)
    with in_own_mode(a.dtype):
        return _rest(a, b), _sum(a, by_a, None if by_b is None else -_rounded_quotient(a, b) * by_b)


def _pow(base: jax.Array, exponent: jax.Array) -> jax.Array:
    return _power(*jnp.broadcast_arrays(base, exponent))


@jax.custom_jvp
def _power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    return _complex_pow(base, exponent) if base.dtype.kind == "c" else jnp.power(base, exponent)


def _power_jvp(operands: tuple[jax.Array, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    """Derive it by the base and by the exponent, of any order: x**0 is 1 also for 0 and NaN, and 0**y is 0."""
    base, exponent = operands
    by_base, by_exponent = (None if _is_zero(x) else x for x in tangents)
    with in_own_mode(base.dtype):
        power = _power(base, exponent)
        if by_base is not None:
            is_one = (exponent == 0) & ((base == 0) | (base != base))
            less = jnp.where(is_one, jnp.zeros_like(exponent), exponent - 1)
            by_base = exponent * _power(base, less) * by_base
        if by_exponent is not None:
            is_zero = (base == 0) & (exponent.real >= 0)
            by_exponent = jnp.log(jnp.where(is_zero, jnp.ones_like(base), base)) * power * by_exponent
        return power, _sum(power, by_base, by_exponent)


# Only known zeros are told from numbers: the other derivative may be infinite, or NaN.
_rest.defjvp(_rest_jvp, symbolic_zeros=True)
_power.defjvp(_power_jvp, symbolic_zeros=True)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero)


def _sum(like: jax.Array, *terms: jax.Array | None) -> jax.Array:
    return sum((x for x in terms if x is not None), jnp.zeros_like(like))


def _float_abs(x: jax.Array) -> jax.Array:
    """Return the absolute value, whose derivative at zero is zero: JAX's is 1."""
    return jnp.where(x == 0, jnp.zeros_like(x), jnp.abs(x))


@jax.custom_jvp
def _complex_abs(x: jax.Array) -> jax.Array:
    """Return infinity where a part is infinite, even if the other is NaN: XLA returns NaN there."""
    return jnp.where(jnp.isinf(x.real) | jnp.isinf(x.imag), jnp.inf, jnp.abs(x))


@_complex_abs.defjvp
def _complex_abs_jvp(operands: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Derive it as JAX does, whose own rule is not for complex128 without the x64 mode."""
    (x,), (by_x,) = operands, tangents
    with in_own_mode(x.dtype):
        size = _complex_abs(x)
        sign = x / jnp.where(size == 0, jnp.ones_like(size), size)
        return size, _converted_to_real(sign.conj() * by_x)


@jax.custom_jvp
def real(z: jax.Array) -> jax.Array:
    """Return the real part."""
    return z.real


@jax.custom_jvp
def imag(z: jax.Array) -> jax.Array:
    """Return the imaginary part."""
    return z.imag


@real.defjvp
def _real_jvp(operands: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return real(*operands), _converted_to_real(*tangents)


@imag.defjvp
def _imag_jvp(operands: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    with in_own_mode(operands[0].dtype):
        return imag(*operands), _converted_to_real(-1j * tangents[0])


def _converted_to_real(z: jax.Array) -> jax.Array:
    """Return the real part by what JAX can transpose also for complex128 without the x64 mode, unlike its own real."""
    with in_own_mode(z.dtype), warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        return jax.lax.convert_element_type(z, np.finfo(z.dtype).dtype)


def _complex_pow(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """Multiply repeatedly, as NumPy does, where the exponent is integral and between -100 and 100."""
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


def _of_two(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the minimum, or maximum, with JAX's derivative, whose own rule narrows what is wide in the user's mode."""
    chosen = jax.custom_jvp(getattr(jnp, name))

    @chosen.defjvp
    def jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
        a, b = primals
        with in_own_mode(a.dtype):
            result = chosen(a, b)
            tie = jnp.where(a == b, 0.5, 1).astype(a.dtype)
            shares = [jnp.where(x == result, tie, jnp.zeros_like(tie)) for x in primals]
            return result, shares[0] * tangents[0] + shares[1] * tangents[1]

    return lambda a, b: chosen(*jnp.broadcast_arrays(a, b))


_OF_INTEGERS: dict[str, Callable[..., jax.Array]] = {
    "floor_divide": _integer_floor_divide,
    "remainder": _integer_remainder,
    "pow": _integer_pow,
}
_OF_FLOATS: dict[str, Callable[..., jax.Array]] = {
    "minimum": _of_two("minimum"),
    "maximum": _of_two("maximum"),
    "floor_divide": _float_floor_divide,
    "remainder": _float_remainder,
    "pow": _in_float(_pow),
    "abs": _float_abs,
}
_OF_COMPLEX: dict[str, Callable[..., jax.Array]] = {"abs": _complex_abs, "pow": _pow}
_SPECIAL = {"i": _OF_INTEGERS, "u": _OF_INTEGERS, "c": _OF_COMPLEX}  # by kind; all others are as floats
