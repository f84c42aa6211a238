"""Functions under torch's compiler: what it makes of them, counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Compiled:
    """A function as `torch.compile` has it. `graphs` are those that were compiled, `breaks` the reasons for others."""

    def __init__(self, torch: Any, function: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> None:
        import torch._dynamo.testing

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self._torch = torch
        self._counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        self._call = torch.compile(function, backend=self._counter, **{"fullgraph": True, **options})

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **named)

    @property
    def graphs(self) -> int:
        return int(self._counter.frame_count)

    @property
    def breaks(self) -> list[str]:
        return list(self._torch._dynamo.utils.counters["graph_break"])

    @property
    def operators(self) -> set[str]:
        """What the graphs call, such as "interop.matmul"."""
        nodes = [node for graph in self._counter.graphs for node in graph.graph.nodes]
        return {str(node.target) for node in nodes if node.op.startswith("call_")}
