"""Many allocations and frees by many threads, on the host: right values, flat memory. On a GPU: tests/gpu."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest
from helpers.soak_calls import Memory
from helpers.threads import THREADS, at_once

import interop

COUNT = 10_000  # of each thread
_KEPT = 8  # arrays of each thread that are there at a time


def _work(number):
    """Fill each array with a value of its own, and look at it when others have come and gone; return what is wrong."""
    sizes = random.Random(number)
    kept, wrong = deque(), []
    for i in range(COUNT):
        x = interop.empty(64 << sizes.randrange(9), "float32", memory="host")
        value = number * COUNT + i
        np.asarray(x)[:] = value
        if i % 16 == 0:
            x.resize(x.shape[0] * 2)
            values = np.asarray(x).reshape(2, -1)
            if not (values == [[value], [0]]).all():
                wrong.append(value)
            values[1] = value
        kept.append((x, value))
        if len(kept) > _KEPT:
            old, expected = kept.popleft()
            if not (np.asarray(old) == expected).all():
                wrong.append(expected)
    return wrong


def test_many_threads_allocate_and_free_host_memory():
    assert not any(at_once(THREADS, _work))
    before = Memory.now()
    assert not any(at_once(THREADS, _work))  # some 2 GB, one after the other
    assert not Memory.now().growth(before).faults(THREADS * COUNT)


def test_memory_that_is_not_there_is_an_error_in_every_thread():
    def ask(number):
        kept = interop.full(1000, number, "float32", memory="host")
        for _ in range(20):
            with pytest.raises(MemoryError):
                interop.empty(1 << 60, "uint8", memory="host")
        return kept.tolist() == [number] * 1000

    assert all(at_once(THREADS, ask))
