"""PyTorch."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from typing import Any

import numpy as np

from interop import _core
from interop._core import Array
from interop._libraries.base import CUDA, Captures, Capturing, Library, Streams, host_or_gpu, import_into, refuse_layout

__all__ = ["LIBRARY"]


def _take(torch: Any, array: Array, stream: int | None) -> Any:
    if any(step < 0 for step in array.strides):
        remedy = "copy it first, with interop.copy(x)"
        refuse_layout("torch", "has no negative strides", array, remedy)
    device = host_or_gpu(array)
    export = _core.Export(array, device, stream)
    if stream is None and device[0] == CUDA:  # torch says on which it takes it
        return import_into("torch", array, lambda: torch.from_dlpack(export))
    return import_into("torch", array, lambda: torch.from_dlpack(export.__dlpack__(max_version=(1, 0))))


def _borrow(torch: Any, array: Array) -> Any:
    return torch.from_dlpack(array.__dlpack__(stream=-1 if array.device != "cpu" else None, max_version=(1, 0)))


# ---- promotion ----


def _promoted(in_float: bool, *operands: Any) -> str:
    """Do as `torch.result_type`, of which the tensors would be made where a mode of the caller's says."""
    torch = sys.modules["torch"]
    default = torch.get_default_dtype()
    of_kinds = {"b": torch.bool, "i": torch.int64, "u": torch.int64, "f": default, "c": default.to_complex()}
    common: dict[int, Any] = {}  # of arrays, of 0-d ones, and of scalars
    for x in operands:
        dtype = getattr(torch, x[0]) if isinstance(x, tuple) else of_kinds[np.result_type(x).kind.replace("V", "f")]
        rank = int(x[1]) if isinstance(x, tuple) else 2
        common[rank] = torch.promote_types(common[rank], dtype) if rank in common else dtype
    result, *weaker = (common[rank] for rank in sorted(common))
    for lower in weaker:
        result = _beside(torch, result, lower)
    if in_float and not (result.is_floating_point or result.is_complex):
        result = default
    return str(result).removeprefix("torch.")


def _beside(torch: Any, dtype: Any, weaker: Any) -> Any:
    """Return what torch makes of a dtype beside one that takes part by its kind alone."""
    if dtype.is_complex or dtype.is_floating_point:
        return dtype.to_complex() if weaker.is_complex else dtype
    if weaker.is_complex or weaker.is_floating_point:
        return weaker
    return torch.promote_types(dtype, weaker) if dtype == torch.bool else dtype


# ---- streams ----


def _on(torch: Any, device: int, handle: int, named_by: Any) -> Any:
    if isinstance(named_by, torch.cuda.Stream):
        return torch.cuda.stream(named_by)
    if handle == 1:  # of which torch takes no handle
        return torch.cuda.stream(torch.cuda.default_stream(device))
    return torch.cuda.stream(_external(torch, device, handle))


@functools.lru_cache(maxsize=64)
def _external(torch: Any, device: int, handle: int) -> Any:
    """Return the stream of a handle, which the object does not own."""
    return torch.cuda.ExternalStream(handle, device)


# ---- CUDA graphs ----


class _Recording:
    """A capture by torch's own graph, which sees to the memory and the random numbers of torch's operations."""

    def __init__(self, torch: Any, capturing: Capturing) -> None:
        self._torch, self._capture = torch, capturing.capture
        self._pool = capturing.pool.setdefault("torch", torch.cuda.graph_pool_handle())
        self._graph = torch.cuda.CUDAGraph()

    def begin(self) -> None:
        self._graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")

    def end(self) -> None:
        try:
            self._end()
        except RuntimeError as error:
            self.drop()
            raise _core.CudaError(f"interop.graph: torch ends the capture: {str(error).strip()}") from error

    def _end(self) -> None:
        capture = self._capture
        with _on(self._torch, capture.device, capture.stream, None):  # which the block may have changed
            self._graph.capture_end()

    def drop(self) -> None:
        # torch's allocator serves a capture until torch has ended it, and it can only end one that is whole: so it is
        # given another, which is empty.
        self._capture.drop()
        self._capture.begin()
        try:
            with warnings.catch_warnings(), contextlib.suppress(RuntimeError):  # torch has ended it, and made no graph
                warnings.simplefilter("ignore")  # that it is empty
                self._end()
        finally:
            self._capture.drop()
        self._graph.reset()

    def replay(self, stream: int, is_current: bool) -> None:
        if is_current:
            self._graph.replay()
            return
        with _on(self._torch, self._capture.device, stream, None):
            self._graph.replay()


LIBRARY = Library(
    name="torch",
    module="torch",
    owns=lambda torch, x: isinstance(x, torch.Tensor),
    take=_take,
    borrow=_borrow,
    install="pip install 'interop-dlpack[torch]'",
    to_device=lambda torch, array, device: torch.from_numpy(array).to(device),
    to_numpy=lambda x: x.cpu().numpy(),
    has_cuda=lambda torch: torch.cuda.is_available(),
    stream=lambda torch: f"torch's current stream, {torch.cuda.current_stream().cuda_stream:#x}",
    streams=Streams(
        current=lambda torch, device: torch.cuda.current_stream(device).cuda_stream or 1,
        on=_on,
        device=lambda torch: torch.cuda.current_device(),
        device_of=lambda x: x.get_device() if x.is_cuda else -1,
    ),
    captures=Captures(
        takes_part=lambda torch: torch.cuda.is_available(),
        within=lambda torch, capturing: _on(torch, capturing.capture.device, capturing.capture.stream, None),
        recording=_Recording,
    ),
    promoted=_promoted,
    configuration=lambda: sys.modules["torch"].get_default_dtype(),
)
