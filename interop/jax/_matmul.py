"""Products of JAX arrays: `interop.jax.matmul`, its primitive, and what follows the product."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.ffi
import jax.numpy as jnp
import jax.scipy.special
import jax.sharding
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from interop import _core
from interop._arguments import named, shown, type_name
from interop._libraries.jax import is_wide, keeping
from interop._operations.finish import Arithmetic, finish_dtype, gelu, gelu_tanh
from interop._operations.promotion import REAL, accepted_factor, element_of, factor_of, numpy_dtype
from interop.jax._calls import compute, run
from interop.jax._placement import check_operands, name_of, placed_as, refuse_in_trace, refuse_outputs
from interop.jax._primitive import set_rules

__all__ = ["matmul"]

_FUNCTION = "interop.jax.matmul"

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray
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
        On one device. Shapes and dtypes as for `interop.matmul`. 64-bit dtypes stay so, also with JAX's x64 mode off.
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
        On the operands' device, ordered like every JAX result.

    Raises
    ------
    TypeError
        An array of another library, a dtype that is not served, or that does not go with the others'; `out` or `aux`.
    ValueError
        Shapes that do not fit, arrays on two or on several devices, an option that does not fit the device.
    BufferError
        An array that was deleted or donated.
    NotImplementedError
        `jax.vmap`, `jax.grad` and their kin, for now.
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
        return _product(a, b)
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


def matmul_of_arrays(a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute `matmul(a, b)` of concrete arrays: most calls of `interop.matmul`, in fewer steps."""
    return _product(a, b) if a.dtype == b.dtype else matmul(a, b)


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    return run("interop.matmul", _plain(a.dtype), a, b)


def _described(x: Any) -> tuple[tuple[int, ...], str]:
    return x.shape, name_of(x.dtype)


def _abstract(a: Any, b: Any, dtype: str) -> dict[str, Any]:
    """Return what a product of that dtype is, or raise what `matmul` does of the operands' shapes and dtypes."""
    return _core.abstract_matmul(_described(a), _described(b), dtype)


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

_EPILOGUES: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: jnp.maximum(x, 0),
    "gelu": functools.partial(gelu, _ARITHMETIC),  # but for the tail of XLA's erfc, as right as for host arrays
    "gelu_tanh": functools.partial(gelu_tanh, _ARITHMETIC),
}


def _finish(product: Any, terms: dict[str, Any], epilogue: str | None, result: str) -> Any:
    """Do what follows the product."""
    kind = finish_dtype(numpy_dtype(result))
    total = product
    for name in ("scale_a", "scale_b"):
        if name in terms:
            total = total * terms[name].reshape(()).astype(kind)
    if "alpha" in terms:
        alpha = terms["alpha"].astype(kind)
        total = jnp.where(alpha == 0, jnp.zeros_like(total), alpha * total)
    if "c" in terms:
        added = terms["c"].astype(kind)
        if "beta" in terms:
            beta = terms["beta"].astype(kind)
            added = jnp.where(beta == 0, jnp.zeros_like(added), beta * added)
        total = total + added
    if "bias" in terms:
        total = total + terms["bias"].astype(kind)
    if epilogue is None:
        return total.astype(numpy_dtype(result))
    with keeping(total.dtype):  # for the constants beside it
        return _EPILOGUES[epilogue](total).astype(numpy_dtype(result))


# ---- the primitive and its rules ----

matmul_p: Any = Primitive("interop_matmul")

_TARGET = "interop_matmul"  # the handler's name, in the compiled half and in XLA
_WORKSPACE_ALIGNMENT = 256  # as cuBLAS wants it; XLA promises less


@functools.lru_cache(maxsize=1024)
def _compiled(
    names: tuple[str, ...], backend: str | None, precision: str | None, dtype: str, epilogue: str | None
) -> Callable[..., jax.Array]:
    """Put the primitive, and what follows it, under `jax.jit`: what calls run, compiled once for each shape."""

    def interop_matmul(a: jax.Array, b: jax.Array, *rest: jax.Array) -> Any:
        plain = len(names) == 2 and epilogue is None
        product_dtype = dtype if plain else finish_dtype(numpy_dtype(dtype)).name
        if not _abstract(a, b, product_dtype)["reads"]:
            # float8 and 16-bit floats are read as they are for the wider dtype too; all else is converted.
            a, b = (x.astype(numpy_dtype(dtype)) for x in (a, b))
        product = matmul_p.bind(a, b, backend=backend, precision=precision, dtype=product_dtype)
        return product if plain else _finish(product, dict(zip(names[2:], rest, strict=True)), epilogue, dtype)

    return jax.jit(interop_matmul)


@functools.lru_cache(maxsize=1024)
def _plain(dtype: Any) -> Callable[..., jax.Array]:
    """Return what computes the plain product of two arrays of that dtype."""
    name = name_of(dtype)
    result = _core.abstract_matmul(((1, 1), name), ((1, 1), name), library="jax")["dtype"]
    return _compiled(("a", "b"), None, None, result, None)


def _compiled_alone(backend: str | None, precision: str | None, dtype: str) -> Callable[..., jax.Array]:
    return _compiled(("a", "b"), backend, precision, dtype, None)


def _matmul_type(a: _Aval, b: _Aval, *, backend: str | None, precision: str | None, dtype: str) -> _Aval:
    check_operands("interop.matmul", {"a": a, "b": b})
    shape = _abstract(a, b, dtype)["shape"]
    return a.update(shape=shape, dtype=numpy_dtype(dtype), weak_type=False, **placed_as(shape, a, b))


def refuse_backend_on_host(backend: str | None) -> None:
    """Raise ValueError where kernels are named for arrays that JAX computes on the CPU."""
    if backend is not None:
        raise ValueError(
            f"interop.matmul: backend={shown(backend)} is for device arrays; JAX computes these on the CPU; accepted: "
            "None"
        )


def _matmul_on_host(a: jax.Array, b: jax.Array, *, backend: str | None, precision: str | None, dtype: str) -> jax.Array:
    refuse_backend_on_host(backend)
    result = numpy_dtype(dtype)
    # Not the user's x64 mode: with it off, jnp.matmul rounds float64; with it on, it widens weakly typed float32.
    with jax.enable_x64(is_wide(result)):
        if result.kind == "b":
            return jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32)) != 0  # of ones: no sum of them is lost
        kind = finish_dtype(result)
        x, y = a.astype(kind), b.astype(kind)
        return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST).astype(result)


def _lower_cuda(
    ctx: mlir.LoweringRuleContext, a: Any, b: Any, *, backend: str | None, precision: str | None, dtype: str
) -> Any:
    # What cuBLASLt cannot take is said here: what the handler reports, JAX raises where the result is used.
    x, y = ctx.avals_in
    workspace = _core.matmul_workspace(_described(x), _described(y), dtype, backend, precision)
    if workspace:
        # A result that nobody uses: XLA's own memory, which a CUDA graph of XLA's may go on using.
        spare = jax.core.ShapedArray((workspace + _WORKSPACE_ALIGNMENT,), jnp.uint8)
        ctx = ctx.replace(avals_out=[*ctx.avals_out, spare])
    rule = jax.ffi.ffi_lowering(_TARGET)
    return rule(ctx, a, b, backend=backend or "automatic", precision=precision or "exact")[:1]


def _no_vmap(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "interop.matmul: jax.vmap is not supported yet; pass the whole stack: leading dimensions broadcast as in NumPy"
    )


set_rules(
    matmul_p,
    lambda **_: "interop.matmul",
    _TARGET,
    compiled=_compiled_alone,
    type_of=_matmul_type,
    compute_on_host=_matmul_on_host,
    lower_cuda=_lower_cuda,
    vmap=_no_vmap,
    instead="jnp.matmul",
)
