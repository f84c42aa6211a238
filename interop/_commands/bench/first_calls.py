"""The host's time for the first product of a shape: what planning costs that nothing has been kept for."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import interop
from interop._commands.bench.measure import Row

__all__ = ["run"]

_LEAST, _MOST = 512, 1500
_COUNT = 100  # shapes for each library
_CALLS_BEFORE_A_WAIT = 20


def run(torch: Any, device: str = "cuda") -> Iterable[Row]:
    """Time products of shapes that change with each call, interop's and torch's in turn; no shape comes twice."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    print(f"{f'first call of a shape of {_LEAST} to {_MOST}':<42}{'us':>8}{'ratio':>8}{'mean, us':>12}")
    for dtype in (torch.float32, torch.float16):
        values = torch.rand(_MOST * _MOST, device=device).to(dtype)
        name = str(dtype).removeprefix("torch.")
        peer, own = f"torch.matmul, {name}", f"interop.matmul on torch, {name}"
        times = _first_calls({peer: torch.matmul, own: interop.matmul}, values, wait)
        for row, samples in times.items():
            median, mean = statistics.median(samples), statistics.mean(samples)
            ratio = median / statistics.median(times[peer])
            print(f"{row:<42}{median:>8.2f}{ratio:>8.2f}{mean:>12.2f}")
            yield {"row": f"{row}: first call of a shape", "microseconds": median, "ratio": ratio, "beside_launch": ""}


def _first_calls(
    functions: dict[str, Callable[[Any, Any], Any]], values: Any, wait: Callable[[], None]
) -> dict[str, list[float]]:
    """Return the microseconds of each first call; the libraries have shapes of their own, as cuBLASLt keeps some."""
    choose = random.Random(1)
    shapes: set[tuple[int, ...]] = set()
    while len(shapes) < len(functions) * (_COUNT + 1):
        shapes.add(tuple(choose.randrange(_LEAST, _MOST) for _ in range(3)))
    times: dict[str, list[float]] = {name: [] for name in functions}
    ahead = iter(sorted(shapes, key=lambda _: choose.random()))
    for i in range(_COUNT + 1):  # the first of all makes ready what every product needs
        for name, function in functions.items():
            m, n, k = next(ahead)
            a, b = values[: m * k].reshape(m, k), values[: k * n].reshape(k, n)
            start = time.perf_counter_ns()
            function(a, b)
            if i > 0:
                times[name].append((time.perf_counter_ns() - start) / 1000)
        if i % _CALLS_BEFORE_A_WAIT == 0:
            wait()
    return times
