"""The product of matrices as one JAX primitive, which is bilinear: an FFI call on CUDA, JAX's own on the CPU.

Its rules are for operands of two dimensions and more; what else `matmul` takes is made of them outside.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.ffi
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from interop import _core
from interop._arguments import shown
from interop._libraries.jax import in_own_mode, keeping
from interop._operations.finish import finish_dtype
from interop._operations.promotion import numpy_dtype
from interop.jax._partition import is_local, know_devices, partitioned, vary_alike
from interop.jax._placement import check_operands, name_of, placed_as
from interop.jax._primitive import require_target, run_primitive

__all__ = ["as_read", "matmul_p", "multiply", "refuse_backend_on_host"]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray

matmul_p: Any = Primitive("interop_matmul")

_FUNCTION = "interop.matmul"
_TARGET = "interop_matmul"  # the handler's name, in the compiled half and in XLA
_WORKSPACE_ALIGNMENT = 256  # as cuBLAS wants it; XLA promises less


def multiply(
    a: Any,
    b: Any,
    dtype: str,
    *,
    backend: str | None = None,
    precision: str | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Any:
    """Multiply matrices, or stacks of them, each as it is or transposed; one dtype, or one that kernels read."""
    a, b = vary_alike(a, b)
    return matmul_p.bind(
        a,
        b,
        dtype=dtype,
        backend=backend,
        precision=precision,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )


# ---- what it is ----


def _abstract(a: Any, b: Any, dtype: str, transpose_a: bool, transpose_b: bool) -> dict[str, Any]:
    """Return what a product of that dtype is, or raise what `matmul` does of the operands' shapes and dtypes."""
    left, right = (
        ((*x.shape[:-2], *reversed(x.shape[-2:])) if transpose else x.shape, name_of(x.dtype))
        for x, transpose in ((a, transpose_a), (b, transpose_b))
    )
    answer: dict[str, Any] = _core.abstract_matmul(left, right, dtype)
    return answer


def as_read(
    a: Any, b: Any, product: str, dtype: str, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[Any, Any]:
    """Return the operands of a product as kernels read them: in `dtype`, where they do not read them as they are."""
    if _abstract(a, b, product, transpose_a, transpose_b)["reads"]:
        return a, b  # so are float8 and 16-bit floats for a wider product
    return a.astype(numpy_dtype(dtype)), b.astype(numpy_dtype(dtype))


def _type(
    a: _Aval, b: _Aval, *, backend: str | None, precision: str | None, dtype: str, transpose_a: bool, transpose_b: bool
) -> _Aval:
    check_operands(_FUNCTION, {"a": a, "b": b})
    shape = _abstract(a, b, dtype, transpose_a, transpose_b)["shape"]
    return a.update(shape=shape, dtype=numpy_dtype(dtype), weak_type=False, **placed_as(shape, a, b))


# ---- how it is computed ----


def refuse_backend_on_host(backend: str | None) -> None:
    """Raise ValueError where kernels are named for arrays that JAX computes on the CPU."""
    if backend is not None:
        raise ValueError(
            f"interop.matmul: backend={shown(backend)} is for device arrays; JAX computes these on the CPU; accepted: "
            "None"
        )


def _on_host(
    a: jax.Array,
    b: jax.Array,
    *,
    dtype: str,
    transpose_a: bool,
    transpose_b: bool,
    **_: str | None,  # which kernels, and what they may round
) -> jax.Array:
    result = numpy_dtype(dtype)
    with in_own_mode(result):  # in the user's, jnp.matmul may round float64, or widen weakly typed float32
        x = jnp.swapaxes(a, -1, -2) if transpose_a else a
        y = jnp.swapaxes(b, -1, -2) if transpose_b else b
        if result.kind == "b":
            return jnp.matmul(x.astype(jnp.float32), y.astype(jnp.float32)) != 0  # of ones: no sum of them is lost
        kind = finish_dtype(result)
        x, y = x.astype(kind), y.astype(kind)
        return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST).astype(result)


_lower_jnp: Any = mlir.lower_fun(_on_host, multiple_results=False)


def _lower_host(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    refuse_backend_on_host(params["backend"])
    if not is_local(_FUNCTION, ctx):
        return _lower_partitioned(ctx, a, b, params)
    return _lower_jnp(ctx, a, b, **params)


def _lower_cuda(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: Any) -> Any:
    require_target(_FUNCTION, _TARGET)
    if not is_local(_FUNCTION, ctx):
        return _lower_partitioned(ctx, a, b, params)
    # What cuBLASLt cannot take is said here: what the handler reports, JAX raises where the result is used.
    x, y = ((x.shape, name_of(x.dtype)) for x in ctx.avals_in)
    backend, precision = params["backend"], params["precision"]
    turned = {name: params[name] for name in ("transpose_a", "transpose_b")}
    workspace = _core.matmul_workspace(x, y, params["dtype"], backend, precision, *turned.values())
    if workspace:
        # A result that nobody uses: XLA's own memory, which a CUDA graph of XLA's may go on using.
        spare = jax.core.ShapedArray((workspace + _WORKSPACE_ALIGNMENT,), jnp.uint8)
        ctx = ctx.replace(avals_out=[*ctx.avals_out, spare])
    rule = jax.ffi.ffi_lowering(_TARGET)
    return rule(ctx, a, b, backend=backend or "automatic", precision=precision or "exact", **turned)[:1]


def _lower_partitioned(ctx: mlir.LoweringRuleContext, a: Any, b: Any, params: dict[str, Any]) -> Any:
    x, y = ctx.avals_in
    (result,) = ctx.avals_out
    call = partitioned(multiply, x.shape, y.shape, result.shape, tuple(params.items()))
    return mlir.lower_fun(call, multiple_results=False)(ctx, a, b)


@functools.lru_cache(maxsize=1024)
def _compiled(**params: Any) -> Callable[..., jax.Array]:
    def interop_matmul(a: jax.Array, b: jax.Array) -> Any:
        return multiply(a, b, **params)

    compiled: Callable[..., jax.Array] = jax.jit(interop_matmul)
    return compiled


# ---- derivatives ----


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    for name, x, tangent in zip("ab", primals, tangents, strict=True):
        if type(tangent) is not ad.Zero and x.dtype.itemsize == 1:
            raise TypeError(
                f"{_FUNCTION}: {name} is {name_of(x.dtype)}, and products are not differentiable by float8 operands; "
                f"accepted: jax.lax.stop_gradient({name})"
            )
    return _bilinear_jvp(primals, tangents, **params)


def _gradient_of_a(grad: Any, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, **params: Any) -> Any:
    if transpose_a:
        return _sum_of_products(b, grad, transpose_b, True, a.aval, **params)
    return _sum_of_products(grad, b, False, not transpose_b, a.aval, **params)


def _gradient_of_b(grad: Any, a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, **params: Any) -> Any:
    if transpose_b:
        return _sum_of_products(grad, a, True, transpose_a, b.aval, **params)
    return _sum_of_products(a, grad, not transpose_a, False, b.aval, **params)


def _sum_of_products(
    x: Any,
    y: Any,
    transpose_x: bool,
    transpose_y: bool,
    operand: _Aval,
    *,
    dtype: str,
    backend: str | None,
    precision: str | None,
) -> Any:
    """Multiply, and add up the stacks over which an operand was broadcast, as its gradient has it."""
    shape, batch = operand.shape, operand.shape[:-2]
    stacks = jnp.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    adds = math.prod(stacks) != math.prod(batch)
    if adds and transpose_x and not transpose_y and math.prod(batch) == 1 and x.shape[:-2] == y.shape[:-2]:
        # One product is the sum over all stacks: where they lie, all columns follow each other.
        x, y = (z.reshape(math.prod(z.shape[:-1]), z.shape[-1]) for z in (x, y))
        adds = False
    computed = numpy_dtype(dtype)
    total = finish_dtype(computed) if adds else computed  # narrow floats are rounded once, after the sum
    with keeping(computed):
        x, y = as_read(x, y, total.name, dtype, transpose_x, transpose_y)
        result = multiply(
            x, y, total.name, backend=backend, precision=precision, transpose_a=transpose_x, transpose_b=transpose_y
        )
        if adds:
            sizes = (0,) * (len(stacks) - len(batch)) + batch  # those of stacks that the operand has; 0: not
            result = result.sum(tuple(i for i, size in enumerate(stacks) if size != sizes[i]), dtype=total)
        return result.reshape(shape).astype(operand.dtype)


# ---- batches ----


def _vmap(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, int]:
    """Put the mapped axis first, where it broadcasts as any other leading axis."""
    rank = max(x.ndim - (dim is not None) for x, dim in zip(operands, dims, strict=True))

    def aligned(x: Any, dim: Any) -> Any:
        if dim is None:
            return x
        x = jnp.moveaxis(x, dim, 0)
        return x.reshape(x.shape[:1] + (1,) * (rank + 1 - x.ndim) + x.shape[1:])

    return multiply(*map(aligned, operands, dims), **params), 0


matmul_p.def_impl(lambda *operands, **params: run_primitive(_FUNCTION, _compiled(**params), *operands))
matmul_p.def_abstract_eval(_type)
mlir.register_lowering(matmul_p, _lower_host, platform="cpu")
mlir.register_lowering(matmul_p, _lower_cuda, platform="cuda")
ad.defbilinear(matmul_p, _gradient_of_a, _gradient_of_b)
_bilinear_jvp = ad.primitive_jvps[matmul_p]
ad.primitive_jvps[matmul_p] = _jvp
batching.primitive_batchers[matmul_p] = _vmap
know_devices(matmul_p)
