"""On which stream the work of a call is queued, what it waits for, and what waits for it.

Every race here is lost for certain by code that takes another stream, or leaves one wait out: see `helpers.device`.
Arrays that name a stream, or have none: test_named_streams.py. Calls with `stream=`: test_given_streams.py.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import device, graphs
from helpers.device import DELAY_MS, Side, Snapshot, delay, fill, is_busy, slow_in_jax, synchronize
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, WITH_STREAMS, N, host_did_not_wait, warm

import interop


def pair_of_sides(first, second):
    return Side(on_gpu(first)), Side(on_gpu(second))


TWO_LIBRARIES = pytest.mark.parametrize(
    ("first", "second"), [(x, y) for x in WITH_STREAMS for y in WITH_STREAMS if x != y]
)


# ---- one library, on its own current stream ----


@pytest.mark.parametrize("backend", ["tiled", "cublas"])
def test_the_call_is_queued_on_the_librarys_current_stream(side, backend):
    a, b = side.make(ONES), side.make(ONES)
    pointer = side.library.pointer(a)
    with side.current():
        warm(a, b, backend=backend)
        delay(side.handle)
        fill(pointer, 2, COUNT, side.handle)
        c = interop.matmul(a, b, backend=backend)
        assert host_did_not_wait(side)
    synchronize()
    assert (side.library.to_numpy(c) == 2 * N).all()


def test_the_result_is_ready_in_order_on_that_stream(side):
    a = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        warm(a, a)
        delay(side.handle)
        fill(side.library.pointer(a), 3, COUNT, side.handle)
        c = interop.matmul(a, a)
        snapshot.take(side.library.pointer(c), side.handle)
        fill(side.library.pointer(a), 5, COUNT, side.handle)  # and what comes after it does not reach back
    assert (snapshot.values() == 9 * N).all()


def test_out_is_written_in_order_on_that_stream(side):
    a, out = side.make(ONES), side.make(ONES)
    snapshot = Snapshot((N, N))
    pointer = side.library.pointer(out)
    with side.current():
        warm(a, a, out=out)
        delay(side.handle)
        fill(pointer, 7, COUNT, side.handle)
        interop.matmul(a, a, out=out)
        assert is_busy(side.handle)
        snapshot.take(pointer, side.handle)
        fill(pointer, 5, COUNT, side.handle)
    assert (snapshot.values() == N).all()
    assert (side.library.to_numpy(out) == 5).all()


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_the_default_stream_is_the_default(name):
    library = on_gpu(name)
    a = library.make(ONES)
    warm(a, a)
    delay(device.LEGACY)
    fill(library.pointer(a), 2, COUNT, device.LEGACY)
    c = interop.matmul(a, a)
    synchronize()
    assert (library.to_numpy(c) == 4 * N).all()


def test_no_work_goes_to_the_default_stream(side):
    """The legacy default stream waits for every blocking stream, and they for it: a stray launch there shows."""
    a = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        warm(a, a)
        delay(device.LEGACY)
        c = interop.matmul(a, a)
        snapshot.take(side.library.pointer(c), side.handle)
        if side.library.name != "numba":  # whose allocation may wait for the device
            while is_busy(side.handle):
                pass
            assert is_busy(device.LEGACY)
    assert (snapshot.values() == N).all()


def test_jax_results_are_ordered_by_jax():
    library = on_gpu("jax")
    slow = slow_in_jax(library.module)
    x = library.make(ONES)
    slow(x, 1.0).block_until_ready()
    interop.matmul(x, x).block_until_ready()
    c = interop.matmul(slow(x, 2.0), x) + 1
    assert (library.to_numpy(c) == 2 * N + 1).all()


# ---- another library's arrays: both waits, in both directions ----


@TWO_LIBRARIES
def test_the_call_waits_for_the_other_librarys_stream(first, second):
    one, two = pair_of_sides(first, second)
    a, b = one.make(ONES), two.make(ONES)
    with one.current(), two.current():
        warm(a, b)
        delay(two.handle)
        fill(two.library.pointer(b), 2, COUNT, two.handle)
        c = interop.matmul(a, b)
        assert one.library.name == "numba" or is_busy(two.handle)
    synchronize()
    assert one.library.is_ours(c)
    assert (one.library.to_numpy(c) == 2 * N).all()


@TWO_LIBRARIES
def test_the_other_librarys_stream_waits_for_the_call(first, second):
    one, two = pair_of_sides(first, second)
    a, b = one.make(ONES), two.make(ONES)
    with one.current(), two.current():
        warm(a, b)
        delay(one.handle)
        c = interop.matmul(a, b)
        fill(two.library.pointer(b), 9, COUNT, two.handle)  # the memory of b is used again by its library
        assert host_did_not_wait(one)
    synchronize()
    assert (one.library.to_numpy(c) == N).all()
    assert (two.library.to_numpy(b) == 9).all()


@TWO_LIBRARIES
def test_out_of_another_library_is_written_after_what_it_waits_for(first, second):
    one, two = pair_of_sides(first, second)
    a, out = one.make(ONES), two.make(ONES)
    pointer = two.library.pointer(out)
    with one.current(), two.current():
        warm(a, a, out=out)
        delay(two.handle)
        fill(pointer, 7, COUNT, two.handle)
        assert interop.matmul(a, a, out=out) is out
        assert is_busy(two.handle)
    synchronize()
    assert (two.library.to_numpy(out) == N).all()


@TWO_LIBRARIES
def test_out_of_another_library_is_ready_on_its_stream(first, second):
    one, two = pair_of_sides(first, second)
    a, out = one.make(ONES), two.make(ONES)
    pointer = two.library.pointer(out)
    snapshot = Snapshot((N, N))
    with one.current(), two.current():
        warm(a, a, out=out)
        fill(pointer, 7, COUNT, two.handle)
        synchronize()
        delay(one.handle)
        interop.matmul(a, a, out=out)
        snapshot.take(pointer, two.handle)
        assert is_busy(one.handle)
    assert (snapshot.values() == N).all()


def test_three_libraries_in_one_call():
    torch, cupy, numba = (Side(on_gpu(name)) for name in WITH_STREAMS)
    a, b, out = torch.make(ONES), cupy.make(ONES), numba.make(ONES)
    snapshot = Snapshot((N, N))
    with torch.current(), cupy.current():
        warm(a, b, out=out)
        for side, array, value in ((torch, a, 2), (cupy, b, 3), (numba, out, 7)):
            delay(side.handle, DELAY_MS)
            fill(side.library.pointer(array), value, COUNT, side.handle)
        interop.matmul(a, b, out=out)
        snapshot.take(numba.library.pointer(out), numba.handle)
        fill(cupy.library.pointer(b), 9, COUNT, cupy.handle)
    assert (snapshot.values() == 6 * N).all()


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_the_call_waits_for_a_pending_jax_array(name):
    side, jax = Side(on_gpu(name)), on_gpu("jax")
    slow = slow_in_jax(jax.module)
    x, a = jax.make(ONES), side.make(ONES)
    with side.current():
        slow(x, 3.0).block_until_ready()  # what is left in that memory is not the answer
        warm(a, x)
        c = interop.matmul(a, slow(x, 2.0))
    synchronize()
    assert side.library.is_ours(c)
    assert (side.library.to_numpy(c) == 2 * N).all()


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_a_call_led_by_jax_waits_and_is_waited_for(name):
    side, jax = Side(on_gpu(name)), on_gpu("jax")
    slow = slow_in_jax(jax.module)
    x, b = jax.make(ONES), side.make(ONES)
    pointer = side.library.pointer(b)
    with side.current():
        slow(x, 3.0).block_until_ready()
        warm(x, b)
        # It waits for the other library ...
        delay(side.handle)
        fill(pointer, 2, COUNT, side.handle)
        c = interop.matmul(x, b)
        assert jax.is_ours(c)
        assert (jax.to_numpy(c + 1) == 2 * N + 1).all()
        # ... and that one waits for it, here held up by the JAX operand.
        synchronize()
        c = interop.matmul(slow(x, 2.0), b)
        fill(pointer, 9, COUNT, side.handle)
    assert (jax.to_numpy(c) == 4 * N).all()


def test_equal_streams_of_two_libraries_cost_no_wait(torch, cupy):
    """Shown in a capture of one stream, in which an event on any other would be an error."""
    stream = torch.cuda.Stream()
    cupys = on_gpu("cupy").stream(stream.cuda_stream)
    a = torch.ones(N, N, device="cuda")
    b = cupy.ones((N, N), "float32")
    out = torch.zeros(N, N, device="cuda")
    synchronize()
    with torch.cuda.stream(stream), cupys:
        warm(a, b, out=out)
        with graphs.captured(torch, stream=stream) as graph:
            interop.matmul(a, b, out=out)
    b.fill(2)
    synchronize()
    graph.replay()
    synchronize()
    assert (out == 2 * N).all()


# ---- threads ----


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("size", [64, 512])
def test_threads_with_streams_of_their_own(name, size):
    library = on_gpu(name)
    sides = [Side(library) for _ in range(8)]
    arrays = [library.make(np.full((size, size), k, "float32")) for k in range(8)]
    synchronize()
    barrier = threading.Barrier(8)

    def work(k):
        barrier.wait()
        with sides[k].current():
            for _ in range(50):
                c = interop.matmul(arrays[k], arrays[k])
                d = interop.matmul(c, arrays[k])
            values = library.to_numpy(d)
        return bool((values == np.float32(size) ** 2 * k**3).all())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [True] * 8


def test_threads_share_no_current_stream():
    """Torch's current stream is the thread's: a thread on the default stream does not see another's side stream."""
    library = on_gpu("torch")
    side = Side(library)
    a = side.make(ONES)
    inside, done = threading.Event(), threading.Event()

    def other():
        with side.current():
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    warm(a, a)
    delay(side.handle)
    interop.matmul(a, a)
    while is_busy(device.LEGACY):
        pass
    assert is_busy(side.handle)
    done.set()
    thread.join()
