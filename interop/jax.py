"""interop's operations as JAX primitives: for concrete arrays, and for use under `jax.jit`.

`interop.matmul` comes here when its arrays are JAX arrays. On CUDA the product is an FFI call: our kernels on XLA's
stream, in XLA's memory. On the CPU it is JAX's own operation. `import interop` does not load this module or JAX, and
loading it starts no backend.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.extend.core
import jax.ffi
import jax.numpy as jnp
import jax.sharding
from jax.interpreters import ad, batching, mlir

from interop import CudaError, _core

__all__ = ["matmul"]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray
_Tracer = jax.core.Tracer


def matmul(
    a: jax.Array,
    b: jax.Array,
    *,
    out: object = None,
    stream: int | None = None,
    backend: str | None = None,
    precision: str | None = None,
    execution: str | None = None,
) -> jax.Array:
    """Multiply two JAX arrays, concrete or traced: `interop.matmul` for JAX.

    Parameters
    ----------
    a, b : jax.Array, both float32 or both float64
        On one device. Shapes follow `numpy.matmul`. float64 stays float64, also with JAX's x64 mode off.
    out : None
        Not served: JAX arrays are immutable.
    stream : int handle, optional
        The product runs on XLA's stream; this stream is made to wait for it. Concrete arrays on a GPU only.
    backend : "tiled" or "cublas", optional
        Which kernels compute it. Arrays on a GPU only.
    precision : "tf32", optional
        Lets a GPU round float32 operands to TF32; exact otherwise.
    execution : "cuda" or "cuda:<index>", optional
        Allowed where it changes nothing, since JAX arrays are computed where they are.

    Returns
    -------
    jax.Array
        On the operands' device, ordered like every JAX result.

    Raises
    ------
    TypeError
        A dtype that is not served, or `out`.
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
    if out is not None:
        raise TypeError("interop.matmul: out= cannot be used with JAX arrays, which are immutable; use the result")
    if isinstance(a, _Tracer) or isinstance(b, _Tracer):
        _refuse_in_trace(stream, execution)
        traced: jax.Array = matmul_p.bind(a, b, backend=backend, precision=precision)
        return traced

    a_sharding, b_sharding = a.sharding, b.sharding
    if a_sharding is not b_sharding and a_sharding.device_set != b_sharding.device_set:
        _refuse_devices(a, b)
    if stream is not None or execution is not None:
        _check_placement(a, stream, execution)
    try:
        c = _compiled(backend, precision)(a, b)
    except (RuntimeError, ValueError) as error:
        _raise_as_ours(error, a, b)
    if stream is not None:
        if isinstance(c, _Tracer):  # constants of a function that is being traced
            _refuse_in_trace(stream, execution)
        _make_wait(stream, c)
    return c


# ---- the primitive and its rules ----

matmul_p: Any = jax.extend.core.Primitive("interop_matmul")

_PartitionSpec: Any = jax.sharding.PartitionSpec
_TARGET = "interop_matmul"  # the handler's name, in the compiled half and in XLA
_WORKSPACE_ALIGNMENT = 256  # as cuBLAS wants it; XLA promises less
_targets = _core.jax_ffi_targets()
for _name, _handler in _targets.items():
    jax.ffi.register_ffi_target(_name, _handler, platform="CUDA", api_version=1)


@functools.cache
def _compiled(backend: str | None, precision: str | None) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Put the primitive under `jax.jit`: what calls with concrete arrays run, compiled once for each shape."""

    def interop_matmul(a: jax.Array, b: jax.Array) -> Any:
        return matmul_p.bind(a, b, backend=backend, precision=precision)

    return jax.jit(interop_matmul)


def _matmul_impl(a: jax.Array, b: jax.Array, *, backend: str | None, precision: str | None) -> jax.Array:
    with jax.disable_jit(False):  # else, under jax.disable_jit, this would call itself
        return _compiled(backend, precision)(a, b)


def _matmul_type(a: _Aval, b: _Aval, *, backend: str | None, precision: str | None) -> _Aval:
    for name, x in (("a", a), ("b", b)):
        if not all(isinstance(size, int) for size in x.shape):
            raise NotImplementedError(f"interop.matmul: {name} has the symbolic shape {x.shape}, not supported yet")
        if x.memory_space.name != "Device":
            raise ValueError(
                f"interop.matmul: {name} is in JAX's host memory; move it first, with "
                f"jax.device_put({name}, {name}.sharding.with_memory_kind('device'))"
            )
    shape = _core.matmul_result(a.shape, str(a.dtype), b.shape, str(b.dtype))
    mesh = (b if a.sharding.mesh.empty else a).sharding.mesh
    whole = jax.sharding.NamedSharding(mesh, _PartitionSpec(*(None,) * len(shape)))
    return a.update(shape=shape, weak_type=False, sharding=whole, **_varying(a, b))


def _varying(a: _Aval, b: _Aval) -> dict[str, Any]:
    """Say over which mesh axes of a `jax.shard_map` the product may differ: those of either operand."""
    if hasattr(a, "vma"):  # JAX 0.8 and 0.9
        return {"vma": a.vma | b.vma}
    axes = a.manual_axis_type
    return {"manual_axis_type": axes.update(varying=axes.varying | b.manual_axis_type.varying)}


def _matmul_on_host(a: jax.Array, b: jax.Array, *, backend: str | None, precision: str | None) -> jax.Array:
    if backend is not None:
        raise ValueError(f"interop.matmul: backend={backend!r} is for device arrays; JAX computes these on the CPU")
    # Not the user's x64 mode: with it off, jnp.matmul rounds float64; with it on, it widens weakly typed float32.
    with jax.enable_x64(a.dtype == jnp.float64):
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


_lower_jnp: Any = mlir.lower_fun(_matmul_on_host, multiple_results=False)


def _lower_host(ctx: mlir.LoweringRuleContext, a: Any, b: Any, **params: str | None) -> Any:
    _require_one_device(ctx)
    return _lower_jnp(ctx, a, b, **params)


def _lower_cuda(ctx: mlir.LoweringRuleContext, a: Any, b: Any, *, backend: str | None, precision: str | None) -> Any:
    _require_one_device(ctx)
    if _TARGET not in _targets:
        raise CudaError(
            "interop.matmul: this build of interop has no CUDA kernels for JAX: it was built without CUDA or without "
            "XLA's headers (jaxlib==0.8.0); `interop info` says which"
        )
    x, y = ctx.avals_in
    nothing = 0 in x.shape or 0 in y.shape  # which needs no backend
    if (
        backend == "cublas"
        and not nothing
        and _core.matmul_batch_ndim(x.shape, str(x.dtype), y.shape, str(y.dtype)) > 1
    ):
        # Said here, at the call: what the handler reports, JAX raises where the result is used.
        raise ValueError(
            'interop.matmul: backend="cublas" cannot take this product: its batch does not collapse to one dimension; '
            'use backend="tiled", or leave the choice to interop'
        )
    _core.find_cublas()
    workspace = _core.matmul_workspace(x.shape, str(x.dtype), y.shape, str(y.dtype), backend, precision)
    if workspace:
        # A result that nobody uses: XLA's own memory, which a CUDA graph of XLA's may go on using.
        spare = jax.core.ShapedArray((workspace + _WORKSPACE_ALIGNMENT,), jnp.uint8)
        ctx = ctx.replace(avals_out=[*ctx.avals_out, spare])
    rule = jax.ffi.ffi_lowering(_TARGET)
    return rule(ctx, a, b, backend=backend or "automatic", allow_tf32=precision == "tf32")[:1]


def _no_vmap(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "interop.matmul: jax.vmap is not supported yet; pass the whole stack: leading dimensions broadcast as in NumPy"
    )


def _no_derivative(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError(
        "interop.matmul: derivatives (jax.grad, jax.jvp, jax.vjp, ...) are not supported yet; wrap the call in "
        "jax.custom_vjp, or use jnp.matmul"
    )


matmul_p.def_impl(_matmul_impl)
matmul_p.def_abstract_eval(_matmul_type)
mlir.register_lowering(matmul_p, _lower_host, platform="cpu")
mlir.register_lowering(matmul_p, _lower_cuda, platform="cuda")
batching.primitive_batchers[matmul_p] = _no_vmap
ad.primitive_jvps[matmul_p] = _no_derivative
ad.primitive_transposes[matmul_p] = _no_derivative


# ---- one device, and what to say where it is not ----

_SHARDING_REMEDY = (
    "arrays on several devices are not supported yet: call it inside jax.shard_map, on each device's own block, "
    "or put both arrays on one device with jax.device_put"
)


def _require_one_device(ctx: mlir.LoweringRuleContext) -> None:
    """Refuse a program over several devices, where XLA would gather the operands; inside shard_map all is well."""
    context: Any = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        count = math.prod(size for axis, size in context.mesh.shape.items() if axis not in context.manual_axes)
    else:
        count = getattr(context, "num_devices", 1)
    if count != 1:
        raise ValueError(f"interop.matmul: this jax.jit runs on {count} devices; {_SHARDING_REMEDY}")


def _refuse_devices(a: jax.Array, b: jax.Array) -> NoReturn:
    for name, x in (("a", a), ("b", b)):
        if (count := len(x.sharding.device_set)) != 1:
            raise ValueError(f"interop.matmul: {name} is on {count} devices, {x.sharding}; {_SHARDING_REMEDY}")
    raise ValueError(
        f"interop.matmul: a is on {_device(a)} and b is on {_device(b)}; put both on one device with jax.device_put"
    )


def _device(x: jax.Array) -> Any:
    (device,) = x.sharding.device_set
    return device


def _refuse_in_trace(stream: int | None, execution: str | None) -> None:
    if stream is not None:
        raise ValueError("interop.matmul: stream= cannot be used inside jax.jit: XLA chooses the stream")
    if execution is not None:
        raise ValueError("interop.matmul: execution= cannot be used inside jax.jit: JAX chooses the device")


def _check_placement(a: jax.Array, stream: int | None, execution: str | None) -> None:
    device: Any = next(iter(a.sharding.device_set))  # of several, any one: they are refused later
    on_gpu = device.platform == "gpu"
    if execution is not None and not (on_gpu and execution in ("cuda", f"cuda:{device.local_hardware_id}")):
        raise ValueError(
            f"interop.matmul: execution={execution!r}, but a and b are JAX arrays on {device}, which JAX computes "
            "where they are; move them first, with jax.device_put(a, jax.devices('cuda')[0])"
        )
    if stream is not None and not on_gpu:
        raise ValueError(f"interop.matmul: stream= is for device arrays, but a and b are JAX arrays on {device}")


def _make_wait(stream: int, c: Any) -> None:
    c.__dlpack__(stream=stream)  # asked for its effect only: XLA makes the stream wait for c


def _raise_as_ours(error: RuntimeError | ValueError, a: jax.Array, b: jax.Array) -> NoReturn:
    """Raise JAX's error as what it means: arrays on several devices, one that is gone, our handler's report to XLA."""
    if len(a.sharding.device_set) != 1:
        _refuse_devices(a, b)
    for name, x in (("a", a), ("b", b)):
        if x.is_deleted():
            raise BufferError(
                f"interop.matmul: {name}: the JAX array has been deleted or donated; JAX says: {error}"
            ) from error
    code, found, message = str(error).partition("interop.matmul: ")
    if found and code.startswith("INVALID_ARGUMENT"):
        raise ValueError(found + message) from error
    if found and code.startswith("INTERNAL"):
        raise CudaError(found + message) from error
    raise error
