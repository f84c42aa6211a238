"""A call that is refused: what it raises, and that it leaves everything as it was."""

from __future__ import annotations

import gc
import re
import sys
from typing import Any

import numpy as np
import pytest

import interop
from helpers.dlpack import Fake

#: What is accepted where an array's dtype has no DLPack code.
ANY_DTYPE = "accepted: bool, integers, floats and complex numbers in native byte order"

#: Of a device array. No check of it may get as far as the pointer, so it needs no GPU.
CAI = {"shape": (2, 2), "typestr": "<f8", "data": (4096, False), "version": 3}


def square(dtype: str = "float64") -> np.ndarray:
    return np.array([[1, 2], [3, 4]], dtype)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape)


def refused(exception: type[Exception], match: str, *arrays: Any, **options: Any) -> None:
    """The product raises exactly this; afterwards `out` and all reference counts are as they were."""
    out = options.get("out")
    values = out.copy() if isinstance(out, np.ndarray) else None
    everything = [x for x in (*arrays, *options.values()) if type(x) not in (type(None), bool, int, float, str)]

    def call() -> tuple[type[Exception], str]:
        try:  # not pytest.raises, whose record of the traceback would hold the arguments
            interop.matmul(*arrays, **options)
        except exception as error:
            return type(error), str(error)
        pytest.fail(f"not refused; expected {exception.__name__}: {match}")

    def counts() -> list[int]:
        return [sys.getrefcount(x) for x in everything]

    kind, message = call()  # the first one may fill caches
    assert kind is exception
    assert re.search(match, message), message
    gc.collect(0)
    before = counts()
    assert call() == (kind, message)
    if counts() != before:
        gc.collect()  # JAX's errors are in cycles
    assert counts() <= before
    if values is not None:
        assert out.tobytes() == values.tobytes()
    for x in everything:
        if isinstance(x, Fake):
            assert x.balanced
    assert interop._core.held_count() == 0
