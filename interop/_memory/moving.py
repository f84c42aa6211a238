"""`Array.to`, `astype`, `prefetch` and `advise`."""

from __future__ import annotations

from typing import Any

from interop import _core
from interop._arguments import named, shown
from interop._core import Array
from interop._memory.places import Device
from interop._streams import StreamLike

__all__ = ["advise", "astype", "beside", "copied", "like", "prefetch", "reduced", "restored", "shareable_copy", "to"]

_ADVICE = ("read_mostly", "preferred_location", "accessed_by")


def beside(
    array: Array,
    dtype: Any,
    function: str,
    memory: str | None = None,
    device: Device = None,
    stream: StreamLike | None = None,
) -> Array:
    """Make a new array of the shape of another; what is not given is as there."""
    memory = array.memory if memory is None else memory
    if device is None and array.device != "cpu" and memory != "host":
        device = array.device
    return _core.empty(array.shape, dtype, memory, device, stream, function)


def like(function: str, x: Any, dtype: Any, memory: str | None, device: Device, stream: StreamLike | None) -> Array:
    """Make a new array of the shape of one of any library; what is not given is as there."""
    array = _core.asarray(x, function)
    return beside(array, array.dtype if dtype is None else dtype, function, memory, device, stream)


@named("interop.Array.to", method=True)
def to(array: Array, /, *, memory: str | None = None, device: Device = None, stream: StreamLike | None = None) -> Array:
    """Return the array, or a copy where another memory or device is asked for."""
    function = "interop.Array.to"
    if memory is None:
        memory = "device" if device is not None and array.memory == "host" else array.memory
    elif memory not in ("device", "managed", "pinned", "host"):
        raise ValueError(
            f"{function}: memory is {shown(memory)}; accepted: None, 'device', 'managed', 'pinned' or 'host'"
        )
    if memory == "host" and device is not None:
        raise ValueError(f"{function}: device is {shown(device)}, and memory is 'host'; accepted: None")
    is_there = memory == array.memory or (device is None and not _core.has_gpu() and array.memory == "host")
    if is_there and (
        device is None or memory == "pinned" or array.device == f"cuda:{_core.Pool('device', device, function).device}"
    ):
        if stream is not None:
            _core.asarray(array, function, _core.stream_handle(stream, function))  # for its effect: the stream waits
        return array
    copied = beside(array, array.dtype, function, memory, device)
    _core.copyto(copied, array, stream, function, "the copy", "the array")
    return copied


def shareable_copy(array: Array) -> Array:
    """Return a compact copy in memory that other processes can be given: on the same device, or the host."""
    function = "interop.share"
    memory, device = ("host", None) if array.device == "cpu" else ("device", array.device)
    made = _core.empty_shared(array.shape, array.dtype, memory, device, None, function)
    _core.copyto(made, array, None, function, "the copy", "x")
    return made


def copied(array: Array) -> Array:
    """Return a compact copy in the same memory: what `copy.copy` and `copy.deepcopy` make."""
    function = "interop.Array.__copy__"
    made = beside(array, array.dtype, function)
    _core.copyto(made, array, None, function, "the copy", "the array")
    return made


def reduced(array: Array) -> tuple[Any, ...]:
    """Return what `pickle` writes of an array."""
    import numpy as np

    return restored, (np.asarray(to(array, memory="host")), array.memory)


def restored(values: Any, memory: str) -> Array:
    """Make the array that `pickle` reads: on the current device, as the one that it was written from may not exist."""
    function = "pickle.loads of an interop.Array"
    made = like(function, values, None, memory, None, None)
    _core.copyto(made, values, None, function, "the array", "values")
    return made


@named("interop.Array.astype", method=True)
def astype(array: Array, /, dtype: Any) -> Array:
    """Return a copy in another dtype."""
    import numpy as np

    function = "interop.Array.astype"
    converted = beside(array, dtype, function)
    if array.device == "cpu":
        np.copyto(np.asarray(converted), np.asarray(array), casting="unsafe")
    elif converted.dtype == "bool" and array.dtype != "bool":
        _core.elementwise("not_equal", array, 0, {"out": converted})
    else:
        _core.copyto(converted, array, None, function, "the copy", "the array", True)
    return converted


def _is_managed(array: Array, function: str) -> bool:
    """Tell it, of an array that stands for one of managed memory; only on a machine with no GPU may it be another."""
    if array.memory != "managed" and _core.has_gpu():
        raise TypeError(f"{function}: the array lies in {array.memory} memory; accepted: managed memory")
    return array.memory == "managed"


@named("interop.Array.prefetch", method=True)
def prefetch(array: Array, /, device: Device = None, *, stream: StreamLike | None = None) -> None:
    """Move managed memory to a device or the host; of host memory, on a machine with no GPU, nothing is done."""
    function = "interop.Array.prefetch"
    place = _core.hinted_place(device, array, function)
    handle = None if stream is None else _core.stream_handle(stream, function)
    if _is_managed(array, function):
        _core.prefetch(array, place, handle)


@named("interop.Array.advise", method=True)
def advise(array: Array, /, advice: str, device: Device = None, *, value: bool = True) -> None:
    """Tell CUDA how managed memory will be used; of host memory, on a machine with no GPU, nothing is done."""
    function = "interop.Array.advise"
    if advice not in _ADVICE:
        raise ValueError(f"{function}: advice is {shown(advice)}; accepted: {', '.join(map(repr, _ADVICE))}")
    if not isinstance(value, bool):
        raise TypeError(f"{function}: value is {shown(value)}; accepted: True or False")
    place = _core.hinted_place(device, array, function)
    if _is_managed(array, function):
        _core.advise(array, _ADVICE.index(advice), value, place)
