"""Where JAX arrays lie, what a call of them cannot do there, and where a result lies."""

from __future__ import annotations

import functools
import math
from typing import Any, NoReturn

import jax
import jax.sharding
from jax.interpreters import mlir

from interop import _core
from interop._arguments import shown

__all__ = [
    "check_concrete",
    "check_memory",
    "check_operands",
    "check_shapes",
    "device_count",
    "devices_of",
    "make_wait",
    "name_of",
    "placed_as",
    "refuse_devices",
    "refuse_in_trace",
    "refuse_outputs",
    "varying_axes",
]

# JAX's types promise little here (bind, update and rules are untyped), so ours do not try.
_Aval = Any  # jax.core.ShapedArray
_PartitionSpec: Any = jax.sharding.PartitionSpec


@functools.cache
def name_of(dtype: Any) -> str:
    """Return a dtype's name, which NumPy makes slowly, once for each."""
    return str(dtype)


def refuse_outputs(function: str, **outputs: object) -> None:
    """Refuse arrays to write to."""
    for name, x in outputs.items():
        if x is not None:
            raise TypeError(f"{function}: {name}= cannot be used with JAX arrays, which are immutable; use the result")


# ---- of arrays that are traced ----


def check_operands(function: str, operands: dict[str, _Aval]) -> None:
    """Refuse traced operands whose shape or memory no kernel could take."""
    for name, x in operands.items():
        if not all(isinstance(size, int) for size in x.shape):
            raise NotImplementedError(
                f"{function}: {name} has the symbolic shape {x.shape}, not supported yet; accepted: a shape of numbers"
            )
        check_memory(function, name, x)


def check_memory(function: str, name: str, x: _Aval) -> None:
    """Refuse a traced operand in memory that no kernel could take."""
    if x.memory_space.name != "Device":
        raise ValueError(
            f"{function}: {name} is in JAX's host memory; move it first, with "
            f"jax.device_put({name}, {name}.sharding.with_memory_kind('device'))"
        )


def check_shapes(function: str, operands: dict[str, Any]) -> None:
    """Raise what a call does of shapes that do not broadcast; of symbolic ones JAX does."""
    if all(isinstance(size, int) for x in operands.values() for size in x.shape):
        _core.abstract_operands(function, [(name, x.shape, None) for name, x in operands.items()])


def placed_as(shape: tuple[int, ...], a: _Aval, *others: _Aval) -> dict[str, Any]:
    """Say where a result lies: whole on its device; in a `jax.shard_map`, it varies over the axes of any operand."""
    mesh = next((x.sharding.mesh for x in (a, *others) if not x.sharding.mesh.empty), a.sharding.mesh)
    whole = jax.sharding.NamedSharding(mesh, _PartitionSpec(*(None,) * len(shape)))
    varying = frozenset().union(*map(varying_axes, (a, *others)))
    if hasattr(a, "vma"):  # JAX 0.8 and 0.9
        return {"sharding": whole, "vma": varying}
    return {"sharding": whole, "manual_axis_type": a.manual_axis_type.update(varying=varying)}


def varying_axes(x: _Aval) -> frozenset[str]:
    """Return the axes of a `jax.shard_map` over which an array varies."""
    return frozenset(x.vma if hasattr(x, "vma") else x.manual_axis_type.varying)


def refuse_in_trace(function: str, stream: object, execution: str | None) -> None:
    """Refuse what only a call of concrete arrays can do."""
    if stream is not None:
        raise ValueError(f"{function}: stream= cannot be used inside jax.jit: XLA chooses the stream")
    if execution is not None:
        raise ValueError(f"{function}: execution= cannot be used inside jax.jit: JAX chooses the device")


def device_count(ctx: mlir.LoweringRuleContext) -> int:
    """Count the devices among which XLA divides arrays of the program that is lowered; inside shard_map that is one."""
    context: Any = ctx.module_context.axis_context
    if hasattr(context, "manual_axes"):
        return math.prod(size for axis, size in context.mesh.shape.items() if axis not in context.manual_axes)
    count: int = getattr(context, "num_devices", 1)
    return count


# ---- of concrete arrays ----

_sets: dict[Any, Any] = {}  # one object for those that are equal


@functools.lru_cache(maxsize=1024)
def devices_of(sharding: Any) -> Any:
    """Return the set of devices, one object for those that are equal: JAX makes it anew, and is slow to compare."""
    devices = frozenset(sharding.device_set)
    return _sets.setdefault(devices, devices)


def check_concrete(function: str, arrays: dict[str, jax.Array], stream: object, execution: str | None) -> None:
    """Refuse concrete arrays that cannot be in one call, or that are not where the call is asked to run."""
    first, *others = [x.sharding for x in arrays.values()]
    if any(other is not first and other.device_set != first.device_set for other in others):
        refuse_devices(function, arrays)
    if stream is not None or execution is not None:
        _check_placement(function, arrays, stream, execution)


def _check_placement(function: str, arrays: dict[str, jax.Array], stream: object, execution: str | None) -> None:
    """Refuse a stream, or another device, for arrays that do not lie on one."""
    names = " and ".join(arrays)
    those = f"{names} are JAX arrays" if len(arrays) > 1 else f"{names} is a JAX array"
    first = next(iter(arrays.values()))
    devices: list[Any] = [*first.sharding.device_set]
    on_gpu = len(devices) == 1 and devices[0].platform == "gpu"
    if execution is not None and not (on_gpu and execution in ("cuda", f"cuda:{devices[0].local_hardware_id}")):
        raise ValueError(
            f"{function}: execution={shown(execution)}, but {those} on {_place(first)}, which JAX computes "
            f"where they are; move them first, with jax.device_put({next(iter(arrays))}, jax.devices('cuda')[0])"
        )
    if stream is not None and not on_gpu:
        what = "device arrays" if len(devices) == 1 else "arrays on one device"
        raise ValueError(f"{function}: stream= is for {what}, but {those} on {_place(first)}; accepted: None")


def refuse_devices(function: str, arrays: dict[str, jax.Array]) -> NoReturn:
    """Raise for arrays that are not on the same devices."""
    alone = all(len(x.sharding.device_set) == 1 for x in arrays.values())
    places = " and ".join(f"{name} is on {_place(x)}" for name, x in arrays.items())
    remedy = "one device" if alone else "the same devices"
    raise ValueError(f"{function}: {places}; put both on {remedy} with jax.device_put")


def _place(x: jax.Array) -> str:
    devices = [*x.sharding.device_set]
    return str(devices[0]) if len(devices) == 1 else f"{len(devices)} devices, {x.sharding}"


def make_wait(stream: int, c: Any) -> None:
    """Make a stream of the caller's wait for the result."""
    c.__dlpack__(stream=stream)  # asked for its effect only: XLA makes the stream wait for c
