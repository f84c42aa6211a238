"""The same memory in another array library: `interop.asarray` and `interop.convert`."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from interop import _core
from interop._arguments import missing, named, refuse_call_of, shown
from interop._core import Array
from interop._streams import StreamLike

__all__ = ["asarray", "convert"]

_FUNCTION = "interop.convert"
_CPU, _CUDA, _MANAGED = 1, 2, 13  # DLPack's device types


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _of_one(declared: FunctionT) -> FunctionT:
    """Make `asarray` of its declaration: a view is soon made, so calls that do not fit are found here."""

    @functools.wraps(declared)
    def asarray(x: Any = missing, /, *more: Any, **unknown: Any) -> Array:
        if more or unknown or x is missing:
            refuse_call_of("interop.asarray", [y for y in (x, *more) if y is not missing], unknown)
        return _core.asarray(x, "interop.asarray")

    return asarray  # type: ignore[return-value]


@_of_one
def asarray(x: Any, /) -> Array:
    """View an array of any library as an `interop.Array`, without a copy.

    Parameters
    ----------
    x : array of any library
        NumPy, torch, JAX, CuPy or Numba array, raw DLPack capsule, or any object with ``__dlpack__``,
        ``__cuda_array_interface__``, a buffer or ``__array_interface__``. Any strides, and any dtype of DLPack whose
        elements are one number of whole bytes (not torch's pairs of 4-bit floats).

    Returns
    -------
    interop.Array
        The same memory, with the same layout; read-only where `x` is. It keeps the owner of the memory alive. An
        `interop.Array` is given back itself. On a GPU, whoever uses it waits for the producer's stream.

    Raises
    ------
    TypeError
        `x` is not an array, or its values are not in memory as they are (a subclass of `torch.Tensor`, a JAX tracer, a
        tensor with a forward-mode tangent).
    BufferError
        The producer refuses, in its own words: a tensor that requires grad, a deleted JAX array. Or the tensor is
        lazily conjugated or negated, so that only a copy has its values.
    CudaError
        CUDA fails, or there is no driver for a device array.

    Notes
    -----
    The stream is the current one of the producer's library (torch, CuPy), the one that the array itself names
    (``__cuda_array_interface__``), or Numba's default one. JAX, and other producers of DLPack, are told a stream of
    interop's own. A current stream is asked for again at every use, so that what was queued in the meantime is waited
    for, too.

    Device memory goes back to its producer after the last view of it, and the last array made from one, is dropped:
    once all is done that was queued by then on the default stream, on blocking streams and on interop's own. Keep the
    array for as long as another library's non-blocking stream works on it.

    Examples
    --------
    >>> import numpy as np, interop
    >>> interop.asarray(np.ones((2, 3), "float32").T)
    interop.Array(shape=(3, 2), dtype=float32, device=cpu)
    """
    raise NotImplementedError  # a declaration


@named("interop.convert")
def convert(
    x: Any,
    library: Literal["torch", "cupy", "jax", "numpy", "numba", "warp", "interop"],
    /,
    *,
    stream: StreamLike | None = None,
) -> Any:
    """Give an array to another array library: the same memory, in stream order, never a copy.

    Parameters
    ----------
    x : array of any library
        As for `interop.asarray`.
    library : "torch", "cupy", "jax", "numpy", "numba", "warp" or "interop"
        Whose array to make. It is imported if need be.
    stream : int handle or stream object, optional
        Where the result is ready; by default the current stream of `library` (Numba: its default stream), which is made
        to wait for what the producer has queued. JAX orders its arrays itself: `stream` is then made to wait as well.
        For device arrays, and not for NumPy.

    Returns
    -------
    array of `library`
        `x` itself if it belongs to `library` already. Else an array on the same memory, which keeps the owner alive.
        The host has not waited, except for NumPy, whose arrays are ready on return.

    Raises
    ------
    TypeError
        The memory is out of the library's reach (device memory for NumPy, host memory for CuPy and Numba), or the
        library has no such dtype; and as `interop.asarray`.
    ValueError
        The library has no such layout: negative strides in torch; gaps, broadcast dimensions, or host memory that is
        not 64-byte aligned in JAX. `library` or `stream` has no such value, or `stream` is given for host memory.
    BufferError, CudaError
        As `interop.asarray`.
    ImportError
        `library` is not installed.

    Notes
    -----
    torch, CuPy, Numba and Warp know no read-only arrays: do not write to what was read-only, a JAX array above all. JAX
    takes memory for immutable: do not write to it while the JAX array lives.

    NumPy reads host, pinned and managed memory; for the last two the host waits until the GPU has finished with it.
    torch and JAX take pinned memory as host memory, CuPy and Numba as memory of the GPU; all take managed memory as the
    GPU's. JAX keeps 64-bit dtypes, whatever its x64 mode.

    Examples
    --------
    >>> import interop
    >>> x = interop.asarray(memoryview(b"interop"))
    >>> interop.convert(x, "numpy")
    array([105, 110, 116, 101, 114, 111, 112], dtype=uint8)
    """
    target = _TARGETS.get(library) if isinstance(library, str) else None
    if target is None:
        raise ValueError(f"{_FUNCTION}: library is {shown(library)}; accepted: {', '.join(map(repr, _TARGETS))}")
    handle = None if stream is None else _core.stream_handle(stream, _FUNCTION)
    if handle is not None and library == "numpy":
        raise ValueError(f"{_FUNCTION}: stream is given, but NumPy has no streams: its arrays are ready on return")
    loaded = sys.modules.get(target.module)
    try:
        is_own = loaded is not None and target.owns(loaded, x)
    except AttributeError:  # another thread is in the middle of importing it
        is_own = target.owns(importlib.import_module(target.module), x)
    if is_own:
        if handle is not None:
            _core.asarray(x, _FUNCTION, handle)  # for its effect only: the stream waits
        return x
    array = _core.asarray(x, _FUNCTION, handle)
    try:
        module = importlib.import_module(target.module)
    except ModuleNotFoundError as error:
        if error.name != target.module.partition(".")[0]:  # the library lacks something itself
            raise
        raise ModuleNotFoundError(
            f"{_FUNCTION}: library is {library!r}, which is not installed", name=error.name
        ) from error
    if target.module in ("numpy", "interop"):
        return target.take(module, array, handle)
    return _core.within(_FUNCTION, library, lambda: target.take(module, array, handle))


# ---- what an importer is shown ----


class _Export:
    """An `Array` as memory of `device`, ready on `stream`, whatever the importer says of streams."""

    def __init__(
        self, array: Array, device: tuple[int, int], stream: int | None = None, *, to_immutable: bool = False
    ) -> None:
        self._array = array
        self._device = device
        self._stream = stream
        self._to_immutable = to_immutable

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        chosen = stream if self._stream is None else self._stream
        return _core.export_dlpack(self._array, chosen, max_version, self._device, self._to_immutable)


class _Shown:
    """An object with this interface, which keeps the array alive."""

    def __init__(self, array: Array, interface: dict[str, Any]) -> None:
        self._array = array
        self.__cuda_array_interface__ = interface


def _describe(array: Array) -> str:
    return f"x is {array.dtype} of shape {array.shape}, strides {array.strides}, on {array.device}"


def _import_into(library: str, array: Array, importer: Callable[[], Any]) -> Any:
    """Run a library's importer; what it refuses for reasons of its own, a dtype above all, is a TypeError."""
    try:
        return importer()
    except _core.CudaError:
        raise
    except (TypeError, BufferError, NotImplementedError, RuntimeError, AttributeError, LookupError) as error:
        raise TypeError(f"{_FUNCTION}: {library} does not take this array ({_describe(array)}): {error}") from error


def _refuse_layout(library: str, what: str, array: Array, remedy: str) -> NoReturn:
    raise ValueError(f"{_FUNCTION}: {library} {what}; {_describe(array)}; {remedy}")


# ---- which memory ----


def _host_or_gpu(array: Array) -> tuple[int, int]:
    """Return the device under which libraries of both kinds take it: pinned memory is the host's, managed a GPU's."""
    kind, index = array.__dlpack_device__()
    if kind == _MANAGED:
        return _CUDA, _core.readable_by_gpu(array) or 0
    return (_CUDA, index) if kind == _CUDA else (_CPU, 0)


def _gpu(library: str, array: Array, remedy: str) -> tuple[int, int]:
    """Return the device for libraries that have the GPU only."""
    index = _core.readable_by_gpu(array)
    if index is None:
        raise TypeError(f"{_FUNCTION}: {library} has arrays on the GPU only; {_describe(array)}; {remedy}")
    return _CUDA, index


# ---- one importer for each library ----


def _to_numpy(module: Any, array: Array, stream: int | None) -> Any:
    if not _core.readable_by_host(array):
        raise TypeError(
            f"{_FUNCTION}: NumPy has arrays in host memory only; {_describe(array)}; copy it to the host with its own "
            "library (x.cpu(), cupy.asnumpy(x), numpy.asarray(x) of a JAX array, x.copy_to_host() of Numba)"
        )
    return array.__array__()


def _to_torch(torch: Any, array: Array, stream: int | None) -> Any:
    if any(step < 0 for step in array.strides):
        remedy = "copy it first, with x.copy() of NumPy or CuPy"
        _refuse_layout("torch", "has no negative strides", array, remedy)
    export = _Export(array, _host_or_gpu(array), stream)
    return _import_into("torch", array, lambda: torch.from_dlpack(export))


def _to_cupy(cupy: Any, array: Array, stream: int | None) -> Any:
    export = _Export(array, _gpu("CuPy", array, "copy it to the GPU with cupy.asarray(x)"), stream)
    return _import_into("CuPy", array, lambda: cupy.from_dlpack(export))


def _to_numba(cuda: Any, array: Array, stream: int | None) -> Any:
    _, index = _gpu("Numba", array, "copy it to the GPU with numba.cuda.to_device(x)")
    if stream is None:
        stream = 2 if importlib.import_module("numba.cuda.cudadrv.driver").config.CUDA_PER_THREAD_DEFAULT_STREAM else 1

    def importer() -> Any:
        shown = _Shown(array, _core.export_cai(array, stream))
        with cuda.gpus[index]:
            return cuda.as_cuda_array(shown, sync=False)  # bound to the stream on which it is ready

    return _import_into("Numba", array, importer)


def _to_jax(jax: Any, array: Array, stream: int | None) -> Any:
    if not _is_compact(array):
        remedy = "copy it first, with x.copy() of NumPy or CuPy, or x.contiguous() of torch"
        _refuse_layout("JAX", "has compact arrays only", array, remedy)
    export = _Export(array, _host_or_gpu(array), to_immutable=True)  # JAX's own stream: it orders its arrays itself

    def importer() -> Any:
        with _x64(jax):
            return jax.dlpack.from_dlpack(export, copy=False)

    try:
        return _import_into("JAX", array, importer)
    except ValueError as error:
        _refuse_layout("JAX", f"cannot share the memory ({error})", array, "let jax.numpy.asarray(x) copy it")


def jax_array(array: Array) -> Any:
    """Return what `jax.numpy.asarray` makes of an `Array`, for which it asks: it does not know the protocols."""
    if _core.readable_by_host(array):
        return importlib.import_module("jax.numpy").asarray(array.__array__())
    return _to_jax(importlib.import_module("jax"), array, None)


def _to_warp(warp: Any, array: Array, stream: int | None) -> Any:
    warp.init()  # which Warp leaves to whoever first needs it
    export = _Export(array, _host_or_gpu(array), stream, to_immutable=True)
    return _import_into("Warp", array, lambda: warp.from_dlpack(export))


def _is_compact(array: Array) -> bool:
    """Do the elements fill their memory without gaps, in some order of the dimensions?"""
    expected = 1
    for step, size in sorted(zip(array.strides, array.shape, strict=True)):
        if size == 0:
            return True
        if size != 1 and step != expected:
            return False
        expected *= size
    return True


def _x64(jax: Any) -> Any:
    """Return a context in which JAX narrows no 64-bit dtype, in whichever way this version spells it."""
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    return importlib.import_module("jax.experimental").enable_x64()


@dataclass(frozen=True)
class _Target:
    """One library: the module to import, whether an array is its own, and how it takes an `Array`."""

    module: str
    owns: Callable[[Any, Any], bool]
    take: Callable[[Any, Array, int | None], Any]


_TARGETS = {
    "torch": _Target("torch", lambda torch, x: isinstance(x, torch.Tensor), _to_torch),
    "cupy": _Target("cupy", lambda cupy, x: isinstance(x, cupy.ndarray), _to_cupy),
    "jax": _Target("jax", lambda jax, x: isinstance(x, jax.Array), _to_jax),
    "numpy": _Target("numpy", lambda numpy, x: isinstance(x, numpy.ndarray), _to_numpy),
    "numba": _Target("numba.cuda", lambda cuda, x: getattr(type(x), "__cuda_ndarray__", False), _to_numba),
    "warp": _Target("warp", lambda warp, x: isinstance(x, warp.array), _to_warp),
    "interop": _Target("interop", lambda interop, x: isinstance(x, Array), lambda interop, array, stream: array),
}
