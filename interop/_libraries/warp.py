"""Warp."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from interop import _core
from interop._core import Array
from interop._libraries.base import Captures, Capturing, Streams, Target, host_or_gpu, import_into

__all__ = ["TARGET"]


def _take(warp: Any, array: Array, stream: int | None) -> Any:
    warp.init()  # which Warp leaves to whoever first needs it
    export = _core.Export(array, host_or_gpu(array), stream, to_immutable=True)
    return import_into("Warp", array, lambda: warp.from_dlpack(export))


def _on(warp: Any, device: int, handle: int, named_by: Any) -> Any:
    stream = warp.Stream(f"cuda:{device}", cuda_stream=None if handle == 1 else handle)  # None is the default stream
    return warp.ScopedStream(stream, sync_enter=False)


@contextlib.contextmanager
def _captured(warp: Any, capturing: Capturing) -> Iterator[None]:
    capture = capturing.capture
    with _on(warp, capture.device, capture.stream, capturing.stream):
        stream = warp.get_stream(f"cuda:{capture.device}")
        warp.capture_begin(stream=stream, external=True)
        try:
            yield
        except BaseException:
            with contextlib.suppress(RuntimeError):  # of a capture that has failed
                warp.capture_end(stream=stream)
            raise
        capturing.kept.append(warp.capture_end(stream=stream))


TARGET = Target(
    name="warp",
    module="warp",
    owns=lambda warp, x: isinstance(x, warp.array),
    take=_take,
    streams=Streams(
        current=lambda warp, device: warp.get_stream(f"cuda:{device}").cuda_stream or 1,
        on=_on,
        device=lambda warp: warp.get_device().ordinal,
        device_of=lambda x: x.device.ordinal if x.device.is_cuda else -1,
    ),
    captures=Captures(takes_part=lambda warp: warp.is_cuda_available(), within=_captured),
)
