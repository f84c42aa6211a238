"""Numba."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from interop import _core
from interop._core import Array
from interop._libraries.base import FUNCTION, Captures, Capturing, Library, Streams, gpu, import_into

__all__ = ["LIBRARY"]


def _default_stream() -> int:
    return 2 if importlib.import_module("numba.cuda.cudadrv.driver").config.CUDA_PER_THREAD_DEFAULT_STREAM else 1


class _Shown:
    """An object with this interface, which keeps the array alive."""

    def __init__(self, array: Array, interface: dict[str, Any]) -> None:
        self._array = array
        self.__cuda_array_interface__ = interface


def _take(cuda: Any, array: Array, stream: int | None) -> Any:
    device = gpu("Numba", array, "copy it to the GPU with numba.cuda.to_device(x)")
    if stream is None:
        stream = _default_stream()

    def importer() -> Any:
        shown = _Shown(array, _core.Export(array, device, stream).__cuda_array_interface__)
        with cuda.gpus[device[1]]:
            return cuda.as_cuda_array(shown, sync=False)  # bound to the stream on which it is ready

    return import_into("Numba", array, importer)


# ---- CUDA graphs ----


class _Memory:
    """What a block has allocated. It is freed on its device, whichever thread lets go of it."""

    def __init__(self, cuda: Any, device: int) -> None:
        self._cuda, self._device = cuda, device
        self.kept: list[Any] = []

    def __del__(self) -> None:
        if self.kept:
            with contextlib.suppress(Exception), self._cuda.gpus[self._device]:  # as the process ends, Numba is gone
                self.kept.clear()


class _Allocate:
    """What stands before the `memalloc` of Numba's memory manager, and keeps what threads that capture allocate."""

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        self._allocate = allocate
        self.kept: dict[int, list[Any]] = {}  # by thread

    def __call__(self, size: int) -> Any:
        memory = self._allocate(size)
        kept = self.kept.get(threading.get_ident())
        if kept is not None:
            kept.append(memory)
        return memory


_lock = threading.Lock()  # of who stands before `memalloc`


def _stream(cuda: Any, device: int, stream: Any) -> Any:
    with cuda.gpus[device]:
        own = cuda.external_stream(stream.ptr)
    own.cuda_stream = own.ptr = stream.ptr  # by which torch and CuPy know one
    own.named_by = stream
    return own


@contextlib.contextmanager
def _captured(cuda: Any, capturing: Capturing) -> Iterator[None]:
    # Numba has no current stream to be told: kernels are given the capture's. Its memory is no pool's: what the block
    # allocates, the graph keeps.
    thread, memory = threading.get_ident(), _Memory(cuda, capturing.capture.device)
    capturing.kept.append(memory)
    with cuda.gpus[capturing.capture.device], cuda.defer_cleanup():
        manager = cuda.current_context().memory_manager
        with _lock:
            allocate = vars(manager).get("memalloc")
            if not isinstance(allocate, _Allocate):
                allocate = manager.memalloc = _Allocate(manager.memalloc)
            allocate.kept[thread] = memory.kept
        try:
            yield
        finally:
            with _lock:
                del allocate.kept[thread]
                if not allocate.kept:
                    del manager.memalloc


LIBRARY = Library(
    name="numba",
    module="numba.cuda",
    owns=lambda cuda, x: getattr(type(x), "__cuda_ndarray__", False),
    take=_take,
    install="pip install 'numba-cuda[cu13]' (or [cu12])",
    on_host=False,
    to_device=lambda cuda, array, device: cuda.to_device(array),
    to_numpy=lambda x: x.copy_to_host(),
    has_cuda=lambda cuda: cuda.is_available(),
    stream=lambda cuda: "the default stream",
    streams=Streams(
        current=lambda cuda, device: _default_stream(),
        on=None,
        device=lambda cuda: cuda.get_current_device().id,
        device_of=lambda x: _core.asarray(x, FUNCTION).__dlpack_device__()[1],
        within=lambda cuda, device: cuda.gpus[device],
    ),
    captures=Captures(takes_part=lambda cuda: cuda.is_available(), within=_captured, stream=_stream),
)
