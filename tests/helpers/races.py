"""What tests of races share: small arrays of ones, the libraries with streams, and a call before the race."""

from __future__ import annotations

from typing import Any

import numpy as np

import interop
from helpers.device import Side, is_busy, synchronize

N = 64
COUNT = N * N
ONES = np.ones((N, N), "float32")
WITH_STREAMS = ("torch", "cupy", "numba")


def warm(*arrays: Any, **options: Any) -> None:
    """Make the same call once before the race: modules, plans, and a block for the result in the allocator's pool."""
    interop.matmul(*arrays, **options)
    synchronize()


def host_did_not_wait(side: Side) -> bool:
    """Numba allocates by a call that may wait for the device; the others must not."""
    return side.library.name == "numba" or is_busy(side.handle)
