"""Products of JAX arrays: `interop.jax.matmul`, its arguments and what it is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from interop import _core
from interop._arguments import named, shown, type_name
from interop._libraries.jax import keeping
from interop._operations.finish import finish_dtype
from interop._operations.promotion import REAL, accepted_factor, element_of, factor_of, numpy_dtype
from interop.jax._calls import compute, run
from interop.jax._finish import finish
from interop.jax._partition import with_types
from interop.jax._placement import check_operands, name_of, refuse_in_trace, refuse_outputs
from interop.jax._plans import Plan
from interop.jax._product import as_read, multiply

__all__ = ["matmul"]

_FUNCTION = "interop.jax.matmul"

_Tracer = jax.core.Tracer


@named("interop.jax.matmul")
def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    out: object = None,
    dtype: Any = None,
    c: jax.Array | None = None,
    alpha: complex | None = None,
    beta: complex | None = None,
    bias: jax.Array | None = None,
    epilogue: str | None = None,
    aux: object = None,
    scale_a: Any = None,
    scale_b: Any = None,
    precision: str | None = None,
    backend: str | None = None,
    stream: int | None = None,
    execution: str | None = None,
) -> jax.Array:
    """Multiply two JAX arrays, concrete or traced: `interop.matmul` for JAX.

    Parameters
    ----------
    a, b : jax.Array
        On the same devices, or cut over those of one mesh. Shapes and dtypes as for `interop.matmul`. 64-bit dtypes
        stay so, also with JAX's x64 mode off.
    out, aux : None
        Not served: JAX arrays are immutable.
    dtype, c, alpha, beta, bias, epilogue, scale_a, scale_b : optional
        As for `interop.matmul`. What follows the product is JAX's own arithmetic, which XLA fuses into one pass. The
        factors may be JAX arrays of no dimension, too, and another value compiles nothing.
    precision : "tf32" or "tf32x3", optional
        Lets a GPU round float32 operands, as for `interop.matmul`; exact otherwise.
    backend : "tiled" or "cublas", optional
        Which kernels compute it. Arrays on a GPU only.
    stream : int handle, optional
        The product runs on XLA's stream; this stream is made to wait for it. Concrete arrays on a GPU only.
    execution : "cuda" or "cuda:<index>", optional
        Allowed where it changes nothing, since JAX arrays are computed where they are.

    Returns
    -------
    jax.Array
        On the operands' devices, ordered like every JAX result.

    Raises
    ------
    TypeError
        An array of another library, a dtype that is not served, or that does not go with the others'; `out` or `aux`.
    ValueError
        Shapes that do not fit, arrays on other devices than each other's, an option that does not fit the device.
    BufferError
        An array that was deleted or donated.
    NotImplementedError
        Symbolic shapes; an export of a program over several devices; a `jax.shard_map` over some axes of a mesh alone.
    CudaError
        No kernels for JAX in this build; or CUDA or cuBLAS fails. JAX may raise a failure on the device later, as its
        own `JaxRuntimeError`, where the result is used.
    """
    for name, x in (("a", a), ("b", b), ("c", c), ("bias", bias)):
        if not isinstance(x, jax.Array) and not (x is None and name in ("c", "bias")):
            raise TypeError(
                f"{_FUNCTION}: {name} is {type_name(x)}; accepted: an array of JAX (interop.matmul takes those of "
                "every library)"
            )
    if (
        type(a) is type(b)
        and not isinstance(a, _Tracer)
        and a.dtype == b.dtype
        and dtype is c is alpha is beta is bias is epilogue is None
        and out is aux is scale_a is scale_b is None
        and precision is backend is execution is None
        and stream is None
    ):  # the short way of most calls
        return run("interop.matmul", _plain(a.dtype), a, b)
    if stream is not None:
        stream = _core.stream_handle(stream, _FUNCTION)
    answer, operands = operands_of(
        a, b, out, dtype, c, alpha, beta, bias, epilogue, aux, scale_a, scale_b, backend, precision
    )
    result = answer["dtype"]
    compiled = _compiled(tuple(operands), backend, precision, result, epilogue)

    def call() -> jax.Array:
        return _with_wide(operands, result, lambda: compiled(*operands.values()))

    arrays = {name: x for name, x in operands.items() if isinstance(x, jax.Array | _Tracer)}
    if any(isinstance(x, _Tracer) for x in arrays.values()):
        refuse_in_trace("interop.matmul", stream, execution)
        return call()
    return compute("interop.matmul", arrays, stream, execution, call)


def operands_of(
    a: Any,
    b: Any,
    out: object = None,
    dtype: Any = None,
    c: Any = None,
    alpha: Any = None,
    beta: Any = None,
    bias: Any = None,
    epilogue: str | None = None,
    aux: object = None,
    scale_a: Any = None,
    scale_b: Any = None,
    backend: str | None = None,
    precision: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what a product is, and what it is made of, by name, or raise what `matmul` does of these arguments."""
    refuse_outputs("interop.matmul", out=out, aux=aux)
    arrays = {name: x for name, x in (("a", a), ("b", b), ("c", c), ("bias", bias)) if x is not None}
    check_operands("interop.matmul", {name: x.aval for name, x in arrays.items() if isinstance(x, _Tracer)})
    left, right = _dtypes_of(a, b)
    terms: dict[str, Any] = {name: _described(x) for name, x in (("c", c), ("bias", bias)) if x is not None}
    terms |= {"epilogue": epilogue, "backend": backend, "precision": precision}
    answer = _core.abstract_matmul((a.shape, left), (b.shape, right), dtype, library="jax", **terms)
    operands = {"a": a, "b": b}
    if any(x is not None for x in (c, alpha, beta, bias, epilogue, scale_a, scale_b)):
        operands |= _terms(answer["dtype"], a, c, alpha, beta, bias, scale_a, scale_b)
    return answer, operands


def _dtypes_of(a: Any, b: Any) -> tuple[str, str]:
    """Return the operands' dtypes; of a weakly typed one, that in which JAX would compute it beside the other."""
    if a.dtype == b.dtype or not (a.weak_type or b.weak_type):
        return name_of(a.dtype), name_of(b.dtype)
    with keeping(*(x.dtype for x in (a, b) if not x.weak_type)):
        common = name_of(jnp.result_type(a, b))
    first, second = (common if x.weak_type else name_of(x.dtype) for x in (a, b))
    return first, second


def plan_of(a: Any, b: Any) -> Plan | None:
    """Return what computes `matmul(a, b)` of concrete arrays of these dtypes, if a plan does: most calls."""
    return Plan("interop.matmul", ("a", "b"), _plain(a), (0, 1), ()) if a == b else None


def _described(x: Any) -> tuple[tuple[int, ...], str]:
    return x.shape, name_of(x.dtype)


def _with_wide(operands: dict[str, Any], result: str, call: Callable[[], jax.Array]) -> jax.Array:
    """Compute in JAX's x64 mode if needed: outside it, 64-bit values would be narrowed on the way in."""
    if len(operands) == 2 and all(name_of(x.dtype) == result for x in operands.values()):
        return call()
    with keeping(numpy_dtype(result)):
        return call()


def _terms(result: str, a: Any, c: Any, alpha: Any, beta: Any, bias: Any, scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """Return the checked terms besides the operands; factors and scales become 0-d operands."""
    dtype = numpy_dtype(result)
    kind = finish_dtype(dtype)
    terms = {name: x for name, x in (("c", c), ("bias", bias)) if x is not None}
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if factor is None:
            continue
        if isinstance(factor, jax.Array | _Tracer):
            _check_factor(name, factor, dtype)
            terms[name] = factor
        else:
            terms[name] = factor_of("interop.matmul", name, factor, dtype, kind)
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is None:
            continue
        if not name_of(a.dtype).startswith("float8"):
            raise ValueError(
                f"interop.matmul: {name} is given, and the operands are {a.dtype}; accepted: None, or float8 operands "
                "(alpha= scales others)"
            )
        terms[name] = _scale_of(name, scale)
    return terms


def _check_factor(name: str, factor: Any, dtype: Any) -> None:
    """Raise where the array is no factor of a product of that dtype; its value is not known here."""
    if factor.ndim != 0:
        raise ValueError(
            f"interop.matmul: {name} has the shape {factor.shape}; accepted: a scalar, or an array of no dimension"
        )
    kinds = {"b": (), "i": tuple("biu"), "u": tuple("biu"), "c": tuple("biufVc")}.get(dtype.kind, tuple("biufV"))
    fits = getattr(factor.dtype, "kind", None) in kinds  # random keys have none
    if fits and dtype.kind in "iu":
        fits = factor.weak_type or np.can_cast(factor.dtype, dtype)
    if not fits:
        arrays = "" if dtype.kind == "b" else f", or an array of {dtype if dtype.kind in 'iu' else 'such'}"
        raise TypeError(
            f"interop.matmul: {name} is an array of {factor.dtype}, and the product is {dtype}; accepted: "
            f"{accepted_factor(dtype)}{arrays}"
        )


def _scale_of(name: str, scale: Any) -> Any:
    if isinstance(scale, REAL):
        return element_of("interop.matmul", name, scale, np.dtype(np.float32))
    what = f"{shown(scale)} ({type(scale).__name__})"
    if isinstance(scale, jax.Array | _Tracer):
        if scale.dtype == np.float32 and scale.size == 1:
            return scale
        what = f"an array of {scale.dtype} and shape {scale.shape}"
    raise TypeError(f"interop.matmul: {name} is {what}; accepted: a real number, or one float32")


@functools.lru_cache(maxsize=1024)
def _compiled(
    names: tuple[str, ...], backend: str | None, precision: str | None, dtype: str, epilogue: str | None
) -> Callable[..., jax.Array]:
    """Put the primitive, and what follows it, under `jax.jit`: what calls run, compiled once for each shape."""

    def whole(a: jax.Array, b: jax.Array, *rest: jax.Array) -> Any:
        plain = len(names) == 2 and epilogue is None
        product_dtype = dtype if plain else finish_dtype(numpy_dtype(dtype)).name
        a, b = as_read(a, b, product_dtype, dtype)
        rows = a if a.ndim > 1 else a.reshape(1, -1)
        columns = b if b.ndim > 1 else b.reshape(-1, 1)
        product = multiply(rows, columns, product_dtype, backend=backend, precision=precision)
        product = product.squeeze(tuple(axis for axis, x in ((-2, a), (-1, b)) if x.ndim == 1))
        return product if plain else finish(product, dict(zip(names[2:], rest, strict=True)), epilogue, dtype)

    def interop_matmul(*operands: jax.Array) -> Any:
        return with_types("interop.matmul", whole, *operands)

    return jax.jit(interop_matmul)


@functools.lru_cache(maxsize=1024)
def _plain(dtype: Any) -> Callable[..., jax.Array]:
    """Return what computes the plain product of two arrays of that dtype."""
    name = name_of(dtype)
    result = _core.abstract_matmul(((1, 1), name), ((1, 1), name), library="jax")["dtype"]
    return _compiled(("a", "b"), None, None, result, None)
