"""On which stream the work of a call is queued, what it waits for, and what waits for it.

Every race here is lost for certain by code that takes another stream, or leaves one wait out: see `helpers.device`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import device, graphs
from helpers.device import DELAY_MS, Side, Snapshot, delay, fill, is_busy, slow_in_jax, synchronize
from helpers.dlpack import Cai, CudaStream, Fake, OldFake
from helpers.libraries import on_gpu

import interop

N = 64
COUNT = N * N
ONES = np.ones((N, N), "float32")
WITH_STREAMS = ("torch", "cupy", "numba")


@pytest.fixture(params=WITH_STREAMS)
def side(request):
    """A side stream of a library, and that library."""
    return Side(on_gpu(request.param))


def pair_of_sides(first, second):
    return Side(on_gpu(first)), Side(on_gpu(second))


TWO_LIBRARIES = pytest.mark.parametrize(
    ("first", "second"), [(x, y) for x in WITH_STREAMS for y in WITH_STREAMS if x != y]
)


def warm(*arrays, **options):
    """Make the same call once before the race: modules, plans, and a block for the result in the allocator's pool."""
    interop.matmul(*arrays, **options)
    synchronize()


def host_did_not_wait(side):
    """Numba allocates by a call that may wait for the device; the others must not."""
    return side.library.name == "numba" or is_busy(side.handle)


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


# ---- what has no stream of its own, and what names one ----


@pytest.mark.parametrize("kind", [Fake, OldFake])
def test_producers_are_asked_for_the_calls_stream(torch, cupy, kind):
    fake = kind(cupy.ones((N, N), "float32"))
    synchronize()
    version = {} if kind is OldFake else {"max_version": (1, 3)}
    interop.matmul(fake, fake)
    assert fake.asked == [{"stream": 1, **version}] * 2  # of no library: the legacy default stream, by its DLPack name
    fake.asked.clear()
    stream = torch.cuda.Stream()
    a = torch.ones(N, N, device="cuda")
    with torch.cuda.stream(stream):
        interop.matmul(a, fake)
    interop.matmul(a, fake)  # torch's default stream is handle 0 to torch
    interop.matmul(fake, fake, stream=stream)
    interop.matmul(fake, a, stream=0)
    handles = [stream.cuda_stream, 1, stream.cuda_stream, stream.cuda_stream, 1]
    assert fake.asked == [{"stream": handle, **version} for handle in handles]
    synchronize()


def test_an_array_of_no_library_leads_on_the_default_stream(cupy):
    x = cupy.ones((N, N), "float32")
    fake = Fake(x)
    warm(fake, fake)
    delay(device.LEGACY)
    fill(x.data.ptr, 2, COUNT, device.LEGACY)
    c = interop.matmul(fake, fake)
    synchronize()
    assert type(c) is interop.Array
    assert (cupy.asarray(c) == 4 * N).all()


def test_a_stream_named_by_the_array_interface_is_waited_for(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.ones((N, N), "float32")
    synchronize()
    with stream:
        a = Cai(x)
    assert a.__cuda_array_interface__["stream"] == stream.ptr
    warm(a, a)
    delay(stream.ptr)
    fill(x.data.ptr, 2, COUNT, stream.ptr)
    c = interop.matmul(a, a)
    synchronize()
    assert (cupy.asarray(c) == 4 * N).all()


def test_a_stream_named_by_the_array_interface_waits_in_turn(torch, cupy):
    side = Side(on_gpu("torch"))
    stream = cupy.cuda.Stream(non_blocking=True)
    x, a = cupy.ones((N, N), "float32"), side.make(ONES)
    synchronize()
    with stream:
        b = Cai(x)
    with side.current():
        warm(a, b)
        delay(side.handle)
        c = interop.matmul(a, b)
        fill(x.data.ptr, 9, COUNT, stream.ptr)
        assert is_busy(side.handle)
    synchronize()
    assert (c == N).all()


def test_results_of_no_library_are_waited_for_by_their_consumers(torch, cupy):
    """An `interop.Array` tells every consumer when it is ready, whatever stream the consumer names."""
    stream = cupy.cuda.Stream(non_blocking=True)
    reader = Side(on_gpu("torch"))
    x = cupy.ones((N, N), "float32")
    synchronize()
    with stream:
        a, b = Cai(x), Cai(x * 3)
    warm(a, b)
    consumers = {
        "torch": lambda c: torch.from_dlpack(c).clone(),
        "cupy": lambda c: cupy.from_dlpack(c).copy(),
        "interop": lambda c: interop.matmul(torch.eye(N, device="cuda"), c),
    }
    for name, consume in consumers.items():
        with reader.current():
            consume(interop.matmul(b, b))  # the first time; leaves other values in the memory that comes next
            synchronize()
            delay(stream.ptr)
            c = interop.matmul(a, a)
            seen = consume(c)
            assert is_busy(stream.ptr), name
        synchronize()
        assert bool((seen == N).all()), name


def test_an_array_used_on_one_stream_is_ready_there_for_the_next(torch, cupy):
    x = cupy.ones((N, N), "float32")
    c = interop.matmul(Cai(x), Cai(x))
    synchronize()
    one, two = Side(on_gpu("torch")), Side(on_gpu("torch"))
    eye = one.make(np.eye(N, dtype="float32"))
    with one.current():
        warm(eye, eye, out=c)  # c is written again, by a call led by torch on its side stream
        fill(interop_pointer(c), 5, COUNT, one.handle)
        synchronize()
        delay(one.handle)
        interop.matmul(eye, eye, out=c)
    with two.current():
        seen = torch.from_dlpack(c).clone()
    synchronize()
    assert torch.equal(seen, torch.eye(N, device="cuda"))


def interop_pointer(c):
    return c.__cuda_array_interface__["data"][0]


# ---- stream= ----


def named(kind, handle):
    if kind == "int":
        return handle
    if kind == "__cuda_stream__":
        return CudaStream(handle)
    if kind == "torch":
        return on_gpu("torch").module.cuda.ExternalStream(handle)
    if kind == "cupy":
        return on_gpu("cupy").stream(handle)
    return on_gpu("numba").module.external_stream(handle)


@pytest.mark.parametrize("kind", ["int", "__cuda_stream__", "torch", "cupy"])
def test_a_given_stream_takes_the_work_and_waits_for_the_librarys_own(side, kind):
    given = device.new_stream()
    a = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        warm(a, a, stream=named(kind, given))
        delay(side.handle)
        fill(side.library.pointer(a), 2, COUNT, side.handle)
        c = interop.matmul(a, a, stream=named(kind, given))
        snapshot.take(side.library.pointer(c), given)
        assert host_did_not_wait(side)
    assert side.library.is_ours(c)
    assert (snapshot.values() == 4 * N).all()


def test_the_librarys_own_stream_does_not_wait_for_a_given_one(side):
    given = device.new_stream()
    a, out = side.make(ONES), side.make(ONES)
    with side.current():
        warm(a, a, out=out, stream=given)
        delay(given)
        interop.matmul(a, a, out=out, stream=given)
        assert is_busy(given)
        assert not is_busy(side.handle)  # the result is ready on the given stream alone
    synchronize()
    assert (side.library.to_numpy(out) == N).all()


def test_out_on_a_given_stream_waits_for_the_librarys_own(side):
    given = device.new_stream()
    a, out = side.make(ONES), side.make(ONES)
    pointer = side.library.pointer(out)
    with side.current():
        warm(a, a, out=out, stream=given)
        delay(side.handle)
        fill(pointer, 7, COUNT, side.handle)
        interop.matmul(a, a, out=out, stream=given)
        assert is_busy(side.handle)
    synchronize()
    assert (side.library.to_numpy(out) == N).all()


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_the_result_on_a_given_stream_belongs_to_it(name):
    """Given back to its library, its memory is not handed out for work on another stream."""
    side, given = Side(on_gpu(name)), Side(on_gpu(name))
    shape = (1531, 1531)
    empty = {
        "torch": lambda torch: torch.empty(shape, device="cuda"),
        "cupy": lambda cupy: cupy.empty(shape, "float32"),
    }[name]
    a = side.make(np.ones(shape, "float32"))
    with side.current():
        warm(a, a, stream=given.handle, backend="tiled")
        pointer = side.library.pointer(interop.matmul(a, a, stream=given.handle, backend="tiled"))  # freed at once
        others = [empty(side.library.module) for _ in range(8)]
    assert pointer not in [side.library.pointer(other) for other in others]


def test_a_given_stream_of_jax_waits_for_the_result():
    jax = on_gpu("jax")
    slow = slow_in_jax(jax.module)
    x = jax.make(ONES)
    given = device.new_stream()
    snapshot = Snapshot((N, N))
    slow(x, 3.0).block_until_ready()
    interop.matmul(x, x, stream=given).block_until_ready()
    c = interop.matmul(slow(x, 2.0), x, stream=given)
    snapshot.take(c.unsafe_buffer_pointer(), given)
    assert (snapshot.values() == 2 * N).all()


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_the_default_streams_by_their_numbers(side, handle):
    a = side.make(ONES)
    with side.current():
        c = interop.matmul(a, a, stream=handle)
    synchronize()
    assert (side.library.to_numpy(c) == N).all()


@pytest.mark.parametrize(
    ("value", "exception", "match"),
    [
        ("1", TypeError, "stream is str; accepted: an int handle, or an object with __cuda_stream__"),
        (1.0, TypeError, "stream is float"),
        (True, TypeError, "stream is bool"),
        (object(), TypeError, "stream is object"),
        (-1, ValueError, "stream is -1; accepted: a CUDA stream handle"),
        (2**70, ValueError, f"stream is {2**70}"),
        (type("Bad", (), {"__cuda_stream__": lambda self: 5})(), TypeError, "stream is .*Bad"),
        (type("Bad", (), {"__cuda_stream__": lambda self: (0, "x")})(), TypeError, "stream is .*Bad"),
    ],
    ids=["str", "float", "bool", "object", "negative", "huge", "no pair", "no handle"],
)
def test_what_is_no_stream_is_refused(side, value, exception, match):
    a, out = side.make(ONES), side.make(np.full((N, N), 7, "float32"))
    with pytest.raises(exception, match="^interop.matmul: " + match):
        interop.matmul(a, a, out=out, stream=value)
    assert (side.library.to_numpy(out) == 7).all()


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
