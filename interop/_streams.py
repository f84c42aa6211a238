"""What `stream=` takes."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["StreamLike"]


class _HasCudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...


StreamLike = int | _HasCudaStream | Any  # Any: objects with `.cuda_stream` (torch) or `.ptr` (CuPy)
