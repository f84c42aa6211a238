"""Many calls with the arrays of one library, and memory that is as it was: `python tests/soak.py calls`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interop
from helpers import device, dlpack, libraries, machine

# ---- whose arrays ----

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


# ---- what is flat ----

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
