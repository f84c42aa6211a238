"""Calls with `stream=`: the work is queued there, and what waits for what.

The races are as in test_streams.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from helpers import device
from helpers.device import Side, Snapshot, delay, fill, is_busy, slow_in_jax, synchronize
from helpers.dlpack import CudaStream
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, N, host_did_not_wait, warm

import interop


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
