"""Many threads that call with arrays of two libraries, on streams of each: `python tests/soak.py threads`."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import interop
from helpers import device, libraries


@dataclass(frozen=True)
class Case:
    """A product of whole numbers: every way of computing it gives the same."""

    x: np.ndarray
    y: np.ndarray
    expected: np.ndarray


def draw_cases(seed: int) -> list[Case]:
    """Return products of some small shapes, and of one that cuBLAS computes in a workspace of the call."""
    shapes = np.random.default_rng(seed)
    sizes = [tuple(shapes.integers(1, 65, 3)) for _ in range(20)] + [(64, 2048, 64)] * 2  # few: JAX compiles each
    cases = []
    for m, k, n in sizes:
        x, y = (shapes.integers(-3, 4, shape).astype("float32") for shape in ((m, k), (k, n)))
        cases.append(Case(x, y, x @ y))
    return cases


class Place:
    """One library with streams of its own on one card, or on the host. Made once, used by all threads."""

    def __init__(self, library: libraries.Library, card: int, streams: int) -> None:
        self.library = library
        self.card = card
        self.name = library.name if library.device == "cuda" else ""  # "": no card and no streams to look after
        with self.on_card():
            self.streams = [self._new_stream() for _ in range(streams)]

    def _new_stream(self) -> Any:
        module = self.library.module
        if self.name == "torch":
            return module.cuda.Stream(self.card)
        if self.name == "cupy":
            return module.cuda.Stream(non_blocking=True)
        if self.name == "numba":
            return module.external_stream(device.new_stream(self.card))
        return None  # JAX has one of its own

    @contextlib.contextmanager
    def on_card(self) -> Iterator[None]:
        module = self.library.module
        if self.name == "torch":
            with module.cuda.device(self.card):
                yield
        elif self.name == "cupy":
            with module.cuda.Device(self.card):
                yield
        elif self.name == "numba":
            with module.gpus[self.card]:
                yield
        else:
            yield

    @contextlib.contextmanager
    def current(self, stream: Any) -> Iterator[None]:
        """Make the stream the one that the library works on. Numba's arrays are bound to theirs instead."""
        if stream is None or self.name == "numba":
            yield
        else:
            with self.library.module.cuda.stream(stream) if self.name == "torch" else stream:
                yield

    def make(self, x: np.ndarray, stream: Any) -> Any:
        if self.name == "torch":
            return self.library.module.from_numpy(x).to(f"cuda:{self.card}")
        if self.name == "jax":
            return self.library.module.device_put(x, self.library.module.devices("cuda")[self.card])
        return self.library.bind(x, stream) if self.name == "numba" else self.library.make(x)

    def values(self, c: Any, stream: Any) -> np.ndarray:
        """Return the values once `stream`, and nothing but that, has come so far."""
        if self.name == "numba":
            with libraries.quiet():
                seen = c.copy_to_host(stream=stream)
            stream.synchronize()
            return seen
        return self.library.to_numpy(c)


class Tally:
    """What the threads did."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.first = ""

    def note(self, calls: Counter[str], wrong: Counter[str], first: str) -> None:
        with self.lock:
            self.calls += calls
            self.wrong += wrong
            self.first = self.first or first


def one_call(lead: Place, other: Place, case: Case, draw: random.Random) -> str:
    """Compute one product on streams of the two; "" if it is right."""
    stream = draw.choice(lead.streams)
    theirs = stream if other is lead else draw.choice(other.streams)
    with lead.on_card(), other.on_card(), other.current(theirs):
        b = other.make(case.y, theirs)
        with lead.current(stream):
            # Both streams are current in their libraries: the product waits for `theirs`, which waits for it in turn.
            a = lead.make(case.x, stream)
            c = interop.matmul(a, b)
            del a, b
            seen = lead.values(c, stream)
    if np.array_equal(seen, case.expected):
        return ""
    return f"{case.x.shape} @ {case.y.shape} is wrong in {np.sum(seen != case.expected)} places"


def work(index: int, end: float, places: dict[int, list[Place]], cases: list[Case], tally: Tally) -> None:
    draw = random.Random(index)
    calls: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    first = ""
    while time.monotonic() < end:
        card = draw.choice(list(places))
        lead, other = draw.choice(places[card]), draw.choice(places[card])
        name = lead.library.name if other is lead else f"{lead.library.name} x {other.library.name}"
        try:
            fault = one_call(lead, other, draw.choice(cases), draw)
        except Exception:
            fault = traceback.format_exc()
        calls[name] += 1
        if fault:
            wrong[name] += 1
            first = first or f"{name} on card {card}: {fault}"
    tally.note(calls, wrong, first)


def soak_threads(places: dict[int, list[Place]], seconds: float, threads: int) -> int:
    """Run the threads, print what they did, and return the exit status."""
    tally = Tally()
    cases = draw_cases(0)
    start = time.monotonic()
    arguments = (start + seconds, places, cases, tally)
    workers = [threading.Thread(target=work, args=(i, *arguments), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0, start + seconds + 120 - time.monotonic()))
    hung = sum(worker.is_alive() for worker in workers)
    elapsed = time.monotonic() - start
    for name, count in sorted(tally.calls.items()):
        print(f"{name:<20}{count:>9} calls {tally.wrong[name]:>5} wrong")
    wrong = tally.wrong.total()
    made = tally.calls.total()
    print(f"{made} calls, {made / elapsed:.0f} a second, {wrong} wrong, {hung} threads hung")
    if tally.first:
        print(tally.first.rstrip()[-3000:])
    held = not device.eventually(lambda: interop._core.held_count() == 0)
    if held:
        print(f"{interop._core.held_count()} inputs are still held")
    sys.stdout.flush()
    if hung:
        os._exit(1)  # a thread that hangs would hang the exit, too
    return int(bool(wrong or held or not made))
