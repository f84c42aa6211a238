"""Memory of interop's own: many threads and streams, a card that is full, a limit, the host and the GPU in turn.

These tests watch the card's time and memory, and want it alone. On the host: tests/test_memory_stress.py.
"""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import device
from helpers.device import delay, eventually, is_busy, synchronize
from helpers.soak_calls import Memory

import interop

POOLS = ("device", "managed", "pinned")
MIB = 1 << 20


# ---- a million allocations ----


class Churn:
    """Threads that make arrays and drop them at once, on streams that they share.

    Of every few arrays a value is written on one stream and read on another, into `seen`, before the array is dropped.
    Memory that was given out again too early has another array's value by then: now and then the reading stream is held
    up, so that the read is late, while other streams go on.
    """

    def __init__(self, threads, streams, of_each):
        self.threads = threads
        self.of_each = of_each
        self.streams = [device.new_stream() for _ in range(streams)]
        self.every = 25
        checks = -(-of_each // self.every)
        self.seen = [interop.zeros(checks, "float32") for _ in range(threads)]

    def run(self):
        """Return the values that are not what they should be; seconds on standard output."""
        started = time.perf_counter()
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(self._work, range(self.threads)))
        print(f"{self.threads * self.of_each} arrays in {time.perf_counter() - started:.1f} s")
        synchronize()
        wrong = []
        for number, seen in enumerate(self.seen):
            expected = [self._value(number, i) for i in range(0, self.of_each, self.every)]
            values = np.asarray(seen.to(memory="host"))
            wrong += values[values != expected].tolist()
        return wrong

    def _value(self, number, i):
        return number * self.of_each + i + 1  # exact in float32 below 2^24

    def _work(self, number):
        sizes = random.Random(number)
        kept = deque(maxlen=16)
        for i in range(self.of_each):
            memory = {7: "managed", 15: "pinned"}.get(i % 16, "device")
            one, other = (self.streams[(number + i + k) % len(self.streams)] for k in (0, 1))
            x = interop.empty(64 << sizes.randrange(8), "float32", memory=memory, stream=one)
            fill = {} if memory == "pinned" else {"stream": one}  # the host fills pinned arrays, once it may
            if i % self.every == 0:
                interop.copyto(x, self._value(number, i), **fill)
                if i % 1000 == 0:
                    delay(other, 2)
                interop.copyto(self.seen[number][i // self.every : i // self.every + 1], x[-1:], stream=other)
            elif i % 5 == 0:
                interop.copyto(x, -1, **fill)  # what is seen of memory that is used too early
            if i % 3 == 0:
                kept.append(x)  # some live longer


def _state():
    return {memory: interop.memory_pool(memory) for memory in POOLS}


def _settled(pools, used):
    """Is no more in use than before?"""
    gc.collect()
    synchronize()
    return eventually(lambda: all(pools[memory].used_bytes <= used[memory] for memory in POOLS))


def test_a_million_allocations_over_eight_threads_and_four_streams():
    """Memory is flat: nothing stays in use, and what is kept is a small part of what was made.

    Of device memory that is the most that there was at once: behind a stream that is held up, frees wait, and threads
    go on. 6.6 GB of it are made.
    """
    pools = _state()
    for pool in pools.values():
        pool.trim()
    warm = Churn(8, 4, 10_000)
    assert warm.run() == []
    del warm
    synchronize()
    many = Churn(8, 4, 125_000)
    gc.collect()
    synchronize()
    used = {memory: pool.used_bytes for memory, pool in pools.items()}
    reserved = {memory: pool.reserved_bytes for memory, pool in pools.items()}
    before = Memory.now()
    assert many.run() == []
    assert _settled(pools, used), {memory: (pool.used_bytes, used[memory]) for memory, pool in pools.items()}
    for memory, pool in pools.items():
        assert pool.reserved_bytes - reserved[memory] < (512 if memory == "device" else 64) * MIB, memory
    assert Memory.now().process - before.process < 64 * MIB
    assert interop._core.held_count() == 0


@pytest.mark.sanitize
def test_allocations_for_the_sanitizer():
    assert Churn(4, 4, 500).run() == []


# ---- no more memory ----


def test_a_card_that_is_really_full_is_an_error_that_leaves_all_usable():
    """In every thread that asks. What was there is as it was, and when the rest is gone all is as before."""
    pool = interop.memory_pool()
    kept = interop.full(MIB, 7, "float32")
    block = max(64 * MIB, device.free_bytes() // 32)
    blocks = []

    def fill():
        while len(blocks) < 1000:
            blocks.append(interop.empty(block, "uint8"))  # noqa: PERF401: what is there stays when the next is not

    with pytest.raises(interop.CudaError, match=r"^interop\.empty: allocating .* CUDA_ERROR_OUT_OF_MEMORY"):
        fill()
    assert len(blocks) >= 16

    def ask(number):
        with pytest.raises(interop.CudaError, match="CUDA_ERROR_OUT_OF_MEMORY"):
            interop.empty(2 * block, "uint8")
        return float(kept[number])

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == [7] * 8
    blocks[0][:MIB] = 3
    assert blocks[0][MIB - 1].item() == 3
    kept += 1
    assert float(kept[-1]) == 8
    blocks.clear()
    synchronize()
    again = interop.zeros(2 * block, "uint8")
    assert again[-1].item() == 0
    del again
    synchronize()
    pool.trim()
    assert device.free_bytes() > 16 * block


def test_managed_memory_beyond_its_limit_is_refused():
    pool = interop.memory_pool("managed")
    gc.collect()
    synchronize()
    pool.trim()
    pool.limit(pool.reserved_bytes + 64 * MIB)
    try:
        x = interop.ones(12 * MIB, "float32", memory="managed")
        for _ in range(3):
            with pytest.raises(interop.CudaError, match=r"^interop\.empty: .* managed memory: cuda:0 may have"):
                interop.empty(32 * MIB, "uint8", memory="managed")
        x += 1
        assert (np.asarray(x) == 2).all()
        del x
        y = interop.full(8 * MIB, 3, "float32", memory="managed")
        assert (np.asarray(y) == 3).all()
    finally:
        pool.limit(2**64 - 1)


# ---- the host and the GPU in turn ----


@pytest.mark.parametrize("memory", ["managed", "pinned"])
def test_the_host_and_four_streams_take_turns(memory):
    """A new view waits for what the GPU reads, before the host writes, and for what it wrote, before the host reads."""
    streams = [device.new_stream() for _ in range(4)]
    x = interop.zeros(1 << 18, "float32", memory=memory)
    one = interop.ones(1 << 18, "float32")  # of the GPU: pinned arrays alone are the host's
    results = [interop.zeros(1 << 18, "float32", memory=memory) for _ in streams]
    for stream, y in zip(streams, results, strict=True):
        interop.add(one, x, out=y, stream=stream)  # once, so that what is loaded at first is
    for turn in range(1, 9):
        np.asarray(x)[:] = turn
        for k, (stream, y) in enumerate(zip(streams, results, strict=True)):
            delay(stream, 20 * (k + 1))
            interop.add(one, x, out=y, stream=stream)
        assert is_busy(streams[-1])
        if turn % 2:
            values = memoryview(results[0]) if turn % 4 == 1 else np.asarray(results[0])
            assert values[0] == values[-1] == turn + 1
        else:
            np.asarray(x)[:] = -turn  # before any result is looked at
        for y in results:
            assert (np.asarray(y) == turn + 1).all()


@pytest.mark.parametrize("memory", ["managed", "pinned"])
def test_a_view_from_before_needs_synchronize(memory):
    """It shows what is there, and `x.synchronize()` waits for all four streams."""
    streams = [device.new_stream() for _ in range(4)]
    x = interop.zeros((4, 1 << 16), "float32", memory=memory)
    five = interop.full(1 << 16, 5, "float32")
    interop.add(five, x[0], out=x[0], stream=streams[0])
    view = np.asarray(x)
    view[:] = 0
    for row, stream in zip(x, streams, strict=True):
        delay(stream)
        interop.add(five, row, out=row, stream=stream)
    assert all(map(is_busy, streams))
    assert not view[:, ::1000].any()  # what is queued is not done
    x.synchronize()
    assert (view == 5).all()
