"""Results that are used on another stream than the one they were made on, while their memory is asked back at once.

What `python tests/soak.py streams` does with the results of every function. A result is made on one stream and read on
a side stream, which is held up; it is dropped, and its library is asked for blocks of its size straight after, which
are filled with something else. Nobody waits but where the library says that its users must.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interop
from helpers import device, libraries, machine, user_functions

COLUMNS = 64
BATCH = 50  # results between two looks at what was read
HELD_UP_MS = 10  # longer than it takes to make a batch
JUNK = 3  # blocks that are asked for after each result: as many as were dropped


class Place:
    """The arrays of one library, on the host: with no streams, what is read is looked at later."""

    streams: tuple[Any, ...] = (None,)  # results are made on these
    sides: tuple[Any, ...] = (None,)  # and read on these
    rows: tuple[int, ...] = (2, 16, 100)

    def __init__(self, library: libraries.Library) -> None:
        self.library = library
        self.module = library.module
        if library.device == "cuda":
            self.rows = (16, 256, 4096)  # blocks of 4 KB to 1 MB
        self.read: list[Any] = []

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Make the stream the one that the library works on."""
        return contextlib.nullcontext()

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        return self.library.make(np.full(shape, value, dtype))

    def hold_up(self) -> None:
        """Keep the side streams from beginning."""

    def use(self, c: Any, made: Any, side: Any, is_its_own: bool) -> None:
        """Read all of `c` on the side stream, and do what the library wants before it may be dropped."""
        self.read.append(c[:])

    def extremes(self) -> list[tuple[float, float]]:
        """Return the least and the greatest value of each result that was read, and forget them."""
        found = [(float(values.min()), float(values.max())) for values in map(self.library.to_numpy, self.read)]
        self.read.clear()
        return found

    def give_back(self) -> None:
        """Let the library give its free memory back."""


class Torch(Place):
    def __init__(self, library: libraries.Library) -> None:
        super().__init__(library)
        self.streams, self.sides = (tuple(self.module.cuda.Stream() for _ in range(3)) for _ in range(2))

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return self.module.cuda.stream(stream)

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        return self.module.full(shape, value, dtype=getattr(self.module, dtype), device="cuda")

    def hold_up(self) -> None:
        for side in self.sides:
            device.delay(side.cuda_stream, HELD_UP_MS)

    def use(self, c: Any, made: Any, side: Any, is_its_own: bool) -> None:
        side.wait_stream(made)
        with self.on(side):
            values = c.float()
            self.read.append(self.module.stack((values.amin(), values.amax())))
        if is_its_own:
            c.record_stream(side)
        else:  # memory that torch does not know by this tensor: record_stream says nothing of it
            made.wait_stream(side)

    def extremes(self) -> list[tuple[float, float]]:
        self.module.cuda.synchronize()
        found = self.module.stack(self.read).tolist()
        self.read.clear()
        return [tuple(pair) for pair in found]

    def give_back(self) -> None:
        self.module.cuda.empty_cache()


class CuPy(Place):
    """CuPy has no `record_stream`: a block is free for the stream that it was made on, in that stream's order."""

    def __init__(self, library: libraries.Library) -> None:
        super().__init__(library)
        self.streams, self.sides = (
            tuple(self.module.cuda.Stream(non_blocking=True) for _ in range(3)) for _ in range(2)
        )

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return stream

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        return self.module.full(shape, value, dtype)

    def hold_up(self) -> None:
        for side in self.sides:
            device.delay(side.ptr, HELD_UP_MS)

    def use(self, c: Any, made: Any, side: Any, is_its_own: bool) -> None:
        side.wait_event(made.record())
        with side:
            self.read.append((c.min(), c.max()))
        made.wait_event(side.record())

    def extremes(self) -> list[tuple[float, float]]:
        self.module.cuda.Device().synchronize()
        found = [(float(least), float(greatest)) for least, greatest in self.read]
        self.read.clear()
        return found

    def give_back(self) -> None:
        self.module.get_default_memory_pool().free_all_blocks()


class Jax(Place):
    """JAX has one stream: results are used right away."""

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return self.module.default_device(self.module.devices(self.library.device)[0])

    def full(self, shape: tuple[int, ...], value: float, dtype: str = "float32") -> Any:
        return self.module.numpy.full(shape, value, dtype)

    def use(self, c: Any, made: Any, side: Any, is_its_own: bool) -> None:
        self.read.append((c.min(), c.max()))

    def extremes(self) -> list[tuple[float, float]]:
        found = [(float(least), float(greatest)) for least, greatest in self.read]
        self.read.clear()
        return found


def place_of(library: libraries.Library) -> Place:
    kinds = {"torch-cuda": Torch, "cupy-cuda": CuPy, "jax-cpu": Jax, "jax-cuda": Jax}
    return kinds.get(repr(library), Place)(library)


# ---- the functions ----

BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "floor_divide": np.floor_divide,
    "remainder": np.remainder,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "pow": np.power,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
Y = 2.0  # every element of y


@dataclass(frozen=True)
class Work:
    """A function of x, whose elements are all v, and y: each element of its result is `value(v)`."""

    call: Callable[[Any, Any], Any]
    value: Callable[[float], float]
    is_its_own: bool = True  # is the result memory that the library knows as its own?


def works(place: Place) -> dict[str, Work]:
    """Return the functions that the arrays of this library, where they are, can be given to."""
    library = place.library
    on_gpu = library.device == "cuda"
    with place.on(place.streams[0]):
        square, row = place.full((COLUMNS, COLUMNS), 1), place.full((COLUMNS,), 1)
    if on_gpu:
        device.synchronize()
    matmul = interop.matmul

    def binary(name: str, numpys: Any) -> Work:
        return Work(getattr(interop, name), lambda v: float(numpys(np.float32(v), np.float32(Y))))

    found = {name: binary(name, numpys) for name, numpys in BINARY.items()}
    found |= {
        "negative": Work(lambda x, y: interop.negative(x), lambda v: -v),
        "abs": Work(lambda x, y: interop.abs(x), abs),
        "add a scalar": Work(lambda x, y: interop.add(x, 3), lambda v: v + 3),
        "matmul": Work(lambda x, y: matmul(x, square), lambda v: COLUMNS * v),
        "bias": Work(lambda x, y: matmul(x, square, bias=row), lambda v: COLUMNS * v + 1),
        "epilogue": Work(lambda x, y: matmul(x, square, bias=row, epilogue="relu"), lambda v: COLUMNS * v + 1),
        "c and beta": Work(lambda x, y: matmul(x, square, c=y, beta=3), lambda v: COLUMNS * v + 3 * Y),
        "expression": Work(interop.elementwise("x * y + 1"), lambda v: Y * v + 1),
        "a dropped result": Work(lambda x, y: interop.add(interop.multiply(x, y), x), lambda v: 3 * v),
        "view": Work(
            lambda x, y: interop.convert(interop.asarray(interop.add(x, y)), library.name), lambda v: v + Y, False
        ),
        "use of a view": Work(lambda x, y: interop.add(x, interop.asarray(interop.add(x, y))), lambda v: 2 * v + Y),
    }
    with contextlib.suppress(pytest.skip.Exception):
        with tempfile.TemporaryDirectory() as folder:
            copy = user_functions.c_function(Path(folder), on_gpu)
        found["C function"] = Work(lambda x, y: copy(x, x.shape[0] * COLUMNS), lambda v: v)
    if library.writable:

        def out_and_aux(x: Any, y: Any) -> Any:
            out, aux = place.full(x.shape, 0), place.full(x.shape, 0)
            matmul(x, square, bias=row, epilogue="relu", out=out, aux=aux)
            return interop.add(out, aux)

        found["out and aux"] = Work(out_and_aux, lambda v: 2 * (COLUMNS * v + 1))
    if on_gpu:
        found["tiled"] = Work(lambda x, y: matmul(x, square, backend="tiled"), lambda v: COLUMNS * v)
        found["cublas"] = Work(lambda x, y: matmul(x, square, backend="cublas"), lambda v: COLUMNS * v)
        with contextlib.suppress(pytest.skip.Exception):
            machine.need("cuda_core")
            kernel = user_functions.kernel()
            found["kernel"] = Work(lambda x, y: kernel(x, x.shape[0] * COLUMNS), lambda v: v)
    elif machine.gpu_count() and library.name != "jax":
        there = {"execution": "cuda"}
        found["add on the GPU"] = Work(lambda x, y: interop.add(x, y, **there), lambda v: v + Y)
        found["matmul on the GPU"] = Work(lambda x, y: matmul(x, square, **there), lambda v: COLUMNS * v)
    return found


# ---- the run ----


def soak(place: Place, work: Work, count: int, draw: random.Random) -> str:
    """Make this many results; say what was wrong with the first wrong one, or ""."""
    made_so_far = 0
    while made_so_far < count:
        wanted = []
        place.hold_up()
        for _ in range(min(BATCH, count - made_so_far)):
            value, rows = draw.randint(1, 7), draw.choice(place.rows)
            made, side = draw.choice(place.streams), draw.choice(place.sides)
            want = work.value(value)
            with place.on(made):
                x, y = place.full((rows, COLUMNS), value), place.full((rows, COLUMNS), Y)
                c = work.call(x, y)
                shape, dtype = tuple(c.shape), place.library.dtype(c)
                place.use(c, made, side, work.is_its_own)
                del x, y, c
                poison = 1 - want if dtype == "bool" else -1000
                junk = [place.full(shape, poison, dtype) for _ in range(JUNK)]
                del junk
            wanted.append(want)
            if draw.randrange(500) == 0:
                place.give_back()
        for i, (seen, want) in enumerate(zip(place.extremes(), wanted, strict=True)):
            if not np.allclose(seen, want, rtol=1e-5, atol=0):
                return f"after {made_so_far + i} results values from {seen[0]} to {seen[1]} instead of {want}"
        made_so_far += len(wanted)
    return ""
