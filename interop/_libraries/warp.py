"""Warp."""

from __future__ import annotations

from typing import Any

from interop import _core
from interop._core import Array
from interop._libraries.base import Target, host_or_gpu, import_into

__all__ = ["TARGET"]


def _take(warp: Any, array: Array, stream: int | None) -> Any:
    warp.init()  # which Warp leaves to whoever first needs it
    export = _core.Export(array, host_or_gpu(array), stream, to_immutable=True)
    return import_into("Warp", array, lambda: warp.from_dlpack(export))


TARGET = Target(name="warp", module="warp", owns=lambda warp, x: isinstance(x, warp.array), take=_take)
