"""Calls of many threads at once, which share Python's lock: time between calls, of all threads together."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import interop
from interop._commands.bench.measure import Row

__all__ = ["run"]

_THREADS = 8
_SECONDS = 0.3
_ROUNDS = 5
_IN_A_ROW, _CALLS_BEFORE_A_WAIT = 20, 400

#: A call of each thread, by its number.
Call = Callable[[int], Any]


def run(torch: Any, device: str = "cuda") -> Iterable[Row]:
    """Time interop's calls beside torch's, by one thread and by eight, in turn; the median of the rounds."""
    x = torch.rand(16, 16, device=device)
    outs = [torch.empty_like(x) for _ in range(_THREADS)]
    contests: dict[str, tuple[Call, Call]] = {
        "add": (lambda i: torch.add(x, x), lambda i: interop.add(x, x)),
        "add(out=)": (lambda i: torch.add(x, x, out=outs[i]), lambda i: interop.add(x, x, out=outs[i])),
        "matmul": (lambda i: torch.matmul(x, x), lambda i: interop.matmul(x, x)),
    }
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    print(f"{f'time between calls of {_THREADS} threads':<42}{'us':>8}{'ratio':>8}{'of one, us':>12}")
    for what, (peer, own) in contests.items():
        samples: dict[tuple[str, int], list[float]] = {}
        for _ in range(_ROUNDS):
            for name, call in ((f"torch.{what}", peer), (f"interop.{what} on torch", own)):
                for count in (1, _THREADS):
                    samples.setdefault((name, count), []).append(_time_between_calls(call, count, wait))
        times = {key: statistics.median(values) for key, values in samples.items()}
        for name in dict.fromkeys(name for name, _ in times):
            together = times[name, _THREADS]
            ratio = together / times[f"torch.{what}", _THREADS]
            print(f"{name:<42}{together:>8.2f}{ratio:>8.2f}{times[name, 1]:>12.2f}")
            yield {"row": f"{name}, {_THREADS} threads", "microseconds": together, "ratio": ratio, "beside_launch": ""}


def _time_between_calls(call: Call, count: int, wait: Callable[[], None]) -> float:
    """Return the microseconds between two calls, whichever of the threads make them."""
    made = [0] * count
    stops = threading.Event()
    ready = threading.Barrier(count + 1)

    def work(i: int) -> None:
        for _ in range(_IN_A_ROW):
            call(i)
        ready.wait()
        while not stops.is_set():
            for _ in range(_IN_A_ROW):
                call(i)
            made[i] += _IN_A_ROW
            if made[i] % _CALLS_BEFORE_A_WAIT == 0:
                wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    start = time.perf_counter()
    time.sleep(_SECONDS)
    stops.set()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - start) / max(sum(made), 1) * 1e6
