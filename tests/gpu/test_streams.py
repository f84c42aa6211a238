"""Work goes on the caller's stream, after the producers' writes and before their next ones.

Each test delays a stream with a kernel that spins, so that work which does not wait reads, or leaves behind, the value
of before: a missing wait is a wrong number, not a matter of luck.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from helpers import dlpack

import interop

pytestmark = pytest.mark.gpu

N = 64
_SPIN = r"""
extern "C" __global__ void spin(long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}
"""


@pytest.fixture
def delay(cupy) -> Any:
    """A function that keeps a stream (a CuPy stream, or a handle) busy for 50 ms."""
    kernel = cupy.RawKernel(_SPIN, "spin")

    def spin(stream: Any) -> None:
        handle = stream if isinstance(stream, int) else getattr(stream, "ptr", None) or stream.cuda_stream
        with cupy.cuda.ExternalStream(handle):
            kernel((1,), (1,), (50_000_000,))

    spin(cupy.cuda.Stream.null.ptr or 1)  # compiled and loaded before any test depends on its timing
    cupy.cuda.runtime.deviceSynchronize()
    return spin


class CupySide:
    """CuPy arrays, and CuPy's current stream."""

    def __init__(self, cupy: Any) -> None:
        self.module = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)

    def current(self) -> Any:
        return self.stream

    def full(self, value: float) -> Any:
        return self.module.full((N, N), value, "f4")

    def fill(self, x: Any, value: float) -> None:
        x.fill(value)

    def copy(self, x: Any) -> Any:
        return x.copy()

    def values(self, x: Any) -> np.ndarray:
        self.stream.synchronize()
        return x.get(stream=self.stream)


class TorchSide:
    """torch tensors, and torch's current stream."""

    def __init__(self, torch: Any) -> None:
        self.module = torch
        self.stream = torch.cuda.Stream()

    def current(self) -> Any:
        return self.module.cuda.stream(self.stream)

    def full(self, value: float) -> Any:
        return self.module.full((N, N), value, device="cuda")

    def fill(self, x: Any, value: float) -> None:
        x.fill_(value)

    def copy(self, x: Any) -> Any:
        return x.clone()

    def values(self, x: Any) -> np.ndarray:
        self.stream.synchronize()
        with self.current():
            return x.cpu().numpy()


@pytest.fixture(params=["cupy", "torch"])
def side(request, cupy, torch) -> Any:
    """A library with a side stream of its own that is not ordered with any other."""
    made = CupySide(cupy) if request.param == "cupy" else TorchSide(torch)
    cupy.cuda.runtime.deviceSynchronize()
    return made


@pytest.fixture
def other(side, cupy, torch) -> Any:
    """The other library, on another stream."""
    return TorchSide(torch) if isinstance(side, CupySide) else CupySide(cupy)


def _settle(cupy: Any) -> None:
    cupy.cuda.runtime.deviceSynchronize()


# ---- one library, its current stream ----


def test_default_stream(device_library):
    x = np.full((N, N), 2, np.float32)
    a = device_library.make(x)
    c = interop.matmul(a, a)
    assert device_library.is_ours(c)
    assert (device_library.to_numpy(c) == 4 * N).all()


def test_side_stream_is_honoured(side, delay, cupy):
    a, b = side.full(0), side.full(1)
    _settle(cupy)
    with side.current():
        delay(side.stream)
        side.fill(a, 1)
        c = interop.matmul(a, b)
    assert (side.values(c) == N).all()


def test_side_stream_is_honoured_by_out(side, delay, cupy):
    a, b, out = side.full(0), side.full(1), side.full(-1)
    _settle(cupy)
    with side.current():
        delay(side.stream)
        side.fill(a, 1)
        side.fill(out, -2)
        assert interop.matmul(a, b, out=out) is out
    assert (side.values(out) == N).all()


@pytest.mark.parametrize("backend", ["tiled", "cublas"])
def test_each_backend_runs_on_the_side_stream(side, delay, cupy, backend):
    a, b = side.full(0), side.full(1)
    interop.matmul(a, b, backend=backend)
    _settle(cupy)
    with side.current():
        delay(side.stream)
        side.fill(a, 1)
        c = interop.matmul(a, b, backend=backend)
    assert (side.values(c) == N).all()


def test_the_host_does_not_wait(side, delay, cupy):
    a = side.full(1)
    interop.matmul(a, a)
    _settle(cupy)
    with side.current():
        delay(side.stream)
        interop.matmul(a, a)
        busy = not side.stream.done if isinstance(side, CupySide) else not side.stream.query()
    assert busy
    _settle(cupy)


def test_jax_result_is_ordered_behind_its_operands(jax, cuda_device):
    x = jax.device_put(np.ones((2048, 2048), np.float32), jax.devices("cuda")[0])
    for _ in range(20):
        x = (x @ x) / 2048  # a queue of work that the call must come after
    c = interop.matmul(x, x)
    assert np.asarray(c).min() == np.asarray(c).max() == 2048


def test_numba_array_bound_to_a_stream(numba, delay, cupy):
    stream = numba.stream()
    device = numba.to_device(np.zeros((N, N), np.float32), stream=stream)
    ones = numba.to_device(np.ones((N, N), np.float32), stream=stream)
    source = numba.pinned_array((N, N), np.float32)
    source[...] = 1
    _settle(cupy)
    delay(int(stream.handle.value) if hasattr(stream.handle, "value") else int(stream.handle))
    device.copy_to_device(source, stream=stream)
    c = interop.matmul(device, ones)
    stream.synchronize()
    assert (c.copy_to_host() == N).all()


def test_cai_stream_is_waited_for(delay, cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    a, b = cupy.zeros((N, N), "f4"), cupy.ones((N, N), "f4")
    _settle(cupy)
    with stream:
        delay(stream)
        a.fill(1)
        shown = dlpack.Cai(a)  # its interface names the stream that is current when it is read
        c = interop.matmul(shown, dlpack.Cai(b))
    assert isinstance(c, interop.Array)
    assert (cupy.from_dlpack(c).get() == N).all()


def test_cai_stream_of_another_array_is_joined_both_ways(delay, cupy, torch):
    stream = cupy.cuda.Stream(non_blocking=True)
    mine = torch.cuda.Stream()
    a, b = torch.ones(N, N, device="cuda"), cupy.zeros((N, N), "f4")
    _settle(cupy)
    with stream:
        delay(stream)
        b.fill(1)
    shown = dlpack.Cai(b, stream=stream.ptr)
    with torch.cuda.stream(mine):
        c = interop.matmul(a, shown)
        delay(mine)
        d = interop.matmul(a, shown)
    with stream:
        b.fill(np.nan)  # must come after both products have read it
    mine.synchronize()
    assert (c == N).all()
    assert (d == N).all()


# ---- stream= ----


class _Protocol:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@pytest.mark.parametrize("kind", ["int", "torch", "cupy", "protocol"])
def test_stream_argument(side, delay, cupy, torch, kind):
    chosen = torch.cuda.Stream() if kind == "torch" else cupy.cuda.Stream(non_blocking=True)
    handle = chosen.cuda_stream if kind == "torch" else chosen.ptr
    argument = {"int": handle, "protocol": _Protocol(handle)}.get(kind, chosen)
    a, b = side.full(0), side.full(1)
    _settle(cupy)
    with side.current():
        delay(side.stream)
        side.fill(a, 1)
        c = interop.matmul(a, b, stream=argument)  # the chosen stream waits for the library's
    chosen.synchronize()
    copied = cupy.asarray(c) if isinstance(side, CupySide) else c
    _settle(cupy)
    assert (side.values(copied) == N).all()


def test_stream_argument_is_where_the_work_goes(side, delay, cupy):
    chosen = cupy.cuda.Stream(non_blocking=True)
    a, b, out = side.full(1), side.full(1), side.full(0)
    _settle(cupy)
    delay(chosen)
    with side.current():
        interop.matmul(a, b, out=out, stream=chosen)
        early = side.copy(out)  # the library's own stream does not wait for the chosen one
    assert (side.values(early) == 0).all()
    chosen.synchronize()
    assert (side.values(out) == N).all()


def test_stream_argument_holds_the_inputs(side, delay, cupy):
    chosen = cupy.cuda.Stream(non_blocking=True)
    with side.current():
        a, b, out = side.full(1), side.full(1), side.full(0)
        _settle(cupy)
        delay(chosen)
        interop.matmul(a, b, out=out, stream=chosen)
        del a
        junk = [side.full(7) for _ in range(8)]  # the pool would hand out the memory of `a` at once
        side.stream.synchronize()
    chosen.synchronize()
    assert (side.values(out) == N).all()
    del junk


@pytest.mark.parametrize("handle", [0, 1, 2])
def test_default_streams_by_handle(device_library, handle):
    x = np.ones((N, N), np.float32)
    a = device_library.make(x)
    c = interop.matmul(a, a, stream=handle)
    _settle(pytest.importorskip("cupy"))
    assert (device_library.to_numpy(c) == N).all()


def test_stream_argument_of_a_jax_call(jax, cupy, delay):
    x = jax.device_put(np.ones((N, N), np.float32), jax.devices("cuda")[0])
    stream = cupy.cuda.Stream(non_blocking=True)
    c = interop.matmul(x, x, stream=stream)
    with stream:
        copy = cupy.from_dlpack(c).copy()
    stream.synchronize()
    assert (copy.get() == N).all()


# ---- two libraries in one call ----


def test_mixed_call_waits_for_both_producers(side, other, delay, cupy):
    a, b = side.full(0), other.full(0)
    _settle(cupy)
    with other.current():
        delay(other.stream)
        other.fill(b, 1)
        with side.current():
            delay(side.stream)
            side.fill(a, 1)
            c = interop.matmul(a, b)
    assert type(c) is type(a)
    assert (side.values(c) == N).all()


def test_mixed_call_is_waited_for_by_the_other_library(side, other, delay, cupy):
    a, b = side.full(1), other.full(1)
    _settle(cupy)
    with side.current(), other.current():
        delay(side.stream)
        c = interop.matmul(a, b)
        other.fill(b, np.nan)  # on its own stream, which must come after the product
    assert (side.values(c) == N).all()


def test_out_of_another_library_is_joined_both_ways(side, other, delay, cupy):
    a, b, out = side.full(1), side.full(1), other.full(0)
    _settle(cupy)
    with side.current(), other.current():
        delay(other.stream)
        other.fill(out, -1)  # before the product: must not overwrite it
        assert interop.matmul(a, b, out=out) is out
        delay(side.stream)
        interop.matmul(a, b, out=out)
        seen = other.copy(out)  # after the product, on the other library's stream
        other.fill(out, -2)
    assert (other.values(seen) == N).all()


def test_jax_operand_in_a_torch_call(jax, torch, cuda_device):
    x = jax.device_put(np.ones((2048, 2048), np.float32), jax.devices("cuda")[0])
    for _ in range(20):
        x = (x @ x) / 2048
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        c = interop.matmul(torch.ones(2, 2048, device="cuda"), x)
    stream.synchronize()
    assert isinstance(c, torch.Tensor)
    assert (c == 2048).all()


def test_jax_leads_a_mixed_call(jax, cupy, delay):
    stream = cupy.cuda.Stream(non_blocking=True)
    a = jax.device_put(np.ones((N, N), np.float32), jax.devices("cuda")[0])
    b = cupy.zeros((N, N), "f4")
    _settle(cupy)
    with stream:
        delay(stream)
        b.fill(1)
        c = interop.matmul(a, b)
        b.fill(np.nan)
    assert isinstance(c, jax.Array)
    assert (np.asarray(c) == N).all()


def test_array_waits_for_the_work_that_wrote_it(delay, cupy, torch):
    stream = cupy.cuda.Stream(non_blocking=True)
    a, b = cupy.zeros((N, N), "f4"), cupy.ones((N, N), "f4")
    _settle(cupy)
    with stream:
        delay(stream)
        a.fill(1)
        c = interop.matmul(dlpack.Cai(a), dlpack.Cai(b))
    with torch.cuda.stream(torch.cuda.Stream()):
        exported = torch.from_dlpack(c).clone()
        torch.cuda.current_stream().synchronize()
    assert (exported == N).all()
    with torch.cuda.stream(torch.cuda.Stream()):
        product = interop.matmul(torch.ones(N, N, device="cuda"), c)
        torch.cuda.current_stream().synchronize()
    assert (product == N * N).all()


# ---- threads ----


def test_threads_with_streams_of_their_own(side, cupy, torch):
    kind = type(side)
    sides = [kind(side.module) for _ in range(8)]
    arrays = [side.full(k + 1) for k in range(8)]
    _settle(cupy)

    def work(k: int) -> bool:
        mine = sides[k]
        with mine.current():
            for _ in range(50):
                c = interop.matmul(arrays[k], arrays[k])
                if not (mine.values(c) == N * (k + 1) ** 2).all():
                    return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_stream_handles_may_be_reused(cupy):
    for k in range(100):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            a = cupy.full((N, N), k, "f4")
            c = interop.matmul(a, a)
            stream.synchronize()
            assert (c == N * k * k).all()
