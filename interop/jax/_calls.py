"""What all primitives share: their rules, checks of operands and devices, JAX's errors as ours, and refusals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.ffi
import jax.sharding
from jax.interpreters import ad, batching, mlir

from interop import _core
from interop._arguments import shown
from interop._core import CudaError
from interop._libraries.jax import check_special

__all__ = [
    "check_concrete",
    "check_operands",
    "check_placement",
    "compute",
    "make_wait",
    "name_of",
    "placed_as",
    "raise_as_ours",
    "refuse_devices",
    "refuse_in_trace",
    "refuse_outputs",
    "run",
    "set_rules",
]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray
_Tracer = jax.core.Tracer
_PartitionSpec: Any = jax.sharding.PartitionSpec

_targets = _core.build_info()["jax_ffi"]
for _name, _handler in _targets.items():
    jax.ffi.register_ffi_target(_name, _handler, platform="CUDA", api_version=1)


@functools.cache
def name_of(dtype: Any) -> str:
    """Return a dtype's name, which NumPy makes slowly, once for each."""
    return str(dtype)


def _require_target(function: str, target: str) -> None:
    """Raise if this build has no handler of that name."""
    if target not in _targets:
        raise CudaError(
            f"{function}: this build of interop has no CUDA kernels for JAX: it was built without CUDA or without "
            "XLA's headers (jaxlib==0.8.0); `interop info` says which"
        )


def check_operands(function: str, operands: dict[str, _Aval]) -> None:
    """Refuse traced operands whose shape or memory no kernel could take."""
    for name, x in operands.items():
        if not all(isinstance(size, int) for size in x.shape):
            raise NotImplementedError(f"{function}: {name} has the symbolic shape {x.shape}, not supported yet")
        if x.memory_space.name != "Device":
            raise ValueError(
                f"{function}: {name} is in JAX's host memory; move it first, with "
                f"jax.device_put({name}, {name}.sharding.with_memory_kind('device'))"
            )


def placed_as(shape: tuple[int, ...], a: _Aval, *others: _Aval) -> dict[str, Any]:
    """Say where a result lies: whole on its device; in a `jax.shard_map`, it varies over the axes of any operand."""
    mesh = next((x.sharding.mesh for x in (a, *others) if not x.sharding.mesh.empty), a.sharding.mesh)
    whole = jax.sharding.NamedSharding(mesh, _PartitionSpec(*(None,) * len(shape)))
    if hasattr(a, "vma"):  # JAX 0.8 and 0.9
        return {"sharding": whole, "vma": a.vma.union(*(x.vma for x in others))}
    axes = a.manual_axis_type
    varying = axes.varying.union(*(x.manual_axis_type.varying for x in others))
    return {"sharding": whole, "manual_axis_type": axes.update(varying=varying)}


_SHARDING_REMEDY = (
    "arrays on several devices are not supported yet: call it inside jax.shard_map, on each device's own block, "
    "or put {} on one device with jax.device_put"
)


def _remedy(count: int) -> str:
    return _SHARDING_REMEDY.format("both arrays" if count == 2 else "the array")


def _require_one_device(function: str, ctx: mlir.LoweringRuleContext) -> None:
    """Refuse a program over several devices, where XLA would gather the operands; inside shard_map all is well."""
    context: Any = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        count = math.prod(size for axis, size in context.mesh.shape.items() if axis not in context.manual_axes)
    else:
        count = getattr(context, "num_devices", 1)
    if count != 1:
        raise ValueError(f"{function}: this jax.jit runs on {count} devices; {_remedy(len(ctx.avals_in))}")


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


def check_concrete(function: str, arrays: dict[str, jax.Array], stream: object, execution: str | None) -> None:
    """Refuse concrete arrays that cannot be in one call, or that are not where the call is asked to run."""
    first, *others = [x.sharding for x in arrays.values()]
    if any(other is not first and other.device_set != first.device_set for other in others):
        refuse_devices(function, arrays)
    if stream is not None or execution is not None:
        check_placement(function, arrays, stream, execution)


def run(function: str, compiled: Callable[..., jax.Array], a: jax.Array, b: jax.Array | None) -> jax.Array:
    """Run what was compiled for one or two concrete arrays: `compute` in fewer steps, where nothing else is given."""
    if b is not None and a.sharding is not (other := b.sharding) and a.sharding.device_set != other.device_set:
        refuse_devices(function, {"a": a, "b": b})
    try:
        return compiled(a) if b is None else compiled(a, b)
    except (RuntimeError, ValueError) as error:
        raise_as_ours(function, error, {"x": a} if b is None else {"a": a, "b": b})


@functools.lru_cache(maxsize=1024)
def _apart(compiled: Any) -> Callable[..., jax.Array]:
    """Compile the same again: JAX refuses a function that runs itself, as it would where it looks for a NaN in it."""
    alone: Callable[..., jax.Array] = jax.jit(lambda *operands: compiled.__wrapped__(*operands))
    return alone


def _run_primitive(function: str, compiled: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
    """Run one primitive by itself, as JAX does under `jax.disable_jit`, and to find which operation made a NaN."""
    # Each would have the compiled function call the primitive, and that this, without an end.
    with jax.disable_jit(False), jax.debug_nans(False), jax.debug_infs(False):
        result = _apart(compiled)(*operands)
    check_special(function, result)
    return result


def set_rules(
    primitive: Any,
    function_of: Callable[..., str],
    target: str,
    *,
    compiled: Callable[..., Callable[..., jax.Array]],
    type_of: Callable[..., _Aval],
    compute_on_host: Callable[..., jax.Array],
    lower_cuda: Callable[..., Any],
    vmap: Callable[..., Any],
    instead: str,
) -> None:
    """Tell JAX how a primitive is run, typed and lowered.

    `function_of` and `compiled` take the primitive's parameters: the function of this package that errors name, and
    what runs the primitive by itself. `instead` is what has derivatives.
    """
    lower_jnp: Any = mlir.lower_fun(compute_on_host, multiple_results=False)

    def run_alone(*operands: jax.Array, **params: Any) -> jax.Array:
        return _run_primitive(function_of(**params), compiled(**params), *operands)

    def on_host(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        _require_one_device(function_of(**params), ctx)
        return lower_jnp(ctx, *operands, **params)

    def on_cuda(ctx: mlir.LoweringRuleContext, *operands: Any, **params: Any) -> Any:
        _require_one_device(function_of(**params), ctx)
        _require_target(function_of(**params), target)
        return lower_cuda(ctx, *operands, **params)

    def no_derivative(*_: Any, **params: Any) -> NoReturn:
        raise NotImplementedError(
            f"{function_of(**params)}: derivatives (jax.grad, jax.jvp, jax.vjp, ...) are not supported yet; wrap the "
            f"call in jax.custom_vjp, or use {instead}"
        )

    primitive.def_impl(run_alone)
    primitive.def_abstract_eval(type_of)
    mlir.register_lowering(primitive, on_host, platform="cpu")
    mlir.register_lowering(primitive, on_cuda, platform="cuda")
    batching.primitive_batchers[primitive] = vmap
    ad.primitive_jvps[primitive] = no_derivative
    ad.primitive_transposes[primitive] = no_derivative


def refuse_outputs(function: str, **outputs: object) -> None:
    """Refuse arrays to write to."""
    for name, x in outputs.items():
        if x is not None:
            raise TypeError(f"{function}: {name}= cannot be used with JAX arrays, which are immutable; use the result")


def refuse_devices(function: str, arrays: dict[str, jax.Array]) -> NoReturn:
    """Raise for arrays on several devices, or on two."""
    for name, x in arrays.items():
        if (count := len(x.sharding.device_set)) != 1:
            raise ValueError(f"{function}: {name} is on {count} devices, {x.sharding}; {_remedy(len(arrays))}")
    places = " and ".join(f"{name} is on {_device(x)}" for name, x in arrays.items())
    raise ValueError(f"{function}: {places}; put both on one device with jax.device_put")


def _device(x: jax.Array) -> Any:
    (device,) = x.sharding.device_set
    return device


def refuse_in_trace(function: str, stream: object, execution: str | None) -> None:
    """Refuse what only a call of concrete arrays can do."""
    if stream is not None:
        raise ValueError(f"{function}: stream= cannot be used inside jax.jit: XLA chooses the stream")
    if execution is not None:
        raise ValueError(f"{function}: execution= cannot be used inside jax.jit: JAX chooses the device")


def check_placement(function: str, arrays: dict[str, jax.Array], stream: object, execution: str | None) -> None:
    """Refuse a stream, or another device, for arrays that do not lie on one."""
    names = " and ".join(arrays)
    those = f"{names} are JAX arrays" if len(arrays) > 1 else f"{names} is a JAX array"
    first = next(iter(arrays.values()))
    device: Any = next(iter(first.sharding.device_set))  # of several, any one: they are refused later
    on_gpu = device.platform == "gpu"
    if execution is not None and not (on_gpu and execution in ("cuda", f"cuda:{device.local_hardware_id}")):
        raise ValueError(
            f"{function}: execution={shown(execution)}, but {those} on {device}, which JAX computes "
            f"where they are; move them first, with jax.device_put({next(iter(arrays))}, jax.devices('cuda')[0])"
        )
    if stream is not None and not on_gpu:
        raise ValueError(f"{function}: stream= is for device arrays, but {those} on {device}; accepted: None")


def make_wait(stream: int, c: Any) -> None:
    """Make a stream of the caller's wait for the result."""
    c.__dlpack__(stream=stream)  # asked for its effect only: XLA makes the stream wait for c


def raise_as_ours(function: str, error: RuntimeError | ValueError, arrays: dict[str, jax.Array]) -> NoReturn:
    """Raise JAX's error as what it means: arrays on several devices, one that is gone, our handler's report to XLA."""
    if any(len(x.sharding.device_set) != 1 for x in arrays.values()):
        refuse_devices(function, arrays)
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
