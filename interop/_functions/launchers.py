"""Functions and kernels of other libraries that launch themselves, as `interop.adopt` finds and calls them."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from interop import _core
from interop._arguments import shown, type_name
from interop._core import Array
from interop._functions.array_function import Launch, extents_of
from interop._libraries.arrays import is_array
from interop._libraries.known import TARGETS

__all__ = ["Launcher", "NumbaKernel", "TritonKernel", "TvmFunction", "names_in_signature"]

#: Of a launch, as `interop.adopt` is given them; None where one is not given.
Options = dict[str, Any]


class Launcher:
    """What `interop.adopt` found, and how it is called."""

    kind: ClassVar[str]  #: what messages call it
    takes: ClassVar[tuple[str, ...]] = ()  #: the options of a launch that it has
    launches: ClassVar[bool] = True  #: is it given the stream? One that finds it by itself is not.
    has_extents: ClassVar[bool] = False  #: are the options those of `interop.kernel`, which may be functions?
    takes_tensors: ClassVar[bool] = True  #: is it given torch's tensors as they are?
    own: type | None = None  #: the type of other arrays of which that is so
    extents: tuple[Any, Any] = (None, None)  #: see `extents_of`
    unpacked: Callable[[Any], Any] | None = None  #: see `TvmFunction`
    is_plain = True  #: does a call without options by name need none?

    def __init__(self, kernel: Any, name: str) -> None:
        self.kernel, self.name = kernel, name

    @property
    def title(self) -> str:
        """What the function is called in its repr."""
        return f"{self.kind} {self.name}"

    def parameters(self) -> list[str] | None:
        """Return the names of the parameters; None where it does not say them."""
        return None

    def function(self, label: str, names: Sequence[str], options: Options) -> Callable[..., Any]:
        """Return what is called with the arguments, behind the stream and the options of the call if it `launches`."""
        raise NotImplementedError

    def options(self, places: Mapping[str, int], named: dict[str, Any]) -> Any:
        """Return the options of a call, and take them out of the arguments by name; `places` are the parameters."""
        return None


class TvmFunction(Launcher):
    """A `tvm_ffi.Function`: it works on the stream of its environment, which an `interop.Array` says."""

    kind = "tvm_ffi.Function"
    launches = False

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel, type(kernel).__name__)

    @property
    def title(self) -> str:
        return self.kind

    def parameters(self) -> list[str] | None:
        try:
            return names_of(self.kernel)
        except (TypeError, ValueError):
            return None

    def function(self, label: str, names: Sequence[str], options: Options) -> Callable[..., Any]:
        self._label = label
        called: Callable[..., Any] = self.kernel
        return called

    def unpacked(self, made: Any) -> Any:
        """Return a tuple of what a list has that holds tensors; anything else as it is.

        Its tensors become arrays as they are asked for: in the call, they are ready on its stream.
        """
        tvm_ffi = importlib.import_module("tvm_ffi")
        if isinstance(made, (tvm_ffi.Array, tvm_ffi.List)):
            parts = tuple(self.unpacked(part) for part in made)
            return parts if any(type(part) is tuple or is_array(part) for part in parts) else made
        values = made.values() if isinstance(made, (tvm_ffi.Map, tvm_ffi.Dict)) else ()
        if isinstance(made, tvm_ffi.Tensor) or any(
            type(part) is tuple or is_array(part) for part in map(self.unpacked, values)
        ):
            raise TypeError(
                f"{self._label}: the result has a tensor in a map, or in a list within one; accepted: a tensor, or a "
                "list of them"
            )
        return made


class NumbaKernel(Launcher):
    """What `numba.cuda.jit` makes, launched on the stream of the call."""

    kind = "numba.cuda kernel"
    takes = ("grid", "threads", "block", "shared")
    has_extents = True
    takes_tensors = False  # it would ask each of them for an interface

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel, kernel.py_func.__name__)
        self._threads: Any = None

    def parameters(self) -> list[str] | None:
        return names_of(self.kernel.py_func)

    def function(self, label: str, names: Sequence[str], options: Options) -> Callable[..., Any]:
        self._label, self._names = label, names
        launch = _launch({"block": 256, **options})
        self.extents, self._threads = extents_of(launch), launch[1]
        self.is_plain = self.extents == (None, None)
        fixed = tuple(None if callable(extent) else extent for extent in launch[:2])
        form: list[int] = []
        declared = [("pointer", name, "", True, 0, form) for name in names]
        # It is launched by Numba; this one says how many blocks.
        sizes = _core.Kernel(label, declared, _never, (*fixed, *launch[2:]), [], False)
        cuda = importlib.import_module("numba.cuda")
        self.own = importlib.import_module("numba.cuda.cudadrv.devicearray").DeviceNDArray
        kernel, as_array = self.kernel, cuda.as_cuda_array

        def launch_it(stream: int, options: Launch | None, *values: Any) -> None:
            shapes = tuple(getattr(x, "shape", ()) for x in values)
            self._check_threads(self._threads if options is None or options[1] is None else options[1], values)
            grid = sizes.launch_for(shapes, options)
            if 0 not in grid[:3]:
                arrays = [as_array(x, sync=False) if type(x) is Array else x for x in values]
                kernel[grid[:3], grid[3:6], _numba_stream(stream), grid[9]](*arrays)

        return launch_it

    def options(self, places: Mapping[str, int], named: dict[str, Any]) -> Launch:
        return _launch({name: named.pop(name, None) for name in self.takes})

    def _check_threads(self, threads: Any, values: Sequence[Any]) -> None:
        if not isinstance(threads, str) or threads not in self._names:
            return
        x = values[self._names.index(threads)]
        if not hasattr(x, "shape"):
            raise ValueError(
                f"{self._label}: threads is {threads!r}, which is {type_name(x)}; accepted: the name of an array, an "
                "int, or a tuple"
            )


class TritonKernel(Launcher):
    """What `triton.jit`, `triton.autotune` and `triton.heuristics` make, launched on torch's current stream."""

    kind = "Triton kernel"
    takes = ("grid", "options")

    def __init__(self, kernel: Any) -> None:
        inner = kernel
        while not hasattr(inner, "params"):
            inner = inner.fn
        super().__init__(kernel, inner.__name__)
        self._params = inner.params

    def parameters(self) -> list[str] | None:
        return [p.name for p in self._params if not p.is_constexpr]

    def function(self, label: str, names: Sequence[str], options: Options) -> Callable[..., Any]:
        self._label = label
        self._grid, self._constants = options.get("grid"), dict(options.get("options") or {})
        self.is_plain = self._grid is not None
        always: tuple[Any, dict[str, Any]] = self.options({}, {}) if self.is_plain else (None, {})
        torch = importlib.import_module("torch")
        streams = TARGETS["torch"].streams
        assert streams is not None
        assert streams.on is not None
        on = streams.on
        driver = importlib.import_module("triton.runtime").driver  # it says where Triton would launch
        kernel, keywords = self.kernel, [*names]
        # Constants may stand between the others.
        by_position = [p.name for p in self._params[: len(keywords)]] == keywords

        def launch_it(stream: int, options: tuple[Any, dict[str, Any]] | None, *values: Any) -> None:
            grid, constants = options or always
            arguments = [_Pointer(x) if type(x) is Array else x for x in values]
            called = kernel[grid]
            if not by_position:
                constants = constants | dict(zip(keywords, arguments, strict=True))
                arguments = []
            active = driver.active
            device = active.get_current_device()  # that of the call, which is current
            if (active.get_current_stream(device) or 1) == stream:
                called(*arguments, **constants)
            else:
                with on(torch, device, stream, None):
                    called(*arguments, **constants)

        return launch_it

    def options(self, places: Mapping[str, int], named: dict[str, Any]) -> Any:
        grid = self._grid if (given := named.pop("grid", None)) is None else given
        if grid is None:
            raise ValueError(f"{self._label}: grid is not given; accepted: one, here or in interop.adopt")
        constants = self._constants
        if named.keys() - places.keys():
            constants = constants | {name: named.pop(name) for name in [*named] if name not in places}
        return (grid,) if isinstance(grid, int) else grid, constants


class _Pointer:
    """An array as Triton reads it."""

    __slots__ = ("_array", "dtype")

    def __init__(self, array: Array) -> None:
        self._array, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        address: int = _core.address_of(self._array)
        return address

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape


def names_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a Python function, all of which are by position; else ValueError."""
    parameters = inspect.signature(function).parameters.values()
    for p in parameters:
        if p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            raise ValueError(f"the parameter {p} is not by position; accepted: parameters by position alone")
    return [p.name for p in parameters]


def names_in_signature(label: str, signature: str) -> list[str]:
    """Return the names in ``"x, y, n"``; ValueError for what is no list of names."""
    names = [name.strip() for name in signature.split(",")]
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{label}: signature is {shown(signature)}; accepted: names of parameters, 'x, y, n'")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{label}: signature has {name!r} twice; accepted: another name for each parameter")
    return names


_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def _launch(options: Options) -> Launch:
    names = ("grid", "threads", "block", "shared")
    grid, threads, block, shared = (options.get(name) for name in names)
    return (grid, threads, block, shared, None, None, None)


def _never(architecture: str) -> _core.LoadedKernel:
    raise NotImplementedError(architecture)


def _numba_stream(handle: int) -> Any:
    """Return Numba's object of a stream."""
    cuda = importlib.import_module("numba.cuda")
    return _kept_stream(cuda, handle, cuda.get_current_device().id if handle in (1, 2) else None)


@functools.lru_cache(maxsize=128)
def _kept_stream(cuda: Any, handle: int, device: int | None) -> Any:
    """Return the same object each time, as Numba keeps by it how a kernel is launched. `device`: of default streams."""
    if handle == 1:
        return cuda.legacy_default_stream()
    return cuda.per_thread_default_stream() if handle == 2 else cuda.external_stream(handle)
