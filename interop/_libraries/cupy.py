"""Streams by handle, as CuPy takes them."""

from __future__ import annotations

from typing import Any

__all__ = ["cupy_stream"]


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
