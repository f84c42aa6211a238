"""Arrays that have no stream of their own, or name one: producers by protocol, `interop.Array`.

The races are as in test_streams.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import device
from helpers.device import Side, delay, fill, is_busy, synchronize
from helpers.dlpack import Cai, Fake, OldFake
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, N, warm

import interop


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
