"""Numba."""

from __future__ import annotations

import importlib
from typing import Any

from interop import _core
from interop._core import Array
from interop._libraries.base import FUNCTION, Library, Streams, gpu, import_into

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
)
