"""`interop.adapt` on a GPU: functions of CuPy, torch, JAX and Numba with the arrays of the others.

These tests watch the card's time, and want it alone. The same rules on a device that is played:
tests/exchange/test_adapt_order.py.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import device, graphs, machine
from helpers.conversions import quiet, values
from helpers.device import Side, Snapshot, delay, fill, is_busy, slow_in_jax, synchronize
from helpers.dlpack import CudaStream
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, WITH_STREAMS, N

import interop

#: Those with a current stream that can be set.
TOLD = ("torch", "cupy")
PAIRS = pytest.mark.parametrize(("lead", "target"), [(x, y) for x in WITH_STREAMS for y in TOLD if x != y])


def negate_of(target):
    """A function of the library that writes -x to `out`, and allocates nothing then."""
    library = on_gpu(target)
    return library.module.negative


def current_of(target):
    module = on_gpu(target).module
    if target == "torch":
        return module.cuda.current_stream().cuda_stream or device.LEGACY
    return module.cuda.get_current_stream().ptr or device.LEGACY


# ---- what people do ----


def test_cupys_fft_of_a_torch_tensor(torch, cupy):
    import cupyx.scipy.fft

    fft = interop.adapt(cupyx.scipy.fft.fft, "cupy", writes=())
    x = torch.randn(1000, device="cuda")
    made = fft(x)
    assert type(made) is torch.Tensor
    assert made.device == x.device
    assert torch.allclose(made, torch.fft.fft(x), atol=1e-3)
    assert x._version == 0


def test_cupys_sort_of_a_jax_array(jax, cupy):
    x = jax.numpy.array([3.0, 1.0, 2.0])
    made = interop.adapt(cupy.sort, "cupy", writes=())(x)
    assert isinstance(made, jax.Array)
    assert made.tolist() == [1, 2, 3]
    with pytest.raises(TypeError, match="is read-only, and the function may write to it"):
        interop.adapt(cupy.sort, "cupy")(x)


def test_torchs_svd_of_a_cupy_array(torch, cupy):
    x = cupy.random.rand(20, 10)
    u, s, v = interop.adapt(torch.linalg.svd, "torch")(x, full_matrices=False)
    assert all(type(part) is cupy.ndarray for part in (u, s, v))
    assert cupy.allclose((u * s) @ v, x)


def test_a_numba_kernel_of_torch_tensors(torch, numba):
    with quiet():

        @numba.jit
        def add_one(x, out):
            k = numba.grid(1)
            if k < x.size:
                out[k] = x[k] + 1

        def run(x, out):
            add_one[COUNT // 8, 8](x, out)  # Numba warns of grids that leave the card idle
            return out

        call = interop.adapt(run, "numba", writes="out")
        side = Side(on_gpu("torch"))
        x, out = side.make(ONES.reshape(-1)), side.make(ONES.reshape(-1))
        snapshot = Snapshot((N, N))
        call(x, out)
        synchronize()
        with side.current():
            delay(side.handle)
            fill(x.data_ptr(), 2, COUNT, side.handle)
            assert call(x, out) is out
            snapshot.take(out.data_ptr(), side.handle)
        assert (snapshot.values() == 3).all()


def test_numbas_current_device_is_that_of_the_arrays(two_cuda_devices, torch, numba):
    seen = interop.adapt(lambda x: numba.get_current_device().id, "numba")
    for k in two_cuda_devices:
        assert seen(torch.ones(2, device=f"cuda:{k}")) == k


def test_a_given_stream_with_arrays_of_jax_alone(torch, jax):
    x, stream = jax.numpy.ones(3), torch.cuda.Stream()
    made = interop.adapt(jax.numpy.negative, "jax")(x, stream=stream)
    assert isinstance(made, jax.Array)
    assert made.tolist() == [-1, -1, -1]


def test_jax_functions_of_torch_tensors(torch, jax):
    side = Side(on_gpu("torch"))
    x = side.make(ONES)
    call = interop.adapt(jax.jit(lambda x: x * 3), "jax")
    snapshot = Snapshot((N, N))
    with side.current():
        call(x)
        synchronize()
        delay(side.handle)
        fill(x.data_ptr(), 2, COUNT, side.handle)
        made = call(x)
        snapshot.take(made.data_ptr(), side.handle)
    assert type(made) is torch.Tensor
    assert (snapshot.values() == 6).all()


def test_interops_own_functions(torch):
    call = interop.adapt(lambda x: interop.matmul(x, x), "interop")
    made = call(torch.full((4, 4), 2.0, device="cuda"))
    assert type(made) is torch.Tensor
    assert (made == 16).all()


def test_warp_functions(torch):
    warp = machine.need("warp")

    def doubled(x):
        assert warp.get_stream(x.device).cuda_stream == side.handle
        made = warp.empty_like(x)
        warp.copy(made, x)
        return made

    side = Side(on_gpu("torch"))
    x = side.make(ONES)
    with side.current():
        fill(x.data_ptr(), 2, COUNT, side.handle)
        made = interop.adapt(doubled, "warp", writes=())(x)
    assert type(made) is torch.Tensor
    assert (values(made) == 2).all()


# ---- which stream ----


@PAIRS
def test_the_function_works_on_the_stream_of_the_first_array(lead, target):
    side, before = Side(on_gpu(lead)), current_of(target)
    negate, seen = negate_of(target), []

    def noted(x):
        seen.append(current_of(target))
        return negate(x)

    x = side.make(ONES)
    call, snapshot = interop.adapt(noted, target), Snapshot((N, N))
    with side.current(), quiet():
        call(x)
        synchronize()
        delay(side.handle)
        fill(side.library.pointer(x), 2, COUNT, side.handle)
        made = call(x)
        snapshot.take(side.library.pointer(made), side.handle)
        assert is_busy(side.handle)  # and the host has not waited
    assert side.library.is_ours(made)
    assert set(seen) == {side.handle}
    assert current_of(target) == before
    assert (snapshot.values() == -2).all()


@PAIRS
def test_on_default_streams(lead, target):
    library = on_gpu(lead)
    call = interop.adapt(negate_of(target), target)
    x, snapshot = library.make(ONES), Snapshot((N, N))
    with quiet():
        call(x)
        synchronize()
        delay(device.LEGACY)
        fill(library.pointer(x), 2, COUNT, device.LEGACY)
        made = call(x)
        snapshot.take(library.pointer(made), device.LEGACY)
    assert (snapshot.values() == -2).all()


@PAIRS
def test_it_waits_for_the_other_arguments(lead, target):
    """Of a third library, or of another stream of Numba's."""
    third = next(name for name in WITH_STREAMS if name not in (lead, target))
    first, other = Side(on_gpu(lead)), Side(on_gpu(third))
    add = on_gpu(target).module.add
    x, y, snapshot = first.make(ONES), other.make(ONES), Snapshot((N, N))
    call = interop.adapt(add, target)
    with first.current(), other.current(), quiet():
        call(x, y)
        synchronize()
        delay(other.handle)
        fill(other.library.pointer(y), 2, COUNT, other.handle)
        made = call(x, y)
        snapshot.take(first.library.pointer(made), first.handle)
    assert (snapshot.values() == 3).all()


@PAIRS
def test_the_other_arguments_wait_for_it(lead, target):
    third = next(name for name in WITH_STREAMS if name not in (lead, target))
    first, other = Side(on_gpu(lead)), Side(on_gpu(third))
    negate = negate_of(target)
    x, out, snapshot = first.make(ONES), other.make(ONES), Snapshot((N, N))
    call = interop.adapt(lambda x, out: negate(x, out=out), target, writes="out")
    with first.current(), other.current(), quiet():
        call(x, out)
        synchronize()
        delay(first.handle)
        fill(first.library.pointer(x), 2, COUNT, first.handle)
        assert call(x, out) is out
        snapshot.take(other.library.pointer(out), other.handle)
    assert (snapshot.values() == -2).all()


@pytest.mark.parametrize("target", TOLD)
def test_arrays_of_the_library_itself_are_waited_for(target):
    lead = "cupy" if target == "torch" else "torch"
    first, own = Side(on_gpu(lead)), Side(on_gpu(target))
    add = on_gpu(target).module.add
    x, y, snapshot = first.make(ONES), own.make(ONES), Snapshot((N, N))
    call = interop.adapt(add, target)
    with first.current(), own.current():
        call(x, y)
        synchronize()
        delay(own.handle)
        fill(own.library.pointer(y), 2, COUNT, own.handle)
        made = call(x, y)
        snapshot.take(first.library.pointer(made), first.handle)
    assert (snapshot.values() == 3).all()


@pytest.mark.parametrize("target", TOLD)
def test_it_waits_for_a_pending_jax_array(jax, target):
    slow, own = slow_in_jax(jax), Side(on_gpu(target))
    x = on_gpu("jax").make(ONES)
    slow(x, 3.0).block_until_ready()
    call = interop.adapt(negate_of(target), target, writes=())
    with own.current():
        made = call(slow(x, 2.0))
    assert isinstance(made, jax.Array)
    assert (np.asarray(made) == -2).all()


@pytest.mark.parametrize("target", TOLD)
@pytest.mark.parametrize("kind", ["int", "object", "torch"])
def test_a_given_stream(torch, target, kind):
    lead = "cupy" if target == "torch" else "torch"
    side, stream = Side(on_gpu(lead)), torch.cuda.Stream()
    handle = stream.cuda_stream
    given = {"int": handle, "object": CudaStream(handle), "torch": stream}[kind]
    call, seen = interop.adapt(lambda x: (seen.append(current_of(target)), negate_of(target)(x))[1], target), []
    x, snapshot = side.make(ONES), Snapshot((N, N))
    with side.current():
        call(x, stream=given)
        synchronize()
        delay(side.handle)
        fill(side.library.pointer(x), 2, COUNT, side.handle)
        made = call(x, stream=given)
        snapshot.take(side.library.pointer(made), handle)
    assert set(seen) == {handle}
    assert (snapshot.values() == -2).all()


def test_the_streams_of_the_arguments_do_not_wait_for_a_given_one(torch, cupy):
    side, given = Side(on_gpu("torch")), device.new_stream()
    x = side.make(ONES)
    call = interop.adapt(cupy.negative, "cupy", writes=())
    with side.current():
        call(x, stream=given)
        synchronize()
        delay(given)
        call(x, stream=given)
        assert is_busy(given)
        assert not is_busy(side.handle)
        assert interop._core.held_count() > 0


def test_an_interop_array_knows_of_the_work(torch, cupy):
    side = Side(on_gpu("torch"))
    x, out = side.make(ONES), interop.zeros((N, N), "float32")
    snapshot = Snapshot((N, N))
    call = interop.adapt(lambda x, out: cupy.negative(x, out=out), "cupy", writes="out")
    with side.current():
        call(x, out)
        synchronize()
        delay(side.handle)
        fill(x.data_ptr(), 2, COUNT, side.handle)
        call(x, out)
    other = cupy.cuda.Stream(non_blocking=True)
    with other:
        seen = cupy.from_dlpack(out)
        snapshot.take(seen.data.ptr, other.ptr)
    assert (snapshot.values() == -2).all()


def test_what_the_function_raises_restores_the_stream(torch, cupy):
    side, before = Side(on_gpu("torch")), current_of("cupy")

    def fails(x):
        assert current_of("cupy") == side.handle
        raise KeyError("mine")

    x = side.make(ONES)
    with side.current(), pytest.raises(KeyError, match="mine"):
        interop.adapt(fails, "cupy")(x)
    assert current_of("cupy") == before


# ---- graphs ----


def test_torch_captures_a_function_of_cupy(torch, cupy):
    call = interop.adapt(lambda x, out: cupy.negative(x, out=out), "cupy", writes="out")
    x, out = torch.ones(N, N, device="cuda"), torch.zeros(N, N, device="cuda")
    call(x, out)  # CuPy compiles it
    with graphs.captured(torch) as graph:
        call(x, out)
    for value in (2, 3):
        x.fill_(value)
        graph.replay()
        assert (out == -value).all()


def test_a_capture_that_another_stream_has_no_part_in_is_an_error(torch, cupy):
    own = Side(on_gpu("cupy"))
    x, y = torch.ones(N, N, device="cuda"), own.make(ONES)
    call = interop.adapt(cupy.add, "cupy")
    with own.current():
        call(x, y)
        synchronize()
        with graphs.captured(torch):
            x * 2  # torch warns of an empty graph
            with pytest.raises(ValueError, match="not part of the same CUDA graph capture"):
                call(x, y)


# ---- lifetimes ----


@PAIRS
def test_arguments_may_be_dropped_at_once(lead, target):
    side = Side(on_gpu(lead))
    call = interop.adapt(negate_of(target), target)
    with side.current(), quiet():
        call(side.make(ONES))
        for _ in range(20):
            x = side.make(ONES)
            delay(side.handle, 20)
            made, snapshot = call(x), Snapshot((N, N))
            snapshot.take(side.library.pointer(made), side.handle)
            del x
            gc.collect()
            junk = [side.library.make(ONES * 7) for _ in range(4)]
            assert (snapshot.values() == -1).all()
            del junk


def test_the_memory_of_results_lives_as_long_as_they(torch, cupy):
    call = interop.adapt(cupy.negative, "cupy", writes=())
    side = Side(on_gpu("torch"))
    x = side.make(ONES)
    with side.current():
        kept = [call(x) for _ in range(50)]
        gc.collect()
        junk = [cupy.full((N, N), 7, "float32") for _ in range(50)]
        assert all((made == -1).all() for made in kept)
        del junk


# ---- the host ----


def test_device_arrays_are_not_for_numpy(torch, cupy):
    x = torch.ones(3, device="cuda")
    with pytest.raises(TypeError, match=r"adapt\(sum\): a: NumPy has arrays in host memory only.*by copy=None"):
        interop.adapt(np.sum, "numpy", writes=())(x)
    made = interop.adapt(np.cumsum, "numpy", writes=(), copy=None)(x)
    assert made.device == x.device
    assert made.tolist() == [1, 2, 3]
    assert interop.explain(interop.adapt(np.cumsum, "numpy", writes=(), copy=None), x).copies[1] == (
        "results: copied to cuda:0, where a is"
    )


def test_host_arrays_are_not_for_cupy(torch, cupy):
    x = torch.ones(3)
    with pytest.raises(TypeError, match="CuPy has arrays on the GPU only"):
        interop.adapt(cupy.negative, "cupy", writes=())(x)
    made = interop.adapt(cupy.negative, "cupy", writes=(), copy=None)(x)
    assert made.device == x.device
    assert made.tolist() == [-1, -1, -1]


def test_pinned_memory_is_the_gpus(torch, cupy):
    x = interop.ones(3, "float32", memory="pinned")
    made = interop.adapt(cupy.negative, "cupy", writes=())(x)
    assert made.tolist() == [-1, -1, -1]


# ---- explain ----


def test_explain_says_the_stream(torch, cupy):
    side = Side(on_gpu("torch"))
    x, y = side.make(ONES), Side(on_gpu("cupy")).make(ONES)
    with side.current():
        plan = interop.explain(interop.adapt(cupy.add, "cupy", writes=()), x, y)
    assert plan.stream == side.handle
    assert plan.device == "cuda:0"
    assert len(plan.waits) == 1
    assert plan.copies == ()
