"""`interop.graph` on a GPU: one CUDA graph of what several libraries do, its memory, and its replays in order."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import alone, device
from helpers.conversions import quiet
from helpers.device import Side, Snapshot, delay, fill, is_busy, synchronize
from helpers.dlpack import Cai
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, N

import interop

ADD_ONE = """
__global__ void add_one(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1;
}
"""
add_one = interop.kernel(ADD_ONE, "add_one", threads="x").returning(y="x")


@pytest.fixture
def three(torch, cupy):
    """torch, CuPy and a kernel of ours in one function: x -> (x @ x, that + 1, that * 2 of CuPy, that - x of torch)."""

    def step(x):
        product = x @ x
        more = add_one(product, product.numel())
        doubled = interop.convert(more, "cupy") * 2
        return product, more, doubled, interop.convert(doubled, "torch") - x

    step(torch.ones(N, N, device="cuda"))
    synchronize()
    return step


def expected(value):
    product = N * value * value
    return product, product + 1, 2 * (product + 1), 2 * (product + 1) - value


def check(made, value):
    for y, right in zip(made, expected(value), strict=True):
        assert (y == right).all()


def addresses(*arrays):
    return [x.data_ptr() if hasattr(x, "data_ptr") else x.data.ptr for x in arrays]


# ---- values and memory ----


def test_three_libraries_in_one_graph(torch, three):
    x = torch.ones(N, N, device="cuda")
    with interop.graph() as g:
        made = three(x)
    for value in (1, 2, 3):
        x.fill_(value)
        g.replay()
        check(made, value)
    assert repr(g) == "<interop.Graph, captured, cuda:0>"


def test_nothing_runs_in_the_block(torch):
    x, out = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    with interop.graph() as g:
        torch.add(x, 1, out=out)
    assert (out == 0).all()
    g.replay()
    assert (out == 2).all()


def test_a_thousand_replays_with_allocations_between(torch, cupy, three):
    x = torch.ones(N, N, device="cuda")
    with interop.graph() as g:
        made = three(x)
    own = {*addresses(*made)}
    for k in range(1000):
        value = k % 7
        x.fill_(value)
        theirs = [torch.full((N, N), -1.0, device="cuda"), cupy.full((N, N), -1, "float32")]
        assert own.isdisjoint(addresses(*theirs))
        mine = interop.full((N, N), -1.0, "float32")
        if k % 10 == 0:
            torch.cuda.empty_cache()
            cupy.get_default_memory_pool().free_all_blocks()
        g.replay()
        check(made, value)
        assert all((y == -1).all() for y in theirs)
        assert (torch.from_dlpack(mine) == -1).all()


def test_temporaries_are_the_graphs(torch, cupy):
    """What the block made and dropped is written to by replays: nobody else gets that memory."""
    x = torch.ones(N, N, device="cuda")
    with interop.graph() as g:
        seen = []
        for _ in range(4):
            temporaries = [x + 1, cupy.from_dlpack(x) + 1, add_one(x, x.numel())]
            seen += addresses(*temporaries)
        del temporaries
    gc.collect()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    others = [torch.full((N, N), 7.0, device="cuda") for _ in range(64)]
    others += [cupy.full((N, N), 7, "float32") for _ in range(64)]
    assert {*seen}.isdisjoint(addresses(*others))
    g.replay()
    assert all((y == 7).all() for y in others)


def test_arrays_outlive_the_graph(torch, cupy, three):
    x = torch.full((N, N), 2.0, device="cuda")
    with interop.graph() as g:
        made = three(x)
        mine = interop.ones((N, N), "float32")
        mine += 1
    g.replay()
    g.reset()
    del g
    gc.collect()
    synchronize()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    junk = [torch.full((N, N), 7.0, device="cuda") for _ in range(64)]
    junk += [cupy.full((N, N), 7, "float32") for _ in range(64)]
    check(made, 2)
    assert (torch.from_dlpack(mine) == 2).all()


def test_the_graph_outlives_its_arrays(torch, cupy, three):
    x, out = torch.ones(N, N, device="cuda"), torch.zeros(N, N, device="cuda")
    with interop.graph() as g:
        out.copy_(three(x)[-1])
        mine = interop.ones((N, N), "float32")
        interop.add(interop.asarray(out), mine, out=out)
        del mine
    gc.collect()
    torch.cuda.empty_cache()
    cupy.get_default_memory_pool().free_all_blocks()
    junk = [torch.full((N, N), 7.0, device="cuda") for _ in range(64)]
    junk += [cupy.full((N, N), 7, "float32") for _ in range(64)]
    junk += [interop.full((N, N), 7.0, "float32") for _ in range(64)]
    for value in (3, 1):
        x.fill_(value)
        g.replay()
        assert (out == expected(value)[-1] + 1).all()
    assert all((interop.convert(y, "torch") == 7).all() for y in junk)


def test_a_graph_that_is_dropped_in_flight_ends_its_replay(torch, cupy):
    x, out = torch.ones(N, N, device="cuda"), torch.zeros(N, N, device="cuda")
    with interop.graph() as g:
        y = cupy.from_dlpack(x) + 1
        out.copy_(torch.from_dlpack(y) + 1)
        del y
    stream = torch.cuda.Stream()
    synchronize()
    delay(stream.cuda_stream, device.COLLECTION_MS)
    g.replay(stream=stream)
    del g
    gc.collect()
    assert is_busy(stream.cuda_stream)
    junk = [cupy.full((N, N), 7, "float32") for _ in range(16)]
    synchronize()
    assert (out == 3).all()
    assert all((y == 7).all() for y in junk)


def test_graphs_that_share_a_pool(torch, cupy):
    x = torch.ones(1 << 20, device="cuda")
    with interop.graph() as first:
        y = (x + 1) * 2
        a = cupy.from_dlpack(y) + 1
    with interop.graph(pool=first.pool) as second:
        z = y + 1
        b = a * 2
    assert second.pool is first.pool
    assert len({*addresses(y, z, a, b)}) == 4
    x.fill_(2)
    first.replay()
    second.replay()
    assert (y == 6).all()
    assert (z == 7).all()
    assert (b == 14).all()
    first.reset()
    del first, a, y
    gc.collect()
    junk = [cupy.full(1 << 20, 9, "float32") for _ in range(4)]
    assert b.data.ptr not in addresses(*junk)


def test_random_numbers_of_torch_go_on(torch):
    with interop.graph() as g:
        x = torch.rand(100, device="cuda")
    g.replay()
    first = x.clone()
    g.replay()
    assert not torch.equal(first, x)


def test_first_calls_are_captured(torch, cupy):
    """A kernel is compiled and loaded, a plan made, and memory allocated, in the block."""
    fresh = interop.kernel(ADD_ONE.replace("+ 1", "+ 5"), "add_one", threads="x").returning(y="x")
    expression = interop.elementwise("x * 3 + 2.25")
    x = torch.ones(1000, device="cuda")
    with interop.graph() as g:
        y = fresh(x, 1000)
        z = expression(cupy.from_dlpack(y))
        f = cupy.fft.fft(z)
        w = interop.matmul(z, z)  # CuPy itself refuses to capture what cuBLAS does
    cupy.fft.config.get_plan_cache().clear()
    x.fill_(2)
    g.replay()
    assert (y == 7).all()
    assert (z == 23.25).all()
    assert abs(complex(f[0]) - 23250) < 1
    assert abs(float(w) - 1000 * 23.25**2) < 100


# ---- arrays of interop's own ----


def test_calls_that_interops_arrays_lead_are_captured(torch):
    x = interop.ones((N, N), "float32")
    with interop.graph() as g:
        y = interop.add(x, x)
        z = interop.zeros((N, N), "float32")
        z += y
        interop.multiply(z, 2, out=z)
    for value in (3.0, 4.0):
        interop.copyto(x, value)
        g.replay()
        assert y[0, 0].item() == 2 * value
        assert (torch.from_dlpack(z) == 4 * value).all()


@pytest.mark.parametrize("how", ["a call", "a conversion"])
def test_a_replay_waits_for_work_on_interops_arrays_and_they_for_it(torch, how):
    x, y = interop.zeros((N, N), "float32"), interop.zeros((N, N), "float32")
    with interop.graph() as g:
        if how == "a call":
            interop.add(x, 1, out=y)
        else:
            torch.add(interop.convert(x, "torch"), 1, out=interop.convert(y, "torch"))
    g.replay()
    other, home = torch.cuda.Stream(), torch.cuda.Stream()
    snapshot = Snapshot((N, N))
    synchronize()
    delay(other.cuda_stream)
    interop.copyto(x, 5.0, stream=other)  # which no current stream has to do with
    with torch.cuda.stream(home):
        g.replay()
    with torch.cuda.stream(torch.cuda.Stream()):
        seen = torch.from_dlpack(y)  # on a stream that nobody has made wait
        snapshot.take(seen.data_ptr(), torch.cuda.current_stream().cuda_stream)
        assert is_busy(other.cuda_stream)
    assert (snapshot.values() == 6).all()
    delay(home.cuda_stream)
    interop.copyto(x, 7.0)
    g.replay(stream=home)
    assert y[3, 3].item() == 8  # the host waits for the replay


def test_an_array_of_interop_that_was_made_before_is_kept(torch):
    x, w = interop.full((N, N), 3.0, "float32"), interop.full((N, N), 4.0, "float32")
    with interop.graph() as g:
        y = interop.add(x, x)
        z = interop.convert(w, "torch") + 1
    del x, w
    gc.collect()
    synchronize()
    junk = [interop.full((N, N), 7.0, "float32") for _ in range(64)]
    synchronize()
    g.replay()
    assert (torch.from_dlpack(y) == 6).all()
    assert (z == 5).all()
    del junk


def test_what_waits_for_interops_arrays_is_refused_by_name():
    x = interop.ones((N, N), "float32")
    with interop.graph() as g:
        assert "no values: " in repr(x)
        for read in (x[0, 0].item, x.tolist):
            with pytest.raises(
                ValueError, match="the host cannot wait for an interop.Array .* captured into a CUDA graph"
            ):
                read()
        with pytest.raises(ValueError, match="interop.add: execution is given, and .* is being captured"):
            interop.add(ONES, ONES, execution="cuda")
        z = interop.add(x, x)
    g.replay()
    assert z[0, 0].item() == 2


# ---- the order of replays ----


@pytest.mark.parametrize("name", ["torch", "cupy"])
@pytest.mark.parametrize("where", ["default", "side"])
def test_a_replay_is_in_order_with_the_current_streams(torch, cupy, name, where):
    """Of torch, on whose current stream it goes, and of CuPy, which takes part: what is queued before and after."""
    library = on_gpu(name)
    side = Side(library)
    x = library.make(ONES)
    handle = side.handle if where == "side" else device.LEGACY
    with interop.graph() as g:
        y = add_one(x, COUNT)
        z = interop.convert(y, "torch" if name == "cupy" else "cupy") * 2
    g.replay()
    pointer = addresses(x)[0]
    snapshot = Snapshot((N, N))
    synchronize()

    def run():
        delay(handle)
        fill(pointer, 5, COUNT, handle)
        g.replay()
        snapshot.take(addresses(z)[0], handle)
        fill(pointer, 9, COUNT, handle)  # comes after the replay has read it
        assert is_busy(handle)

    if where == "side":
        with side.current():
            run()
    else:
        run()
    assert (snapshot.values() == 12).all()


def test_a_replay_on_a_given_stream(torch, cupy):
    x = torch.ones(N, N, device="cuda")
    with interop.graph() as g:
        y = x + 1
        cupy.from_dlpack(y) + 1
    g.replay()
    stream, home = torch.cuda.Stream(), torch.cuda.Stream()
    snapshot = Snapshot((N, N))
    synchronize()
    with torch.cuda.stream(home):
        delay(home.cuda_stream)
        fill(x.data_ptr(), 5, COUNT, home.cuda_stream)
        g.replay(stream=stream)
        snapshot.take(y.data_ptr(), stream.cuda_stream)
        synchronize_home = torch.cuda.Event()
        synchronize_home.record(home)
    assert (snapshot.values() == 6).all()
    delay(stream.cuda_stream)
    g.replay(stream=stream)
    assert is_busy(stream.cuda_stream)
    assert not is_busy(torch.cuda.current_stream().cuda_stream or device.LEGACY)  # which does not wait


def test_a_replay_waits_for_the_one_before_it(torch):
    """On another stream: they write to the same memory, and torch's random numbers are numbered by both."""
    x, total = torch.ones(N, N, device="cuda"), torch.zeros(N, N, device="cuda")
    with interop.graph() as g:
        total.add_(x)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    synchronize()
    delay(first.cuda_stream)
    g.replay(stream=first)
    g.replay(stream=second)
    assert is_busy(second.cuda_stream)
    synchronize()
    assert (total == 2).all()


# ---- Numba ----


def test_a_kernel_of_numba_and_its_memory(torch, numba):
    with quiet():

        @numba.jit
        def scale(x, factor, out):
            k = numba.grid(1)
            if k < x.size:
                out[k] = x[k] * factor

        x = torch.ones(COUNT, device="cuda")
        given = numba.as_cuda_array(x)
        scale[COUNT // 256, 256](given, 1.0, numba.device_array(COUNT, "float32"))
        synchronize()
        with interop.graph() as g:
            temporary = numba.device_array(COUNT, "float32")
            scale[COUNT // 256, 256, g.stream](given, 2.0, temporary)
            out = numba.device_array(COUNT, "float32")
            scale[COUNT // 256, 256, g.stream](temporary, 3.0, out)
            pointer = temporary.device_ctypes_pointer.value
            del temporary
        assert "memalloc" not in vars(numba.current_context().memory_manager)
        junk = [numba.to_device(np.full(COUNT, 7, "float32")) for _ in range(64)]
        assert pointer not in [y.device_ctypes_pointer.value for y in junk]
        for value in (1, 4):
            x.fill_(value)
            g.replay()
            assert (out.copy_to_host() == 6 * value).all()
        assert all((y.copy_to_host() == 7).all() for y in junk)


# ---- without torch ----


def test_without_torch(cupy, tmp_path):
    alone.run(
        """
        import gc, sys
        import cupy

        x = cupy.ones((64, 64), "float32")
        mine = interop.ones((64, 64), "float32")
        add_one = interop.kernel(
            "__global__ void add_one(const float* x, float* y, int n) { const int i = blockIdx.x * blockDim.x + "
            "threadIdx.x; if (i < n) y[i] = x[i] + 1; }", "add_one", threads="x").returning(y="x")
        before = cupy.cuda.get_current_stream()
        with interop.graph() as g:
            assert cupy.cuda.get_current_stream().ptr == int(g.stream) != before.ptr
            assert not gc.isenabled()
            y = add_one(interop.matmul(x, x), 4096)
            z = interop.add(mine, y)
            temporary = y * 2
            del temporary
        assert gc.isenabled()
        assert cupy.cuda.get_current_stream() == before
        assert "torch" not in sys.modules
        for value in (2, 3):
            x.fill(value)
            cupy.get_default_memory_pool().free_all_blocks()
            junk = [cupy.full((64, 64), 7, "float32") for _ in range(32)]
            g.replay()
            assert (y == 64 * value * value + 1).all()
            assert (cupy.from_dlpack(z) == 64 * value * value + 2).all()
            assert all((j == 7).all() for j in junk)
        try:
            with interop.graph() as failing:
                cupy.cuda.get_current_stream().synchronize()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            assert "the capture failed with this call" in error.__notes__[0]
        else:
            raise AssertionError
        with interop.graph() as again:
            w = x + 1
        again.replay()
        assert (w == 4).all()
        del g, again
        gc.collect()
        assert (y == 64 * 9 + 1).all()

        with interop.graph() as alone:
            b = interop.add(mine, 1)
        alone.replay()
        assert b[0, 0].item() == 2
        """,
        tmp_path,
    )


def test_a_library_imported_in_the_block_is_an_error(cupy, tmp_path):
    alone.run(
        """
        import cupy
        x = cupy.ones(3)
        try:
            with interop.graph() as g:
                y = x + 1
                import torch
        except ValueError as error:
            assert "the block has imported torch, whose work was not captured" in str(error), error
        else:
            raise AssertionError
        with interop.graph() as g:
            y = x + 1
        g.replay()
        assert (y == 2).all()
        """,
        tmp_path,
    )


def test_arrays_of_no_library(cupy):
    x = cupy.ones((N, N), "float32")
    with interop.graph() as g:
        y = interop.matmul(Cai(x), Cai(x), stream=g.stream)
    x.fill(2)
    g.replay()
    assert (cupy.from_dlpack(y) == 4 * N).all()
