"""`interop.adopt` on a GPU: a kernel of each library with the arrays of the others.

These tests watch the card's time, and want it alone. The rules for functions of tvm-ffi on a device that is played:
tests/exchange/test_adopt_order.py.
"""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
from helpers import device, graphs, machine
from helpers.conversions import quiet
from helpers.device import Side, Snapshot, delay, fill, is_busy, slow_in_jax, synchronize
from helpers.kernels import ADD
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, WITH_STREAMS, N

import interop

KINDS = ("tvm_ffi", "cupy", "cuda_core", "numba", "triton")
C_ADD = ADD.replace("__global__", 'extern "C" __global__')


def _tvm_ffi():
    tvm_ffi = machine.need("tvm_ffi")
    add = interop.kernel(ADD, "add", threads="a")

    def function(a, b, c, n):
        add(a, b, c, n)  # on the stream of tvm-ffi's environment

    return interop.adopt(tvm_ffi.convert(function), "a, b, c, n", writes="c")


def _cupy():
    return interop.adopt(machine.need("cupy").RawKernel(C_ADD, "add"), threads="a", writes="c")


def _cuda_core():
    machine.need("cuda_core")
    from cuda.core import Device, Program, ProgramOptions

    with device.primary_context():
        options = ProgramOptions(arch=f"sm_{Device(0).arch}")
        kernel = Program(C_ADD, "c++", options).compile("cubin").get_kernel("add")
    return interop.adopt(kernel, "const float* a, const float* b, float* c, long long n", threads="a")


def _numba():
    cuda = machine.need("numba")

    @cuda.jit
    def add(a, b, c, n):
        k = cuda.grid(1)
        if k < n:
            row, column = k // c.shape[1], k % c.shape[1]
            c[row, column] = a[row, column] + b[row, column]

    return interop.adopt(add, threads="a", writes="c")


def _triton():
    triton = machine.need("triton")
    from interop._commands.bench.triton_kernels import add

    def blocks(meta):
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    return interop.adopt(add, grid=blocks, writes="c", options={"BLOCK": 256})


MAKERS = {"tvm_ffi": _tvm_ffi, "cupy": _cupy, "cuda_core": _cuda_core, "numba": _numba, "triton": _triton}
_made = {}


@pytest.fixture(params=KINDS)
def add(request):
    """c = a + b of n elements."""
    if request.param not in _made:
        with quiet():
            _made[request.param] = MAKERS[request.param]()
    return _made[request.param]


LEADS = pytest.mark.parametrize("lead", WITH_STREAMS)


# ---- values ----


@pytest.mark.parametrize("library", ["torch", "cupy", "jax", "numba"])
def test_arrays_of_each_library(add, library):
    library = on_gpu(library)
    x, y = library.make(ONES), library.make(ONES * 2)
    with quiet():
        made = add.returning(c="a")(x, y, COUNT)
        assert library.is_ours(made)
        assert (library.to_numpy(made) == 3).all()
        if library.name != "jax":
            out = library.make(ONES)
            assert add(x, y, out, COUNT) is None
            assert (library.to_numpy(out) == 3).all()


def test_arrays_of_several_libraries(add, torch, cupy, jax):
    x, y, out = torch.ones(N, N, device="cuda"), jax.numpy.full((N, N), 2.0, "float32"), cupy.zeros((N, N), "float32")
    with quiet():
        add(x, y, out, COUNT)
    assert (out == 3).all()


def test_what_is_written_is_no_jax_array(add, jax):
    x = jax.numpy.ones((N, N))
    with quiet(), pytest.raises(TypeError, match="c is jaxlib.*, which is immutable"):
        add(x, x, x, COUNT)


def test_host_arrays_are_refused(add, torch):
    if "tvm_ffi" in repr(add):
        pytest.skip("which takes host arrays")
    with pytest.raises(TypeError, match="a is .*in host memory|on a CUDA device"):
        add(ONES, ONES, ONES.copy(), COUNT)


def test_tensors_that_require_grad(add, torch):
    x = torch.ones(N, N, device="cuda", requires_grad=True)
    with quiet(), pytest.raises(BufferError, match="a requires grad"):
        add.returning(c="a")(x, x, COUNT)
    y = torch.ones(N, N, device="cuda")
    before = y._version
    with quiet(), torch.no_grad():
        add(x, x, y, COUNT)
    assert y._version == before + 1


# ---- which stream ----


@LEADS
def test_the_kernel_works_on_the_stream_of_the_first_array(add, lead):
    side = Side(on_gpu(lead))
    x, out = side.make(ONES), side.make(ONES)
    snapshot, pointer = Snapshot((N, N)), side.library.pointer
    with side.current(), quiet():
        add(x, x, out, COUNT)
        synchronize()
        delay(side.handle)
        fill(pointer(x), 2, COUNT, side.handle)
        add(x, x, out, COUNT)
        snapshot.take(pointer(out), side.handle)
        assert is_busy(side.handle)  # and the host has not waited
    assert (snapshot.values() == 4).all()


@LEADS
def test_on_default_streams(add, lead):
    library = on_gpu(lead)
    x, out, snapshot = library.make(ONES), library.make(ONES), Snapshot((N, N))
    with quiet():
        add(x, x, out, COUNT)
        synchronize()
        delay(device.LEGACY)
        fill(library.pointer(x), 2, COUNT, device.LEGACY)
        add(x, x, out, COUNT)
        snapshot.take(library.pointer(out), device.LEGACY)
    assert (snapshot.values() == 4).all()


@LEADS
def test_it_waits_for_the_other_arguments(add, lead):
    third = next(name for name in WITH_STREAMS if name != lead)
    first, other = Side(on_gpu(lead)), Side(on_gpu(third))
    x, out, y, snapshot = first.make(ONES), first.make(ONES), other.make(ONES), Snapshot((N, N))
    with first.current(), other.current(), quiet():
        add(x, y, out, COUNT)
        synchronize()
        delay(other.handle)
        fill(other.library.pointer(y), 2, COUNT, other.handle)
        add(x, y, out, COUNT)
        snapshot.take(first.library.pointer(out), first.handle)
    assert (snapshot.values() == 3).all()


@LEADS
def test_the_other_arguments_wait_for_it(add, lead):
    third = next(name for name in WITH_STREAMS if name != lead)
    first, other = Side(on_gpu(lead)), Side(on_gpu(third))
    x, out, snapshot = first.make(ONES), other.make(ONES), Snapshot((N, N))
    with first.current(), other.current(), quiet():
        add(x, x, out, COUNT)
        synchronize()
        delay(first.handle)
        fill(first.library.pointer(x), 2, COUNT, first.handle)
        add(x, x, out, COUNT)
        snapshot.take(other.library.pointer(out), other.handle)
    assert (snapshot.values() == 4).all()


def test_it_waits_for_a_pending_jax_array(add, jax):
    slow, x = slow_in_jax(jax), on_gpu("jax").make(ONES)
    slow(x, 3.0).block_until_ready()
    with quiet():
        made = add.returning(c="a")(slow(x, 2.0), x, COUNT)
    assert isinstance(made, jax.Array)
    assert (np.asarray(made) == 3).all()


@pytest.mark.parametrize("kind", ["int", "torch"])
def test_a_given_stream(add, torch, kind):
    side, stream = Side(on_gpu("cupy")), torch.cuda.Stream()
    given = stream if kind == "torch" else stream.cuda_stream
    x, out, snapshot = side.make(ONES), side.make(ONES), Snapshot((N, N))
    with side.current(), quiet():
        add(x, x, out, COUNT, stream=given)
        synchronize()
        delay(side.handle)
        fill(x.data.ptr, 2, COUNT, side.handle)
        add(x, x, out, COUNT, stream=given)
        snapshot.take(out.data.ptr, stream.cuda_stream)
    assert (snapshot.values() == 4).all()


def test_the_current_streams_are_as_they_were(add, torch, cupy):
    side = Side(on_gpu("cupy"))
    x = side.make(ONES)
    before = torch.cuda.current_stream(), torch.cuda.current_device()
    with side.current(), quiet():
        add.returning(c="a")(x, x, COUNT)
        assert cupy.cuda.get_current_stream().ptr == side.handle
    assert (torch.cuda.current_stream(), torch.cuda.current_device()) == before


# ---- lifetimes ----


@LEADS
def test_arguments_may_be_dropped_at_once(add, lead):
    side, call = Side(on_gpu(lead)), add.returning(c="a")
    with side.current(), quiet():
        call(side.make(ONES), side.make(ONES), COUNT)
        for _ in range(20):
            x, y = side.make(ONES), side.make(ONES * 2)
            delay(side.handle, 20)
            made, snapshot = call(x, y, COUNT), Snapshot((N, N))
            snapshot.take(side.library.pointer(made), side.handle)
            del x, y
            gc.collect()
            junk = [side.library.make(ONES * 7) for _ in range(4)]
            assert (snapshot.values() == 3).all()
            del junk


def test_arguments_are_held_for_a_given_stream(add, torch):
    given = device.new_stream()
    x, snapshot = torch.ones(N, N, device="cuda"), Snapshot((N, N))
    out = torch.zeros(N, N, device="cuda")
    with quiet():
        add(x, x, out, COUNT, stream=given)
        synchronize()
        delay(given)
        add(x, x, out, COUNT, stream=given)
        snapshot.take(out.data_ptr(), given)
        del x
        junk = [torch.full((N, N), 7.0, device="cuda") for _ in range(4)]
    assert (snapshot.values() == 2).all()
    del junk


# ---- graphs ----


def test_torch_captures_it(add, torch):
    x, out = torch.ones(N, N, device="cuda"), torch.zeros(N, N, device="cuda")
    with quiet():
        add(x, x, out, COUNT)  # which compiles and loads it
        with graphs.captured(torch) as graph:
            add(x, x, out, COUNT)
    for value in (2, 3):
        x.fill_(value)
        graph.replay()
        assert (out == 2 * value).all()


def test_a_capture_that_another_stream_has_no_part_in_is_an_error(add, torch):
    own = Side(on_gpu("cupy"))
    x, out, y = torch.ones(N, N, device="cuda"), torch.zeros(N, N, device="cuda"), own.make(ONES)
    with own.current(), quiet():
        add(x, y, out, COUNT)
        synchronize()
        with graphs.captured(torch):
            x * 2  # torch warns of an empty graph
            with pytest.raises(ValueError, match="not part of the same CUDA graph capture"):
                add(x, y, out, COUNT)


# ---- what each of them has of its own ----


def test_an_operator_of_it(add, torch, request):
    kind = request.node.callspec.params["add"]
    if kind in ("cupy", "cuda_core"):
        call, signature = add, "a[...], b[...], n -> c[...]"
    else:
        call, signature = add.returning(c="a"), "a[...], b[...], n -> [...]"
    operator = interop.operator(f"adopted::add_by_{kind}", call, signature, gradient=lambda g, a, b, n, c: (g, g, None))
    x = torch.ones(N, N, device="cuda", requires_grad=True)
    with quiet():
        operator(x, x, COUNT).sum().backward()
    assert (x.grad == 2).all()


def test_explain_says_the_stream(add, torch):
    side = Side(on_gpu("torch"))
    x, y = side.make(ONES), Side(on_gpu("cupy")).make(ONES)
    with side.current(), quiet():
        plan = interop.explain(add.returning(c="a"), x, y, COUNT)
    assert (plan.stream, plan.device) == (side.handle, "cuda:0")
    assert (plan.result_library, plan.result_shape) == ("torch", (N, N))
    assert len(plan.waits) == 1


@pytest.mark.parametrize("kind", ["cupy", "cuda_core"])
def test_inside_jit(jax, kind):
    call = MAKERS[kind]().returning(c="a")
    x = jax.numpy.ones((N, N))
    made = jax.jit(lambda x: call(x, x + 1, COUNT) * 2)(x)
    assert (np.asarray(made) == 6).all()


def test_functions_of_a_raw_module(torch, cupy):
    source = ADD.replace("__global__", "template <typename T>\n__global__").replace("float", "T")
    module = cupy.RawModule(code=source, name_expressions=["add<double>"])
    add = interop.adopt(module.get_function("add<double>"), threads="arg0").returning(arg2="arg0")
    x = torch.ones(5, dtype=torch.float64, device="cuda")
    assert add(x, x, 5).tolist() == [2] * 5
    with pytest.raises(TypeError, match="arg0 is float32"):
        add(x.float(), x.float(), 5)


def test_more_shared_memory_than_every_kernel_has(torch, cupy):
    source = """
extern "C" __global__ void last(float* x, int n) {
  extern __shared__ float elements[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) elements[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) x[0] = elements[n - 1];
}
"""
    last = interop.adopt(cupy.RawKernel(source, "last"), grid=1)
    x = torch.zeros(1, device="cuda")
    last(x, 16000, shared=64000)
    assert x.item() == 15999


def test_raw_kernels_are_pickled(torch, cupy):
    call = pickle.loads(pickle.dumps(_cupy().returning(c="a")))
    x = torch.ones(5, device="cuda")
    assert call(x, x, 5).tolist() == [2] * 5


def test_launches_of_numba(torch, numba):
    with quiet():

        @numba.jit
        def mark(x):
            x[numba.grid(1)] = numba.blockDim.x

        x = torch.zeros(64, device="cuda")
        interop.adopt(mark, grid=2, block=32)(x)
        assert (x == 32).all()
        interop.adopt(mark, grid=lambda x: x.shape[0] // 16)(x, block=16)
        assert (x == 16).all()
        interop.adopt(mark)(x, threads="x", block=64)
        assert (x == 64).all()
        interop.adopt(mark, grid=0)(x)  # which launches nothing
        with pytest.raises(ValueError, match="neither grid nor threads is given"):
            interop.adopt(mark)(x)


def test_launches_of_triton(torch):
    machine.need("triton")
    from interop._commands.bench.triton_kernels import add

    x = torch.ones(1000, device="cuda")
    call = interop.adopt(add, writes="c").returning(c="a")
    with pytest.raises(ValueError, match="grid is not given"):
        call(x, x, 1000, BLOCK=256)
    assert (call(x, x, 1000, grid=4, BLOCK=256) == 2).all()
    assert (call(x, x, 1000, grid=(8,), BLOCK=128, num_warps=2) == 2).all()
    for dtype in (torch.bfloat16, torch.float16, torch.int32):
        y = torch.ones(1000, device="cuda", dtype=dtype)
        made = call(y, y, 1000, grid=4, BLOCK=256)
        assert made.dtype == dtype
        assert (made == 2).all()


def test_tvm_ffis_stream_is_as_it_was(torch):
    tvm_ffi = machine.need("tvm_ffi")
    gpu, side, seen = tvm_ffi.device("cuda", 0), Side(on_gpu("torch")), []
    call = interop.adopt(tvm_ffi.convert(lambda x: seen.append(tvm_ffi.get_raw_stream(gpu))), "x")
    before = tvm_ffi.get_raw_stream(gpu)
    with side.current():
        call(side.make(ONES))
    assert seen == [side.handle]
    assert tvm_ffi.get_raw_stream(gpu) == before


def test_pinned_memory_is_the_gpus(torch):
    tvm_ffi = machine.need("tvm_ffi")
    seen = []
    call = interop.adopt(tvm_ffi.convert(lambda x, y: seen.append(str(y.device))), "x, y")
    call(torch.ones(3, device="cuda"), interop.ones(3, "float32", memory="pinned"))
    assert seen == ["cuda:0"]
