"""How calls are timed: on the host, by replay of a CUDA graph, and by events."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import interop
from interop._cuda import nvrtc

__all__ = [
    "BLOCKS",
    "Candidates",
    "NamedStream",
    "Row",
    "bind",
    "block",
    "device_times",
    "event_time",
    "has_compiler",
    "host_times",
    "torch_stream_in_cupy",
    "try_import",
    "warm_up",
]

Row = dict[str, Any]


Candidates = dict[str, Callable[[], Any]]


def try_import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError:
        return None


class NamedStream:
    """A stream by its handle, as `cuda.core` and CuPy take it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def torch_stream_in_cupy(torch: Any, cupy: Any) -> Any:
    """Return torch's current stream as one of CuPy's, which `with` makes current."""
    stream = NamedStream(torch.cuda.current_stream().cuda_stream)
    if hasattr(cupy.cuda.Stream, "from_external"):  # CuPy 14, which deprecates the other
        return cupy.cuda.Stream.from_external(stream)
    return cupy.cuda.ExternalStream(stream.handle)


def has_compiler() -> bool:
    """Is there what expressions are compiled by? Says so where not."""
    try:
        nvrtc.versions()
    except interop.CudaError as error:
        print(f"interop.elementwise: skipped: {error}")
        return False
    return True


def bind(function: Callable[..., Any], a: Any, b: Any, out: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(a, b, out=out, **options)


# ---- host time per call ----


BLOCKS = 7
_WARM_UP, _CALLS = 200, 500


def host_times(candidates: Candidates, synchronize: Callable[[], None]) -> dict[str, float]:
    """Return microseconds per call of each candidate: the best of seven blocks, the candidates interleaved."""
    best = dict.fromkeys(candidates, math.inf)
    for function in candidates.values():
        for _ in range(_WARM_UP):
            function()
    synchronize()
    for _ in range(BLOCKS):
        for name, function in candidates.items():
            best[name] = min(best[name], block(function, _CALLS))
            synchronize()
    return best


def block(function: Callable[[], Any], calls: int) -> float:
    """Return the microseconds of one call, of this many in a row."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        function()
    return (time.perf_counter_ns() - start) / calls / 1000


# ---- device time ----


def warm_up(torch: Any) -> None:
    """Bring the clocks up: three seconds of products."""
    x = torch.rand(4096, 4096, device="cuda")
    started = time.perf_counter()
    while time.perf_counter() - started < 3:
        x @ x
        torch.cuda.synchronize()


def _graph_timer(torch: Any, calls: list[Callable[[], Any]]) -> Callable[[], float]:
    """Capture the calls in a CUDA graph; the function returned replays it and gives the seconds of one call."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # JAX's threads would break a global capture
        for call in calls:
            call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replay() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / len(calls)

    return replay


def device_times(torch: Any, candidates: dict[str, list[Callable[[], Any]]], seconds: float = 0.6) -> dict[str, float]:
    """Return the median seconds per call of each candidate, the candidates interleaved for so many seconds."""
    timers = {name: _graph_timer(torch, calls) for name, calls in candidates.items()}
    for timer in timers.values():
        timer()
    samples: dict[str, list[float]] = {name: [] for name in timers}
    started = time.perf_counter()
    names = list(timers)
    while len(samples[names[0]]) < 6 or (time.perf_counter() - started < seconds and len(samples[names[0]]) < 60):
        for name in names + names[::-1]:
            samples[name].append(timers[name]())
    return {name: statistics.median(values) for name, values in samples.items()}


def event_time(torch: Any, call: Callable[[], Any], repeats: int) -> float:
    """Return the median seconds of a call on torch's current stream, of calls in a row: bound by the host if short."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    samples = []
    for _ in range(6):
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / repeats)
    return float(statistics.median(samples[1:]))
