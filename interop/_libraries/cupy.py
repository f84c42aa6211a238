"""CuPy."""

from __future__ import annotations

from typing import Any

from interop._core import Array
from interop._libraries.base import Export, Library, gpu, import_into

__all__ = ["LIBRARY", "cupy_stream"]


def _take(cupy: Any, array: Array, stream: int | None) -> Any:
    export = Export(array, gpu("CuPy", array, "copy it to the GPU with cupy.asarray(x)"), stream)
    return import_into("CuPy", array, lambda: cupy.from_dlpack(export))


# ---- streams by handle ----


class _Handle:
    """A CUDA stream that someone else owns, by the stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


def cupy_stream(handle: int, device: int) -> Any:
    """Return CuPy's stream of a handle: a context manager that makes it CuPy's current stream of the current device."""
    from cupy.cuda import ExternalStream, Stream

    if hasattr(Stream, "from_external"):  # CuPy 14, which deprecates the other
        return Stream.from_external(_Handle(handle))
    return ExternalStream(handle, device)


LIBRARY = Library(
    name="cupy",
    module="cupy",
    owns=lambda cupy, x: isinstance(x, cupy.ndarray),
    take=_take,
    install="pip install 'interop-dlpack[cu13]' (or [cu12])",
    on_host=False,
    to_device=lambda cupy, array, device: cupy.asarray(array),
    to_numpy=lambda x: x.get(),
    has_cuda=lambda cupy: cupy.cuda.is_available(),
    stream=lambda cupy: f"CuPy's current stream, {cupy.cuda.get_current_stream().ptr:#x}",
)
