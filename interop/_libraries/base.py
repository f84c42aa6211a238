"""What is known of an array library, and what the files of this package share: each has one library."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import ml_dtypes
import numpy as np

from interop import _core
from interop._core import Array

__all__ = [
    "CPU",
    "CUDA",
    "FUNCTION",
    "MANAGED",
    "Captures",
    "Capturing",
    "Library",
    "Recording",
    "Streams",
    "Target",
    "describe",
    "gpu",
    "host_or_gpu",
    "import_into",
    "numpy_dtype",
    "promoted_as_numpy",
    "refuse_layout",
]

FUNCTION = "interop.convert"
CPU, CUDA, MANAGED = 1, 2, 13  # DLPack's device types


def numpy_dtype(name: str) -> Any:
    """Return NumPy's dtype of this name; of bfloat16 and float8, that of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def promoted_as_numpy(in_float: bool, *operands: Any) -> str:
    """Return the dtype in which NumPy computes these operands; with `in_float`, integers in its default float."""
    common = np.result_type(*(numpy_dtype(x[0]) if isinstance(x, tuple) else x for x in operands))
    if in_float and common.kind in "biu":
        common = np.dtype(np.float64)
    return str(common.name)


def _nothing() -> Any:
    return None


@dataclass(frozen=True, kw_only=True)
class Streams:
    """How a library is asked for the stream on which it works, and told another."""

    current: Callable[[Any, int], int]  #: (module, device): the handle; 1 and 2 for the default ones
    #: (module, device, handle, the object that names it): a context in which both are current. None: it cannot be told.
    on: Callable[[Any, int, int, Any], AbstractContextManager[Any]] | None
    device: Callable[[Any], int]  #: (module): the index of the current device
    device_of: Callable[[Any], int]  #: (array): the index of its device, -1 for host memory
    #: (module, device): a context in which that device is current, of a library that cannot be told a stream.
    within: Callable[[Any, int], AbstractContextManager[Any]] | None = None


@dataclass(frozen=True, kw_only=True)
class Capturing:
    """A capture into a CUDA graph, for the libraries that take part in it."""

    capture: _core.Capture  #: of the stream, on its device
    stream: Any  #: the object that names the stream
    pool: dict[str, Any]  #: of each library by its name: its memory for the graph, and for those that share it
    kept: list[Any]  #: what the graph keeps


class Recording(Protocol):
    """How a capture is begun and ended, and the graph launched, on a device that is current."""

    def begin(self) -> None: ...
    def end(self) -> None:
        """End the capture, and make the graph; CudaError where the capture has failed."""

    def drop(self) -> None:
        """End the capture, whatever has become of it, and make no graph."""

    def replay(self, stream: int, is_current: bool) -> None:
        """Launch the graph; `is_current` says that it is the library's current stream."""


@dataclass(frozen=True, kw_only=True)
class Captures:
    """How the work of a library becomes part of a CUDA graph."""

    takes_part: Callable[[Any], bool]  #: (module): has it a GPU?
    #: (module, capturing): a context in which the library's work of this thread is captured, its memory the graph's.
    within: Callable[[Any, Capturing], AbstractContextManager[Any]]
    #: (module, capturing): of a library that must itself begin and end a capture of its work.
    recording: Callable[[Any, Capturing], Recording] | None = None
    #: (module, device, stream): of a library that takes none but its own, such a stream, which others take, too.
    stream: Callable[[Any, int, Any], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Target:
    """What `interop.convert` gives arrays to: how its own are known, made of an `interop.Array`, and promoted."""

    name: str
    module: str
    owns: Callable[[Any, Any], bool]  #: (module, x): is x an array of its?
    take: Callable[[Any, Array, int | None], Any]  #: (module, array, stream): its array on the same memory
    #: (in_float, operands): the dtype in which the library computes them; TypeError, in its words, where it does not.
    promoted: Callable[..., str] = promoted_as_numpy
    #: What promotion depends on beside the operands.
    configuration: Callable[[], Any] = _nothing
    on_host: bool = True  #: does it have arrays on the host?
    keeps_read_only: bool = False  #: does it refuse to write to memory that is read-only?
    streams: Streams | None = None  #: None: it has none, or chooses its own
    captures: Captures | None = None  #: None: it takes no part in a CUDA graph
    #: (module, array): as `take`, in fewer steps, of a compact array on the current device that is ready on the current
    #: stream. Raises where it cannot. None: there is no such way.
    borrow: Callable[[Any, Array], Any] | None = None

    def load_for(self, function: str) -> Any:
        """Import the module for a call of `function`; ModuleNotFoundError that says so where it is not installed."""
        try:
            return importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name != self.module.partition(".")[0]:  # the library lacks something itself
                raise
            raise ModuleNotFoundError(
                f"{function}: library is {self.name!r}, which is not installed", name=error.name
            ) from error

    def take_within(self, function: str, module: Any, array: Array, stream: int | None) -> Any:
        """Do as `take`, so that the exit of the process waits for it."""
        if self.module in ("numpy", "interop"):
            return self.take(module, array, stream)
        return _core.within(function, self.name, lambda: self.take(module, array, stream))

    @property
    def is_configured(self) -> bool:
        """Does promotion depend on anything beside the operands?"""
        return self.configuration is not _nothing


@dataclass(frozen=True, kw_only=True)
class Library(Target):
    """What `interop info`, `demo` and `bench` look for: also how it makes arrays, and how they are read."""

    install: str
    to_device: Callable[[Any, Any, str], Any]  #: (module, NumPy's array, "cpu" or "cuda") -> its array
    to_numpy: Callable[[Any], Any]
    has_cuda: Callable[[Any], bool]  #: of the module
    stream: Callable[[Any], str]  #: what its work on CUDA is queued on now

    def load(self) -> Any:
        """Import the module; ImportError with the reason if it is absent or broken."""
        if importlib.util.find_spec(self.module.split(".")[0]) is None:
            raise ImportError(f"not installed; {self.install}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's remarks on its own environment are no concern of ours
            return importlib.import_module(self.module)

    def version(self) -> str:
        """Return the version of the imported library."""
        return str(importlib.import_module(self.module.split(".")[0]).__version__)


# ---- importers, and what their errors say ----


def describe(array: Array) -> str:
    where = f"on {array.device}" if array.memory in ("device", "host") else f"in {array.memory} memory"
    return f"x is {array.dtype} of shape {array.shape}, strides {array.strides}, {where}"


def import_into(library: str, array: Array, importer: Callable[[], Any]) -> Any:
    """Run a library's importer; what it refuses for reasons of its own, a dtype above all, is a TypeError."""
    try:
        return importer()
    except _core.CudaError:
        raise
    except (TypeError, BufferError, NotImplementedError, RuntimeError, AttributeError, LookupError) as error:
        raise TypeError(f"{FUNCTION}: {library} does not take this array ({describe(array)}): {error}") from error


def refuse_layout(library: str, what: str, array: Array, remedy: str) -> NoReturn:
    raise ValueError(f"{FUNCTION}: {library} {what}; {describe(array)}; {remedy}")


# ---- which memory ----


def host_or_gpu(array: Array) -> tuple[int, int]:
    """Return the device under which libraries of both kinds take it: pinned memory is the host's, managed a GPU's."""
    kind, index = array.__dlpack_device__()
    if kind == MANAGED:
        return CUDA, _core.readable_by(array, CUDA) or 0
    return (CUDA, index) if kind == CUDA else (CPU, 0)


def gpu(library: str, array: Array, remedy: str) -> tuple[int, int]:
    """Return the device for libraries that have the GPU only."""
    index = _core.readable_by(array, CUDA)
    if index is None:
        raise TypeError(f"{FUNCTION}: {library} has arrays on the GPU only; {describe(array)}; {remedy}")
    return CUDA, index
