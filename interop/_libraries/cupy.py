"""CuPy."""

from __future__ import annotations

from typing import Any

from interop import _core
from interop._core import Array
from interop._libraries.base import Library, gpu, import_into

__all__ = ["LIBRARY"]


def _take(cupy: Any, array: Array, stream: int | None) -> Any:
    # Managed memory is said to be plain memory of its GPU. Of DLPack's type for it CuPy makes the same array; but that
    # type's id is no GPU's, and CuPy would give the current stream of device 0.
    export = _core.Export(array, gpu("CuPy", array, "copy it to the GPU with cupy.asarray(x)"), stream)
    return import_into("CuPy", array, lambda: cupy.from_dlpack(export))


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
