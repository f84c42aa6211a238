"""CUDA graphs that torch captures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def captured(torch: ModuleType, *, stream: Any = None, mode: str = "thread_local") -> Iterator[Any]:
    """The graph of what this thread does in the block, on `stream` or on one of torch's.

    The mode is not torch's default, "global": there a call of any thread breaks the capture, and JAX has threads that
    make such calls at any time. JAX's stream is broken by it too, for the rest of the process. A test of that mode runs
    in a process of its own (`alone.run`).
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
        yield graph
