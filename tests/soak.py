"""Many calls, many threads and many streams: what shows only after a long time.

    python tests/soak.py calls                             a million calls with the arrays of each library
    python tests/soak.py calls --library torch-cuda --library cupy-cuda --count 100000
    python tests/soak.py calls --library jax-cuda --control      what the library's own product does in its place
    python tests/soak.py threads                           8 threads x 8 streams x every card, for a minute
    python tests/soak.py threads --seconds 600 --library torch-cuda
    python tests/soak.py streams                           10000 results of every function, used on side streams
    python tests/soak.py streams --library torch-cuda --function matmul --count 100000

`calls` requires that memory is as it was: of the process, of Python and of the GPU, with nothing held and every export
given back. First the result of each call is dropped; then the inputs are deleted right after each call, their memory is
written anew at once, and the values are checked. Memory of the GPU is that of the whole card: run nothing else there.

`threads` mixes the libraries: each iteration has arrays of two, on any streams, on any card, and checks the product.

`streams` makes each result on one stream and reads it on another, which is held up; it drops the result, with
`record_stream` where torch made it, takes blocks of its size straight after and fills them, and requires that what was
read is right (`helpers/side_streams.py`).

Without a GPU all three run over the libraries on the host, where results are read late instead of on another stream.
The exit status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import itertools
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # before JAX starts: it would take most of the GPU

import numpy as np
import pytest
from helpers import device, dlpack, libraries, machine, side_streams

import interop

# ---- calls: whose arrays ----

N = 16


class Producer(dlpack.Fake):
    """An array that has DLPack and nothing else. It keeps no notes: those of a million calls would be a leak."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **_: Any) -> Any:
        return self.capsule(versioned=max_version is not None)


@dataclass(frozen=True)
class Subject:
    """The arrays of one library: `make(x)` gives a new one with these values, `values` reads a result."""

    name: str
    make: Callable[[np.ndarray], Any]
    values: Callable[[Any], np.ndarray]
    product: Callable[[Any, Any], Any]


def own_product(kind: str, module: Any) -> Callable[[Any, Any], Any]:
    """Return the library's own product, for a run that shows what grows without interop."""
    if kind == "jax":
        import jax

        return jax.jit(jax.numpy.matmul)
    return module.matmul


def subject(name: str, control: bool = False) -> Subject:
    """Return the subject of this name; skip, as the tests do, where the machine lacks something."""
    kind, _, place = name.partition("-")
    if control and kind not in ("numpy", "torch", "jax", "cupy"):
        pytest.skip("it has no product of its own")
    if kind not in ("dlpack", "cai", "interop"):
        library = libraries.by_name(kind, place)
        product = own_product(kind, library.module) if control else interop.matmul
        if kind == "jax":  # `make` sees to 64-bit types, which takes long
            put, target = library.module.device_put, library.module.devices(place)[0]
            return Subject(name, lambda x: put(x.copy(), target), library.to_numpy, product)
        return Subject(name, library.make, library.to_numpy, product)
    memory = memory_of(place)
    one = Producer(memory.make(np.eye(N, dtype="float32")))
    wrap = {"dlpack": Producer, "cai": dlpack.Cai, "interop": lambda x: interop.matmul(Producer(x), one)}[kind]
    # Of arrays of no library the product is an interop.Array.

    def values(c: Any) -> np.ndarray:
        return memory.to_numpy(interop.convert(c, memory.name))

    return Subject(name, lambda x: wrap(memory.make(x)), values, interop.matmul)


def memory_of(place: str) -> libraries.Library:
    """Return the library in whose memory the arrays of no library lie."""
    if place == "cpu":
        return libraries.by_name("numpy")
    try:
        return libraries.by_name("cupy", "cuda")
    except pytest.skip.Exception:
        return libraries.by_name("torch", "cuda")


HOST = ("numpy-cpu", "torch-cpu", "jax-cpu", "dlpack-cpu", "interop-cpu")
DEVICE = ("cupy-cuda", "torch-cuda", "jax-cuda", "numba-cuda", "cai-cuda", "dlpack-cuda", "interop-cuda")


def names_here() -> tuple[str, ...]:
    return HOST + DEVICE if machine.gpu_count() else HOST


# ---- calls: what is flat ----

MIB = 1 << 20
BYTES_ALLOWED = 8 * MIB  # 8 bytes for each of a million calls; JAX's own product grows by up to 5 MiB (--control)
BLOCKS_ALLOWED = 600  # of Python's memory, and one more for each thousand calls; up to 350 come, of any count of calls


@dataclass(frozen=True)
class Memory:
    """What is in use, in bytes and in blocks."""

    process: int
    python: int
    card: int

    @classmethod
    def now(cls) -> Memory:
        """Read it once all work is done and nothing is held."""
        if machine.gpu_count():
            device.synchronize()
        device.eventually(lambda: interop._core.held_count() == 0, 60)
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what is free is not in use
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGE_SIZE"),
            sys.getallocatedblocks(),
            -device.free_bytes() if machine.gpu_count() else 0,
        )

    def growth(self, before: Memory) -> Memory:
        return Memory(self.process - before.process, self.python - before.python, self.card - before.card)

    def faults(self, count: int) -> list[str]:
        """Say what of this growth, over `count` calls, is too much."""
        found = []
        if self.process > BYTES_ALLOWED:
            found.append(f"the process has grown by {self.process / MIB:.1f} MiB")
        if self.python > BLOCKS_ALLOWED + count // 1000:
            found.append(f"Python has {self.python} blocks more")
        if self.card > BYTES_ALLOWED:
            found.append(f"the card has {self.card / MIB:.1f} MiB less")
        return found


class WrongValueError(Exception):
    """A product is not what it must be."""


def dropping(arrays: Subject) -> Iterator[None]:
    """Call once for each step, and drop the result."""
    a, b = (arrays.make(np.full((N, N), value, "float32")) for value in (2, 3))
    matmul = arrays.product
    c = matmul(a, b)
    if not (arrays.values(c) == 6 * N).all():
        raise WrongValueError(f"{arrays.name}: {arrays.values(c)[0, 0]} instead of {6 * N}")
    while True:
        c = matmul(a, b)
        yield


CHECK_EVERY = 97  # prime, so that it keeps no step with an allocator's own count


def deleting(arrays: Subject) -> Iterator[None]:
    """Call once for each step, delete the inputs at once, and have their library write to their memory."""
    values = [np.full((N, N), value, "float32") for value in range(1, 8)]
    poison = np.full((N, N), -1000, "float32")
    for i in itertools.count():
        a, b = arrays.make(values[i % 7]), arrays.make(values[i % 5])
        c = arrays.product(a, b)
        del a, b
        junk = arrays.make(poison), arrays.make(poison)
        if i % CHECK_EVERY == 0:
            seen, expected = arrays.values(c), N * (i % 7 + 1) * (i % 5 + 1)
            if not (seen == expected).all():
                raise WrongValueError(f"{arrays.name}: after {i} calls {seen[0, 0]} instead of {expected}")
        del junk
        yield


VARIANTS = {"dropped": dropping, "deleted": deleting}


def soak_calls(arrays: Subject, variant: str, count: int, seconds: float) -> list[str]:
    """Make the calls, print a line, and return what was wrong."""
    steps = VARIANTS[variant](arrays)
    exports, strays = dlpack.exports_out(), dlpack.stray_deletes()

    def go(count: int, end: float) -> tuple[int, int]:
        """Return how many calls were made until the end, and the most inputs that were held."""
        made = held = 0
        while made < count and time.monotonic() < end:
            chunk = min(1000, count - made)
            for _ in itertools.islice(steps, chunk):
                pass
            made += chunk
            held = max(held, interop._core.held_count())
        return made, held

    faults = []
    start = time.monotonic()
    made = held = 0
    grown = Memory(0, 0, 0)
    try:
        go(max(count // 100, 200), start + seconds)  # allocators, caches and threads come to what they need
        before = Memory.now()
        start = time.monotonic()
        made, held = go(count, start + seconds)
        elapsed = time.monotonic() - start
        grown = Memory.now().growth(before)
        faults += grown.faults(made)
    except WrongValueError as error:
        elapsed = time.monotonic() - start
        faults.append(str(error))
    steps.close()
    gc.collect()
    if not device.eventually(lambda: interop._core.held_count() == 0):
        faults.append(f"{interop._core.held_count()} inputs are still held")
    if not device.eventually(lambda: dlpack.exports_out() == exports, 5):
        faults.append(f"{dlpack.exports_out() - exports} exports were not given back")
    if dlpack.stray_deletes() != strays:
        faults.append(f"{dlpack.stray_deletes() - strays} exports were given back twice")
    print(
        f"{arrays.name:<14}{variant:<9}{made:>9} calls {elapsed / max(made, 1) * 1e6:>7.1f} us each, "
        f"grown: {grown.process / 1024:>7.0f} KiB, {grown.python:>4} blocks, card {grown.card / 1024:>6.0f} KiB, "
        f"most held {held}: " + ("; ".join(faults) or "ok"),
        flush=True,
    )
    return faults


def calls(names: list[str], variants: list[str], count: int, seconds: float, control: bool = False) -> int:
    wrong = False
    for name in names or names_here():
        try:
            arrays = subject(name, control)
        except pytest.skip.Exception as reason:
            print(f"{name:<14}skipped: {reason}")
            continue
        for variant in variants:
            wrong |= bool(soak_calls(arrays, variant, count, seconds))
    return int(wrong)


# ---- threads ----


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


def threads(names: list[str], seconds: float, count: int, streams: int) -> int:
    every = {repr(library): library for library in libraries.HOST + libraries.DEVICE}
    found = []
    for library in map(every.get, names or map(repr, libraries.DEVICE if machine.gpu_count() else libraries.HOST)):
        try:
            library.load()
        except pytest.skip.Exception as reason:
            print(f"{library!r}: skipped: {reason}")
            continue
        found.append(library)
    if not found:
        print("none of these libraries is here")
        return 1
    cards = list(range(machine.gpu_count())) or [0]
    places = {card: [Place(library, card, streams) for library in found] for card in cards}
    where = f"cards {cards}, {streams} streams of each library on each" if machine.gpu_count() else "the host"
    print(f"{count} threads, {seconds:g} s, {', '.join(map(repr, found))}, on {where}", flush=True)
    return soak_threads(places, seconds, count)


# ---- streams ----


def streams(names: list[str], functions: list[str], count: int) -> int:
    wrong, made = False, 0
    every = {repr(library): library for library in libraries.HOST + libraries.DEVICE if library.name != "numba"}
    here = [name for name, library in every.items() if machine.gpu_count() or library.device == "cpu"]
    for name in names or here:
        try:
            every[name].load()
        except pytest.skip.Exception as reason:
            print(f"{name:<14}skipped: {reason}")
            continue
        place = side_streams.place_of(every[name])
        works = side_streams.works(place)
        for function in works if not functions else [function for function in functions if function in works]:
            start = time.monotonic()
            try:
                fault = side_streams.soak(place, works[function], count, random.Random(function))
            except Exception:
                fault = traceback.format_exc()
                place.read.clear()
            if not device.eventually(lambda: interop._core.held_count() == 0):
                fault = fault or f"{interop._core.held_count()} inputs are still held"
            elapsed = (time.monotonic() - start) / count
            print(
                f"{name:<14}{function:<20}{count:>9} results {elapsed * 1e6:>7.1f} us each: {fault or 'ok'}", flush=True
            )
            wrong |= bool(fault)
            made += 1
    if not made:
        print("no such function of these libraries is here")
    return int(wrong or not made)


# ---- the command ----


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    many = what.add_parser("calls", help="a million calls, and flat memory")
    many.add_argument("--library", action="append", default=[], choices=HOST + DEVICE, help="may be repeated; all")
    many.add_argument("--variant", action="append", default=[], choices=VARIANTS, help="may be repeated; both")
    many.add_argument("--count", type=int, default=1_000_000, help="calls of each")
    many.add_argument("--seconds", type=float, default=3600, help="the most that each takes")
    many.add_argument("--control", action="store_true", help="the library's own product instead: what grows without us")
    wide = what.add_parser("threads", help="many threads, and right values")
    every = [repr(library) for library in libraries.HOST + libraries.DEVICE]
    wide.add_argument("--library", action="append", default=[], choices=every, help="may be repeated; all")
    wide.add_argument("--seconds", type=float, default=60)
    wide.add_argument("--threads", type=int, default=8)
    wide.add_argument("--streams", type=int, default=8, help="of each library, on each card")
    aside = what.add_parser("streams", help="results on side streams, and right values")
    placed = [name for name in every if "numba" not in name]
    aside.add_argument("--library", action="append", default=[], choices=placed, help="may be repeated; all")
    aside.add_argument("--function", action="append", default=[], help="by its name in what is printed; all")
    aside.add_argument("--count", type=int, default=10_000, help="results of each")
    options = parser.parse_args(arguments)
    if not machine.gpu_count():
        print("no GPU here: over the libraries on the host")
    if options.what == "calls":
        variants = options.variant or list(VARIANTS)
        return calls(options.library, variants, options.count, options.seconds, options.control)
    if options.what == "streams":
        return streams(options.library, options.function, options.count)
    return threads(options.library, options.seconds, options.threads, options.streams)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
