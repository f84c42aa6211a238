"""What follows the product of JAX arrays: terms, factors and epilogues, with their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from interop._libraries.jax import keeping
from interop._operations.finish import Arithmetic, finish_dtype, gelu, gelu_tanh
from interop._operations.promotion import numpy_dtype
from interop.jax._partition import vary_alike
from interop.jax._placement import placed_as

__all__ = ["finish"]

# JAX cannot differentiate what follows: a factor of 0 hides the term that its derivative is, and the rounding errors
# that gelu gives back are found in bits.

# ---- factors ----


scale_p: Any = Primitive("interop_scale")


def _scaled(factor: Any, x: Any) -> Any:
    """Return a term times its factor; 0 takes what is no number, too."""
    factor, x = vary_alike(jnp.broadcast_to(factor, x.shape), x)
    return scale_p.bind(factor, x)


def _scale(factor: Any, x: Any) -> Any:
    with keeping(x.dtype):
        return jnp.where(factor == 0, jnp.zeros_like(x), factor * x)


def _scale_batches(operands: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, int]:
    (size,) = {x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None}

    def stacked(x: Any, dim: Any) -> Any:
        return jnp.broadcast_to(x, (size, *x.shape)) if dim is None else jnp.moveaxis(x, dim, 0)

    return _scaled(*map(stacked, operands, dims)), 0


scale_p.def_impl(_scale)
scale_p.def_abstract_eval(lambda factor, x: x.update(weak_type=False, **placed_as(x.shape, x, factor)))
mlir.register_lowering(scale_p, mlir.lower_fun(_scale, multiple_results=False))
# It is linear in either, at 0 as elsewhere, whatever the comparison hides.
ad.defbilinear(scale_p, lambda grad, factor, x: _scaled(grad, x), lambda grad, factor, x: _scaled(factor, grad))
batching.primitive_batchers[scale_p] = _scale_batches

# ---- epilogues ----


def _exact(x: Any, y: Any) -> tuple[Any, Any]:
    """Return a product, and its rounding error, with halves of the numbers' bits.

    The product of the high halves is exact, so it makes no difference whether XLA contracts it with a sum.
    """
    integer, mask = (jnp.uint32, 2**32 - 2**12) if x.dtype == np.float32 else (jnp.uint64, 2**64 - 2**27)

    def halves(z: Any) -> tuple[Any, Any]:
        bits = jax.lax.bitcast_convert_type(z, integer) & integer(mask)
        high = jax.lax.bitcast_convert_type(bits, z.dtype)
        return high, z - high

    (a, b), (c, d) = halves(x), halves(jnp.asarray(y, x.dtype))
    high, rest = a * c, (a * d + b * c) + b * d
    product = high + rest
    return product, (high - product) + rest


_ARITHMETIC = Arithmetic(jnp, _exact, lambda x, y: _exact(-x, y), jax.scipy.special.erfc)

_FLAT = 40.0  # beyond it, either way, the derivatives of gelu are 1 or 0 in every dtype, and no power of x overflows


def _with_slope(function: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that has that derivative."""
    differentiable = jax.custom_jvp(function)

    @differentiable.defjvp
    def jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        (x,), (tangent,) = primals, tangents
        return differentiable(x), slope(jnp.clip(x, -_FLAT, _FLAT)) * tangent

    return differentiable


def _slope_of_gelu(x: Any) -> Any:
    return 0.5 * jax.scipy.special.erfc(-(0.5**0.5) * x) + x * jnp.exp(-0.5 * x * x) * (2 * np.pi) ** -0.5


def _slope_of_gelu_tanh(x: Any) -> Any:
    linear = (8 / np.pi) ** 0.5
    t = linear * (x + 0.044715 * x**3)
    is_positive = t > 0
    power = jnp.exp(jnp.where(is_positive, -t, t))  # so that neither sum below, nor a derivative of it, cancels
    part = jnp.where(is_positive, 1, power) / (1 + power)
    return part + x * power / (1 + power) ** 2 * linear * (1 + 3 * 0.044715 * x * x)


_EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,  # whose derivative at 0 is 0
    # As right as for host arrays, but for the tail of XLA's erfc.
    "gelu": _with_slope(lambda x: gelu(_ARITHMETIC, x), _slope_of_gelu),
    "gelu_tanh": _with_slope(lambda x: gelu_tanh(_ARITHMETIC, x), _slope_of_gelu_tanh),
}


def finish(product: Any, terms: dict[str, Any], epilogue: str | None, result: str) -> Any:
    """Do what follows the product."""
    kind = finish_dtype(numpy_dtype(result))
    total = product
    for name in ("scale_a", "scale_b"):
        if name in terms:
            total = total * terms[name].reshape(()).astype(kind)
    if "alpha" in terms:
        total = _scaled(terms["alpha"].astype(kind), total)
    if "c" in terms:
        added = terms["c"].astype(kind)
        if "beta" in terms:
            added = _scaled(terms["beta"].astype(kind), added)
        total = total + added
    if "bias" in terms:
        total = total + terms["bias"].astype(kind)
    if epilogue is None:
        return total.astype(numpy_dtype(result))
    with keeping(total.dtype):  # for the constants beside it
        return _EPILOGUES[epilogue](total).astype(numpy_dtype(result))
