"""Inputs that broke other libraries (`B..`: the ids of the project's list), each with the right value.

The entries are threads of other projects; the comment over a test says what went wrong there. Those of B01 to B89 that
were found with an elementwise operation are put as a matrix product here, on the same kind of memory. Where each is:

    B01 to B89                            here, but for those below
    B46, B48, B54                         in host memory: tests/test_cases.py, where B50 and B53 are, too
    B82 host time of a call               `interop bench overhead`: no timing decides a test
    B91 to B140                           in host memory: tests/test_cases.py
    B91, B92, B98, B100, B105, B112, B116 on the device: here, too
    B142 to B157                          here
"""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import alone, device, graphs, libraries, machine
from helpers.dlpack import Cai, Fake

import interop


@pytest.fixture
def cp(cupy):
    return cupy


@pytest.fixture
def jnp(jax):
    return jax.numpy


TWICE = """
__global__ void twice(const float* a, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = 2 * a[i];
}
"""


@pytest.fixture
def compiler(nvrtc):
    """What compiles kernels and expressions at run time."""
    return machine.need("cuda_core")


@pytest.fixture
def twice(compiler):
    """A user's kernel: c = 2 * a."""
    return interop.kernel(TWICE, "twice", threads="a").returning(c="a")


# ---- streams and graph capture ----


# wjakob/nanobind#1241: the import of an array synchronised, which invalidates a capture.
def test_b01_capture_with_torch(torch):
    a = torch.ones(64, 64, device="cuda")
    interop.matmul(a, a)
    with graphs.captured(torch) as g:
        c = interop.matmul(a, a)
    a.fill_(2)
    g.replay()
    assert (c == 256).all()


# pytorch/pytorch#163242: an export without a stream made the legacy stream wait for the capturing one.
def test_b02_capture_with_cupy(cp):
    s = cp.cuda.Stream(non_blocking=True)
    a = cp.ones((64, 64), "f4")
    cp.cuda.Device().synchronize()
    with s:
        interop.matmul(a, a)
        s.begin_capture()
        c = interop.matmul(a, a)
        g = s.end_capture()
    c.fill(0)
    cp.cuda.Device().synchronize()
    g.launch(s)
    s.synchronize()
    assert (c == 64).all()


# data-apis/array-api#974: producers disagree on what stream=None means.
def test_b03_side_stream_race(torch):
    s = torch.cuda.Stream()
    a = torch.zeros(1024, 1024, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(s):
        torch.cuda._sleep(10**8)
        a += 1
        c = interop.matmul(a, a)
    s.synchronize()
    assert (c == 1024).all()


# wjakob/nanobind#1345: a transposed operand was copied asynchronously and read before the copy was done.
def test_b04_transposed_operand_on_a_side_stream(torch):
    s = torch.cuda.Stream()
    x = torch.arange(1024.0 * 1024, device="cuda").view(1024, 1024)
    torch.cuda.synchronize()
    with torch.cuda.stream(s):
        a = x.t()
        c = interop.matmul(a, torch.eye(1024, device="cuda"))
    s.synchronize()
    assert torch.equal(c, x.t())


# NVIDIA/cudnn-frontend#483: "no stream given" meant stream 0.
def test_b06_no_stray_launch_in_a_global_capture(torch, tmp_path):
    alone.run(
        """
        import torch
        g = torch.cuda.CUDAGraph()
        a = torch.ones(8, 8, device="cuda")
        interop.matmul(a, a)
        with torch.cuda.graph(g, capture_error_mode="global"):
            c = interop.matmul(a, a)
        c.fill_(5)
        g.replay()
        assert (c == 8).all()
        """,
        tmp_path,
    )


# pytorch/pytorch#67618: the default stream's handle 0 was sent as DLPack's stream, where it is forbidden.
def test_b07_two_libraries_on_their_default_streams(torch, cp):
    c = interop.matmul(torch.ones(4, 4, device="cuda"), cp.ones((4, 4), "f4"))
    assert type(c) is torch.Tensor
    assert c.tolist() == [[4] * 4] * 4


# dmlc/xgboost#6753: the stream that the interface states was ignored.
def test_b09_the_stream_of_the_array_interface(cp):
    s = cp.cuda.Stream(non_blocking=True)
    cp.cuda.Device().synchronize()
    with s:
        a = cp.zeros((4096, 4096), "f4")
        for _ in range(50):
            cp.add(a, 1, out=a)
        ca, column = Cai(a), Cai(a[:, :1])
    c = interop.matmul(ca, column)
    assert (cp.asarray(c) == 4096 * 2500).all()


# NVIDIA/cuda-python#285: JAX answers with an unversioned capsule, and takes -1 for a stream's handle.
def test_b10_jax_as_a_producer(jnp, cp):
    x = jnp.ones((8, 8), jnp.float32)
    y = interop.matmul(x, x)
    assert isinstance(y, type(x))
    assert bool((y == 8).all())
    assert (interop.matmul(cp.ones((8, 8), "f4"), x) == 8).all()  # by DLPack


# cupy/cupy#1109: a shared BLAS handle and its stream got mixed up between threads.
def test_b12_threads_with_their_own_streams(torch):
    a = [torch.full((512, 512), float(k), device="cuda") for k in range(8)]
    torch.cuda.synchronize()

    def f(k):
        with torch.cuda.stream(torch.cuda.Stream()):
            c = interop.matmul(a[k], a[k])
            torch.cuda.current_stream().synchronize()
            return bool((c == 512 * k * k).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(f, range(8)))


# cupy/cupy#8599: a helper buffer was prepared on another stream.
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b13_workspace_on_a_side_stream(cp, backend):
    s = cp.cuda.Stream(non_blocking=True)
    a = cp.ones((64, 1 << 16), "f4")
    cp.cuda.Device().synchronize()
    with s:
        c = interop.matmul(a, a.T, backend=backend)
    s.synchronize()
    assert (c == 65536).all()


# ---- lifetime and ownership ----


# NVIDIA/cutile-python#88: inputs were given back while the kernel still read them.
def test_b15_inputs_deleted_while_in_use(jnp, cp):
    x = jnp.ones((4096, 4096))
    y = interop.matmul(x, x)
    del x
    z = [jnp.full((4096, 4096), 7.0) for _ in range(8)]
    assert bool((y == 4096).all())
    x = jnp.ones((4096, 4096))
    y = interop.matmul(cp.ones((4096, 4096), "f4"), x)
    del x
    z += [jnp.full((4096, 4096), 7.0) for _ in range(8)]
    assert bool((y == 4096).all())


# rapidsai/rmm#649: a new stream got a destroyed one's handle, and with it its state.
def test_b17_streams_that_come_and_go(cp):
    for k in range(100):
        with cp.cuda.Stream(non_blocking=True) as s:
            a = cp.full((64, 64), k, "f4")
            c = interop.matmul(a, a)
            s.synchronize()
            assert (c == 64 * k * k).all()
        del s


# dmlc/dlpack#103: the deleter touched Python objects on a thread without the GIL.
def test_b18_deleter_without_the_gil(jax, jnp, cp):
    t = cp.ones((8, 8), "f4")
    y = jnp.from_dlpack(interop.matmul(Cai(t), Cai(t)))
    z = jax.jit(lambda v: v + 1)(y)
    del y
    gc.collect()
    assert float(z.sum()) == 64 * 9


# dmlc/dlpack#51: capsules that nobody consumed leaked device memory, or freed it twice.
def test_b20_capsules_that_nobody_consumes(cp):
    t = cp.ones((1024, 1024), "f4")
    interop.matmul(Cai(t), Cai(t)).__dlpack__()
    cp.cuda.Device().synchronize()
    m = cp.cuda.runtime.memGetInfo()[0]
    for _ in range(200):
        interop.matmul(Cai(t), Cai(t)).__dlpack__()
    cp.cuda.Device().synchronize()
    assert device.eventually(lambda: interop._core.held_count() == 0)
    interop.matmul(Cai(t), Cai(t))  # lets frees that waited go on
    cp.get_default_memory_pool().free_all_blocks()
    assert m - cp.cuda.runtime.memGetInfo()[0] < 64 << 20


# cupy/cupy#3611: the same capsule, imported twice, crashed.
def test_b21_a_capsule_used_twice(cp):
    cap = cp.ones((4, 4), "f4").__dlpack__()
    interop.matmul(cap, cp.ones((4, 4), "f4"))
    with pytest.raises(ValueError, match="a is a DLPack capsule that was used before"):
        interop.matmul(cap, cp.ones((4, 4), "f4"))


# pytorch/pytorch#56789: a rejected capsule was freed by both sides.
def test_b22_a_rejected_export_is_released_once(cp):
    f = Fake(cp.ones((4, 4), "f4"), dtype_code=99)
    with pytest.raises((BufferError, TypeError), match="code=99"):
        interop.matmul(f, cp.ones((4, 4), "f4"))
    gc.collect()
    assert f.exported == 1
    assert f.balanced


# wjakob/nanobind#488: device memory was returned without an owner.
def test_b24_views_keep_the_output(torch):
    t = torch.ones(512, 512, device="cuda")
    c = interop.matmul(t, t)
    v = c[5, 5:10]
    del c
    junk = [torch.zeros(512, 512, device="cuda") for _ in range(8)]
    assert v.tolist() == [512] * 5
    del junk


# ---- zero-size arrays ----


# cupy/cupy#2104: a null pointer was asked for its attributes.
def test_b26_zero_size_arrays(cp):
    a = cp.empty((0, 4), "f4")
    c = interop.matmul(a, cp.ones((4, 3), "f4"))
    assert type(c) is cp.ndarray
    assert c.shape == (0, 3)
    assert c.dtype == a.dtype
    assert interop.matmul(Cai(a), Cai(cp.ones((4, 3), "f4"))).shape == (0, 3)


# numba/numba#4175: a None pointer for empty arrays, strides where there should be none.
def test_b28_the_form_of_the_array_interface(cp):
    t = cp.ones((3, 3), "f4")
    d = interop.matmul(Cai(t), Cai(t)).__cuda_array_interface__
    assert type(d["data"][0]) is int
    assert d["data"][1] is False
    assert d.get("strides") is None
    assert d["version"] == 3
    assert d["stream"] not in (0, -1)
    empty = Cai(cp.ones((1, 3), "f4"), shape=(0, 3), data=(None, False))
    c = interop.matmul(empty, Cai(t))
    assert c.shape == (0, 3)
    assert c.__cuda_array_interface__["data"][0] == 0


# pytorch/pytorch#31421: with no inner dimension the output was never written.
def test_b29_no_inner_dimension(cp):
    junk = cp.full(1 << 20, cp.nan, "f4")
    del junk
    c = interop.matmul(cp.empty((3, 0), "f4"), cp.empty((0, 5), "f4"))
    assert c.shape == (3, 5)
    assert (c == 0).all()


# triton-lang/triton#10427: launch-grid arithmetic divided by zero.
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b31_no_rows_or_no_columns(cp, backend):
    for m, n in [(0, 5), (5, 0), (0, 0)]:
        c = interop.matmul(cp.ones((m, 4), "f4"), cp.ones((4, n), "f4"), backend=backend)
        assert c.shape == (m, n)
    assert interop.matmul(cp.ones((0, 2, 4), "f4"), cp.ones((4, 3), "f4"), backend=backend).shape == (0, 2, 3)


# ---- strides, order, views ----


# cupy/cupy#2095: NULL strides, which mean compact, crashed.
def test_b32_null_strides(cp):
    x = cp.arange(6, dtype="f4").reshape(2, 3)
    f = Fake(x, strides=None)
    assert cp.asarray(interop.matmul(f, cp.eye(3, dtype="f4"))).tolist() == [[0, 1, 2], [3, 4, 5]]


# cupy/cupy#10172: CuPy exports negative strides as huge positive ones.
def test_b34_negative_strides(cp):
    a = cp.arange(4, dtype="f4").reshape(2, 2)[::-1]
    one = cp.eye(2, dtype="f4")
    assert interop.matmul(a, one).tolist() == [[2, 3], [0, 1]]
    assert interop.matmul(one, a).tolist() == [[2, 3], [0, 1]]
    huge = Fake(a, strides=((2**64 - 8) // 4, 1))  # as its DLPack export has it
    with pytest.raises(BufferError, match="strides lead beyond all memory"):
        interop.matmul(huge, one)


# pytorch/pytorch#188023: a capsule with negative strides aborted torch.
def test_b35_torch_gets_no_negative_strides(torch, cp):
    c = interop.matmul(torch.eye(3, device="cuda"), cp.arange(9, dtype="f4").reshape(3, 3)[::-1])
    assert c.tolist() == [[6, 7, 8], [3, 4, 5], [0, 1, 2]]
    assert c.stride() == (3, 1)


# jax-ml/jax#4196: the strides of a column slice were dropped.
def test_b37_column_slices(cp, jnp):
    b = cp.arange(6, dtype="f4").reshape(2, 3)[:, :2]
    assert interop.matmul(b, cp.eye(2, dtype="f4")).tolist() == [[0, 1], [3, 4]]
    assert interop.matmul(jnp.eye(2), b).tolist() == [[0, 1], [3, 4]]


# jax-ml/jax#17784: a transposed array was read untransposed.
def test_b38_transposed_operands(torch, jnp):
    b = torch.arange(6.0, device="cuda").reshape(2, 3).t()
    assert interop.matmul(b, torch.eye(2, device="cuda")).tolist() == [[0, 3], [1, 4], [2, 5]]
    c = interop.matmul(jnp.eye(3), b)
    assert c.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert bool(((c + 1)[2] == jnp.array([3.0, 6.0])).all())


# cupy/cupy#7267: a kernel that is given a pointer read a slice as if it were contiguous.
def test_b40_kernels_see_views(cp, twice):
    source = """
    #include <interop/view.cuh>
    __global__ void copy(interop::View<const float, 2> x, interop::View<float, 2> y) {
      const int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
      if (i < x.size(0) && j < x.size(1)) y(i, j) = x(i, j);
    }
    """
    copy = interop.kernel(source, "copy", threads=lambda x, y: x.shape, block=(16, 16))
    x = cp.arange(10, dtype="f4").reshape(2, 5)[:, :4]
    y = cp.zeros((2, 4), "f4")
    copy(x, y)
    assert (y == x).all()
    for view in (x, x.T, cp.broadcast_to(cp.ones(1, "f4"), (1000,))):
        with pytest.raises(ValueError, match="a is .*accepted: a C-contiguous"):
            twice(view, view.size)


# cupy/cupy#3095: a broadcast operand was read out of bounds.
def test_b41_stride_0(cp):
    x = cp.broadcast_to(cp.ones(1, "f4"), (1000, 1000))
    c = interop.matmul(x, x)
    assert c.shape == (1000, 1000)
    assert (c == 1000).all()
    v = cp.broadcast_to(cp.ones(1, "f4"), (1000,))
    assert interop.matmul(v, v) == 1000


# pytorch/pytorch#30596: rows that overlap have a leading dimension that BLAS does not take.
@pytest.mark.sanitize
def test_b43_overlapping_windows(cp):
    w = cp.lib.stride_tricks.as_strided(cp.arange(5, dtype="f4"), (3, 3), (4, 4))
    assert interop.matmul(w, w).tolist() == [[5, 8, 11], [8, 14, 20], [11, 20, 29]]
    assert interop.matmul(w, w, backend="tiled").tolist() == [[5, 8, 11], [8, 14, 20], [11, 20, 29]]
    with pytest.raises(ValueError, match="a has no unit stride, or its rows overlap"):
        interop.matmul(w, w, backend="cublas")
    wide = cp.lib.stride_tricks.as_strided(cp.arange(1000, dtype="f8"), (500, 500), (8, 8))
    assert cp.array_equal(interop.matmul(wide, wide), wide.copy() @ wide.copy())


# ---- byte_offset ----


# pytorch/pytorch#170432: a non-zero byte_offset was dropped.
def test_b44_byte_offset(cp):
    x = cp.arange(8, dtype="f4")
    f = Fake(x[4:].reshape(2, 2), data=x.data.ptr, byte_offset=16)
    assert cp.asarray(interop.matmul(f, cp.eye(2, dtype="f4"))).tolist() == [[4, 5], [6, 7]]
    out = Fake(x[:4].reshape(2, 2), data=x.data.ptr - 16, byte_offset=16)
    interop.matmul(f, cp.eye(2, dtype="f4"), out=out)
    assert x.tolist() == [4, 5, 6, 7, 4, 5, 6, 7]


# ---- read-only data ----


# wjakob/nanobind#42: read-only operands were refused.
def test_b47_read_only_operands_and_out(cp):
    x = cp.ones((4, 4), "f4")
    f = Fake(x, flags=1)
    assert (cp.asarray(interop.matmul(f, f)) == 4).all()
    c = Cai(x, data=(x.data.ptr, True))
    assert (cp.asarray(interop.matmul(c, c)) == 4).all()
    for out in (f, c):
        with pytest.raises(TypeError, match="out .*is read-only"):
            interop.matmul(cp.ones((4, 4), "f4"), cp.ones((4, 4), "f4"), out=out)
    assert (x == 1).all()


# ---- dtypes ----


# jax-ml/jax#19352: boolean arrays became uint8 on the way.
def test_b50_bool_stays_bool(jnp, cp):
    m = jnp.array([True, False])
    c = interop.multiply(m, m)
    assert c.dtype == bool
    assert c.tolist() == [True, False]
    mixed = interop.multiply(cp.array([True, False]), m)
    assert mixed.dtype == bool
    assert mixed.tolist() == [True, False]


# cupy/cupy#7874: what the array interface cannot express fell through to a host path.
def test_b51_no_host_path_for_unknown_dtypes(torch):
    t = torch.ones(4, 4, device="cuda", dtype=torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        product = interop.matmul(t, t)
        array = interop.asarray(t)
        back = interop.convert(array, "torch")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert (product.dtype, product.device) == (t.dtype, t.device)
    assert (product == 4).all()
    assert (array.dtype, array.device) == ("bfloat16", "cuda:0")
    assert (back.dtype, back.data_ptr()) == (torch.bfloat16, t.data_ptr())


# dmlc/dlpack#156: float8 was sent as uint8, losing its meaning.
def test_b53_float8_is_float8(torch):
    a = torch.full((16, 16), 1.5, device="cuda").to(torch.float8_e4m3fn)
    c = interop.matmul(a, a)
    assert c.dtype is torch.bfloat16
    assert (c == 36).all()


# NVIDIA/MatX#538, cupy/cupy#3941: integers came out as zeros, or rounded by floating point.
@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8"])
def test_b56_b57_integers_are_exact(cp, dtype):
    assert (interop.matmul(cp.full((4, 4), 2, dtype), cp.full((4, 4), 2, dtype)) == 16).all()
    odd = 2 ** (4 * int(dtype[1]) - 1) - 1  # its square needs more bits than a float has
    c = interop.matmul(cp.full((1, 1), odd, dtype), cp.full((1, 1), odd, dtype))
    assert int(c[0, 0]) == odd * odd


# pytorch/pytorch#79270: TF32 was the default, of about three decimal digits.
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b59_float32_is_float32(cp, backend):
    for n in (64, 512):
        a = cp.full((n, n), 1 + 2**-12, "f4")
        assert (interop.matmul(a, cp.eye(n, dtype="f4"), backend=backend) == a).all()


# pytorch/pytorch#135330: integers divided by zero gave undefined bits on the GPU.
def test_b60_integer_division_by_zero(cp):
    c = interop.divide(cp.array([1, 0, -1], "i4"), cp.array([0, 0, 0], "i4"))
    assert c[0] == cp.inf
    assert cp.isnan(c[1])
    assert c[2] == -cp.inf


# ---- PyTorch and shape semantics ----


# pytorch/pytorch#59945: memory of a lazily conjugated tensor holds the values before conjugation.
def test_b62_conjugated_and_negated_tensors(torch):
    z = torch.full((2, 2), 1j, device="cuda").conj()
    assert z.is_conj()
    assert interop.matmul(z, z).tolist() == [[-2, -2], [-2, -2]]
    assert interop.matmul(z, torch.eye(2, device="cuda", dtype=z.dtype)).tolist() == [[-1j, -1j], [-1j, -1j]]
    negated = z.imag
    assert negated.is_neg()
    assert interop.matmul(negated, torch.eye(2, device="cuda")).tolist() == [[-1, -1], [-1, -1]]
    assert interop.matmul(torch.eye(2, device="cuda"), negated).tolist() == [[-1, -1], [-1, -1]]


# pytorch/pytorch#169804: a parameter was refused in inference, or its graph was cut silently.
def test_b64_requires_grad(torch):
    w = torch.nn.Parameter(torch.ones(4, 4, device="cuda"))
    x = torch.ones(4, 4, device="cuda")
    with torch.no_grad():
        assert (interop.matmul(x, w) == 4).all()
    with torch.inference_mode():
        assert (interop.matmul(x, w) == 4).all()
    with pytest.raises(BufferError, match=r"b requires grad.*b.detach\(\)"):
        interop.matmul(x, w)


# pytorch/pytorch#148306: a wrapper has no storage.
def test_b65_wrapped_and_traced_arrays(torch, jax, jnp):
    with pytest.raises((TypeError, RuntimeError), match="no memory of its own"):
        torch.vmap(lambda v: interop.matmul(v, v))(torch.ones(2, 3, 3, device="cuda"))
    host = np.ones((3, 3), "f4")
    with pytest.raises(TypeError, match="b is a JAX tracer"):
        jax.jit(lambda v: interop.matmul(host, v))(jnp.ones((3, 3)))


# cupy/cupy#736: inner sizes that differ hit an internal assertion.
def test_b67_inner_sizes_that_differ(cp):
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(4, 2\).*the inner dimensions 3 and 4 differ"):
        interop.matmul(cp.ones((2, 3), "f4"), cp.ones((4, 2), "f4"))


# ---- devices and memory kinds ----


# linkedin/Liger-Kernel#1331: launched on the current device, which was not the arrays'.
@pytest.mark.multi_gpu
def test_b68_arrays_of_another_than_the_current_device(two_cuda_devices, torch):
    a = torch.ones(4, 4, device="cuda:1")
    torch.cuda.set_device(0)
    c = interop.matmul(a, a)
    assert c.device.index == 1
    assert (c == 4).all()
    assert torch.cuda.current_device() == 0


# cupy/cupy#5379: arrays of two GPUs worked on some machines.
@pytest.mark.multi_gpu
def test_b70_arrays_of_two_devices(two_cuda_devices, cp):
    with cp.cuda.Device(0):
        a = cp.ones((4, 4), "f4")
    with cp.cuda.Device(1):
        b = cp.ones((4, 4), "f4")
    with pytest.raises(ValueError, match="a is on cuda:0 and b is on cuda:1"):
        interop.matmul(a, b)


# pytorch/pytorch#96318: managed memory was refused, or taken for host memory.
def test_b71_managed_memory(torch, cp):
    cp.cuda.set_allocator(cp.cuda.malloc_managed)
    try:
        a = cp.ones((4, 4), "f4")
    finally:
        cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)
    c = interop.matmul(torch.ones(4, 4, device="cuda"), a)
    assert type(c) is torch.Tensor
    assert c.tolist() == [[4] * 4] * 4


# wjakob/nanobind#628: a device pointer was tagged as CPU memory.
def test_b73_the_device_of_results(torch, cp):
    t = cp.ones((4, 4), "f4")
    o = interop.matmul(Cai(t), Cai(t))
    assert tuple(map(int, o.__dlpack_device__())) == (2, 0)
    assert o.device == "cuda:0"
    assert torch.from_dlpack(o).is_cuda


# ---- copies, result type, protocol arguments ----


# wjakob/nanobind#711: a strided argument was written in an implicit copy.
def test_b74_strided_out(cp):
    base = cp.zeros((4, 4), "f4")
    o = cp.ones((4, 4), "f4")
    interop.matmul(o, o[:, :2], out=base[:, ::2])
    assert base[:, ::2].tolist() == [[4, 4]] * 4
    assert base[:, 1::2].sum() == 0


# openxla/xla#10613: the import of device memory into JAX failed on layouts.
def test_b76_results_for_jax(jax, jnp, cp):
    y = interop.matmul(jnp.ones((4, 4)), jnp.ones((4, 4)))
    assert y.devices() == jnp.ones(4).devices()
    assert bool((jax.jit(lambda v: v * 2)(y) == 8).all())
    mixed = interop.matmul(jnp.ones((4, 4)), cp.ones((4, 4), "f4"))
    assert bool((jax.jit(lambda v: v * 2)(mixed) == 8).all())


# pytorch/pytorch#54139: an object with the CUDA interface was downloaded in secret.
def test_b77_results_stay_on_the_device(torch, numba):
    d = libraries.by_name("numba", "cuda").make(np.ones((4, 4), "f4"))
    c = interop.matmul(torch.ones(4, 4, device="cuda"), d)
    assert c.is_cuda
    assert c.tolist() == [[4] * 4] * 4


# numba/numba#6904: host arrays were uploaded and downloaded in secret.
def test_b79_host_beside_device_arrays(numba):
    d = libraries.by_name("numba", "cuda").make(np.ones((4, 4), "f4"))
    with pytest.raises(TypeError, match="host"):
        interop.matmul(d, np.ones((4, 4), "f4"))


# nv-legate/cupynumeric#1239: __dlpack__ lacked newer keywords.
def test_b80_all_keywords_of_dlpack(cp):
    t = cp.ones((4, 4), "f4")
    o = interop.matmul(Cai(t), Cai(t))
    for keywords in (
        {},
        {"stream": None},
        {"stream": 1},
        {"stream": 2},
        {"stream": -1},
        {"stream": 1, "max_version": (1, 3), "dl_device": (2, 0), "copy": None},
        {"max_version": None, "copy": False},
    ):
        o.__dlpack__(**keywords)
    for keywords in ({"dl_device": (1, 0)}, {"dl_device": (1, 0), "copy": True}):  # a copy on the host, asked for
        capsule = o.__dlpack__(max_version=(1, 0), **keywords)
        assert np.array_equal(interop.matmul(capsule, np.eye(4, dtype="f4")), np.full((4, 4), 4, "f4"))
    with pytest.raises(BufferError, match="copy is False"):
        o.__dlpack__(dl_device=(1, 0), copy=False)


# ---- kernel limits, aliasing, errors ----


# cupy/cupy#9841: 32-bit indices overflowed.
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_b83_more_than_2_to_the_31_elements(torch, backend):
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free device memory")
    n = 2**31 + 8
    a = torch.ones(n, 1, device="cuda")
    c = interop.matmul(a, torch.full((1, 1), 3.0, device="cuda"), backend=backend)
    assert (c[:8] == 3).all()
    assert (c[-8:] == 3).all()
    del c
    a[-1] = 5
    row = interop.matmul(torch.ones(1, 1, device="cuda"), a.t(), backend=backend)
    assert row[0, -2:].tolist() == [1, 5]
    del row
    # Operands whose strides lead that far, though they are small.
    far = a.reshape(-1)[:: 2**30][:3].reshape(3, 1)
    far[2, 0] = 7
    assert interop.matmul(far, torch.ones(1, 2, device="cuda"), backend=backend)[2].tolist() == [7, 7]
    del a, far
    torch.cuda.empty_cache()


# ml-explore/mlx#3858: a long dimension was mapped to the grid's y or z, limited to 65535.
@pytest.mark.parametrize("backend", [None, "tiled"])
def test_b85_long_dimensions(cp, backend):
    c = interop.matmul(cp.ones((70000 * 64, 1), "f4"), cp.ones((1, 1), "f4"), backend=backend)
    assert (c == 1).all()
    d = interop.matmul(cp.ones((1, 1), "f4"), cp.ones((1, 70000 * 64), "f4"), backend=backend)
    assert (d == 1).all()


# tile-ai/tilelang#2526: a view that starts at an odd element met a vectorised load.
@pytest.mark.sanitize
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
def test_b86_misaligned_views(torch, backend):
    for n in (33, 129, 256):
        h = torch.ones(n, n + 1, device="cuda")[:, 1:]
        assert (interop.matmul(h, h, backend=backend) == n).all()
        flat = torch.ones(n * n + 1, device="cuda")[1:].view(n, n)
        assert (interop.matmul(flat, flat, backend=backend) == n).all()


# pytorch/pytorch#17935: many threads wrote one element.
def test_b88_stride_0_out(torch):
    memory = torch.zeros(1, device="cuda")
    o = memory.expand(4, 4)
    with pytest.raises(ValueError, match="out .*has elements that share memory"):
        interop.matmul(torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda"), out=o)
    assert memory.item() == 0


# pytorch/pytorch#167414: an old asynchronous error was reported as the library's own fault.
def test_b89_an_earlier_fault(tmp_path, torch, cupy):
    code = """
        import torch, cupy, interop
        fault = cupy.RawKernel('extern "C" __global__ void fault(int* p) { *p = 1; }', "fault")
        x, out = torch.ones(4, 4, device="cuda"), torch.ones(4, 4, device="cuda")
        interop.matmul(x, x)
        fault((1,), (1,), (cupy.uint64(8),))
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            pass
        try:
            interop.matmul(x, x, out=out)
        except RuntimeError as error:
            assert "interop.matmul" not in str(error) or "earlier" in str(error), error
            print("refused:", type(error).__name__)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "refused: CudaError" in done.stdout, done.stderr


# ---- gradients and storages of PyTorch ----


def saved_value_changed_by(torch, write):
    """Change a value that autograd has saved, then ask for the gradient."""
    w = torch.ones(3, device="cuda", requires_grad=True)
    y = torch.full((3,), 2.0, device="cuda")
    z = (w * y).sum()
    write(y)
    z.backward()


# pytorch/pytorch#96852: a kernel wrote by a pointer, and autograd used the new values in silence.
@pytest.mark.parametrize("what", ["add", "a part", "aux of matmul", "expression", "kernel"])
def test_b91_writes_are_noticed_by_autograd(torch, twice, what):
    ones = torch.ones(3, device="cuda")
    write = {
        "add": lambda y: interop.add(y, 4.0, out=y),
        "a part": lambda y: interop.add(ones[:2], 1.0, out=y[:2]),
        "aux of matmul": lambda y: interop.matmul(torch.eye(3, device="cuda"), ones, epilogue="relu", aux=y),
        "expression": lambda y: interop.elementwise("x + 4")(y, out=y),
        "kernel": lambda y: twice(ones, 3, c=y),
    }[what]
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, write)


# pytorch/pytorch#14571: a write by a way that did not count as one gave a wrong gradient without an error.
@pytest.mark.parametrize("what", ["add", "a part", "matmul", "expression", "kernel"])
def test_b92_writes_through_a_view_are_noticed_by_autograd(torch, cp, twice, what):
    ones = cp.ones(3, "f4")
    write = {
        "add": lambda y: interop.add(ones, 1.0, out=interop.asarray(y)),
        "a part": lambda y: interop.add(ones[:2], 1.0, out=interop.asarray(y[1:])),
        "matmul": lambda y: interop.matmul(cp.eye(3, dtype="f4"), ones, out=interop.asarray(y)),
        "expression": lambda y: interop.elementwise("x + 4")(ones, out=interop.asarray(y)),
        "kernel": lambda y: twice(ones, 3, c=interop.asarray(y)),
    }[what]
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        saved_value_changed_by(torch, write)


# zdevito/ATen#84: a storage was resized while another library looked at it: its memory belonged to others then. The
# view keeps the memory that it was made from, or such a tensor refuses to be resized.
@pytest.mark.parametrize("way", ["resize_", "the storage", "no bytes", "set_", "data"])
def test_b98_a_storage_resized_under_a_view(torch, cp, way):
    n = 1 << 22
    t = torch.full((n,), 3.0, device="cuda")
    view = interop.asarray(t)
    change = {
        "resize_": lambda: t.resize_(4 * n),
        "the storage": lambda: t.untyped_storage().resize_(16 * n),
        "no bytes": lambda: t.untyped_storage().resize_(0),
        "set_": lambda: t.set_(torch.zeros(4, device="cuda")),
        "data": lambda: setattr(t, "data", torch.zeros(4, device="cuda")),
    }[way]
    with contextlib.suppress(RuntimeError):  # refused
        change()
    gc.collect()
    junk = [torch.full((n,), 9.0, device="cuda") for _ in range(4)]
    if way in ("set_", "data"):  # the tensor has other memory now, and the view that of before
        assert (cp.asarray(view) == 3).all()
    else:  # on a GPU nothing can keep torch from it; the view is refused
        with pytest.raises(BufferError, match="has been resized or moved"):
            cp.asarray(view)
    del junk


# wjakob/nanobind#930: an object that held an ndarray, kept on what the ndarray belonged to, was never collected.
def test_b100_a_cycle_of_a_tensor_and_its_view(torch):
    t = torch.ones(3, device="cuda")
    alive = weakref.ref(t)
    t.view_ = interop.asarray(t)
    del t
    gc.collect()
    assert alive() is None


# ---- numbers, on the device ----


# pytorch/pytorch#178723, a cousin of it: a wide 0-d integer was cast to the dtype of the array, and wrapped.
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_b105_a_wide_integer_of_no_dimensions_beside_a_narrow_array(torch, compiler, where):
    a, s = torch.tensor([44, 1], dtype=torch.int8, device="cuda"), torch.tensor(300, device=where)
    assert interop.equal(a, s).tolist() == [False, False]
    assert interop.less(a, s).tolist() == [True, True]
    assert interop.elementwise("x < y")(a, s).tolist() == [True, True]
    if where == "cuda":  # on the host it cannot lead
        assert interop.greater_equal(s, a).tolist() == [True, True]


# pydata/numexpr#415: constants of one value and two types were merged.
def test_b112_equal_constants_of_two_types_are_not_merged(cp, compiler):
    x, y = cp.array([1], "i1"), cp.array([100], "i1")
    got = interop.elementwise("x * (a * 1) + y * (a * 1.0)")(x, 3, y)
    want = interop.add(interop.multiply(x, 3), interop.multiply(y, 3.0))
    assert got.dtype == want.dtype
    assert got.tolist() == want.tolist() == [303.0]


# IntelPython/dpctl#1652: x // x of floats was 0 where the division is not correctly rounded.
def test_b116_x_floor_divided_by_x(torch, compiler):
    x = torch.arange(1.0, 4097.0, device="cuda")
    assert (interop.floor_divide(x, x) == 1).all()
    assert (interop.remainder(x * 3, x) == 0).all()
    assert (interop.elementwise("x // y")(x, x) == 1).all()


# cupy/cupy#9757: mixed integers were compared by C's conversions, wrong in silence.
def test_b157_mixed_comparisons(torch, cp, compiler):
    u, n = cp.array([1, 2**31], "u4"), cp.array([-1, -1], "i4")
    assert interop.less(u, n).tolist() == [False] * 2
    assert interop.greater(u, n).tolist() == [True] * 2
    assert interop.elementwise("x < y")(u, n).tolist() == [False] * 2
    wide, minus = cp.array([1, 2**63], "u8"), cp.array([-1, -(2**63)], "i8")
    assert interop.less(wide, minus).tolist() == [False] * 2
    assert interop.equal(wide, minus).tolist() == [False] * 2
    assert interop.elementwise("x <= y")(wide, minus).tolist() == [False] * 2
    t, z = torch.tensor([1, 200], dtype=torch.uint8, device="cuda"), torch.tensor(-19, dtype=torch.int8)
    for number in (z, z.cuda()):
        assert interop.less_equal(t, number).tolist() == [False] * 2
        assert interop.greater(t, number).tolist() == [True] * 2


# numpy/numpy#21506, on the device: the least integer by -1, and a division by 0, trapped or gave anything.
def test_b157_special_integers(cp):
    least = cp.array([-(2**31)], "i4")
    assert interop.floor_divide(least, -1).tolist() == [-(2**31)]
    assert interop.remainder(least, -1).tolist() == [0]
    assert interop.floor_divide(least, 0).tolist() == [0]


# ---- outputs and addresses ----


# PowerGridModel/power-grid-model#722: an output of another size was written beyond its end.
def test_b142_outputs_of_another_shape(cp, twice):
    for given in (cp.zeros(8, "f4")[:2], cp.zeros(8, "f4"), cp.zeros((4, 1), "f4")):
        whole = given if given.base is None else given.base
        with pytest.raises(ValueError, match=r"^interop.kernel\('twice'\): c\b.*\(4,\)"):
            twice(cp.ones(4, "f4"), 4, c=given)
        assert not whole.any()
    right = cp.zeros(4, "f4")
    assert twice(cp.ones(4, "f4"), 4, c=right) is right
    assert right.tolist() == [2] * 4


# dmlc/dlpack#99: an address that is no multiple of the element's size was used as it is, and the context was lost. It
# is refused, or the values are right, and the next call works.
def test_b143_addresses_that_are_not_aligned(cp, compiler, tmp_path):
    out = alone.run(
        f"""
        import cupy as cp
        from helpers.dlpack import Cai, Fake

        twice = interop.kernel({TWICE!r}, "twice", threads="a").returning(c="a")
        b = cp.zeros(64, "u1")[1:33].view("f4")
        assert b.data.ptr % 4
        good, square = cp.ones(8, "f4"), b.reshape(2, 4)
        calls = {{
            "add": (lambda: interop.add(b, 1.0), 1),
            "add, second": (lambda: interop.add(good, b), 1),
            "add, of the interface": (lambda: interop.add(Cai(b), good), 1),
            "add, of DLPack": (lambda: interop.add(Fake(good, data=b.data.ptr), good), 1),
            "add, by an offset": (lambda: interop.add(Fake(good, data=b.data.ptr - 1, byte_offset=1), good), 1),
            "add, out": (lambda: interop.add(good, 0.0, out=b), 1),
            "matmul": (lambda: interop.matmul(square, b.reshape(4, 2)), 0),
            "matmul, tiled": (lambda: interop.matmul(square, b.reshape(4, 2), backend="tiled"), 0),
            "matmul, out": (lambda: interop.matmul(good[:2, None], good[None, :4], out=square), 1),
            "kernel": (lambda: twice(b, 8), 0),
            "kernel, out": (lambda: twice(good, 8, c=b), 2),
            "expression": (lambda: interop.elementwise("x + 1")(b), 1),
            "asarray": (lambda: interop.add(interop.asarray(b), 1.0), 1),
        }}
        for name, (call, value) in calls.items():
            b.fill(0)
            try:
                result = call()
            except (ValueError, BufferError, TypeError) as error:
                assert str(error).startswith("interop"), (name, error)
            else:
                assert (cp.asarray(result) == value).all(), name
            cp.cuda.Device().synchronize()
            assert interop.add(cp.ones(2, "f4"), 1.0).tolist() == [2, 2], name
            print(name)
        """,
        tmp_path,
    )
    assert "asarray" in out


# ---- compilation, contexts, allocators, processes ----


# NVIDIA/Fuser#635: a first compilation inside a capture was not permitted.
def test_b145_first_compiled_inside_a_capture(torch, twice):
    a = torch.ones(64, device="cuda")
    f = interop.elementwise("x * 3 + y - 41")  # which no other test has compiled
    torch.cuda.synchronize()
    with graphs.captured(torch) as g:
        c = f(a, a)
        e = twice(a, 64)
    a.fill_(20)
    g.replay()
    torch.cuda.synchronize()
    assert (c == 39).all()
    assert (e == 40).all()


# openmm/openmm-torch#78: another context was current: invalid resource handle.
def test_b147_another_context_is_current(torch, compiler):
    from cuda.bindings import driver

    def checked(answer):
        status, *values = answer
        assert int(status) == 0
        return values[0] if values else None

    a = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    try:
        created = driver.cuCtxCreate(None, 0, 0)  # of CUDA 13
    except TypeError:
        created = driver.cuCtxCreate(0, 0)
    context = checked(created)
    try:
        c = interop.add(a, a)
        assert int(checked(driver.cuCtxGetCurrent())) == int(context)
    finally:
        checked(driver.cuCtxPopCurrent())
        checked(driver.cuCtxDestroy(context))
    torch.cuda.synchronize()
    assert (c == 2).all()


# pytorch/pytorch#24078: record_stream did nothing for memory that the allocator does not know by that tensor, and the
# block was given out again. (Other results: tests/gpu/test_results.py.)
@pytest.mark.parametrize("size", [1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24])
@pytest.mark.parametrize("make", [lambda a: interop.add(a, a), lambda a: a + a], ids=["ours", "torchs"])
def test_b148_record_stream(torch, size, make):
    n = size // 4
    a = torch.ones(n, device="cuda")
    torch.mul(make(a), 1).fill_(7)  # loads the kernels: that may wait for the device
    torch.cuda.empty_cache()
    spares = [torch.empty(n, device="cuda") for _ in range(4)]  # so that no block is asked of the driver below
    d = torch.empty(n, device="cuda")
    del spares
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    c = make(a)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        device.delay(side.cuda_stream)
        torch.mul(c, 1, out=d)
    c.record_stream(side)
    taken = c.data_ptr()
    del c
    others = [torch.empty(n, device="cuda").fill_(7) for _ in range(3)]
    assert not side.query()
    assert taken not in [other.data_ptr() for other in others]
    torch.cuda.synchronize()
    assert (d == 2).all()


# ai-dynamo/nixl#1754: memory of CUDA's virtual memory management was refused, or took the slow path.
def test_b150_expandable_segments(torch, cp, tmp_path):
    alone.run(
        """
        import torch

        a = torch.ones(1 << 24, device="cuda")
        assert any(segment["is_expandable"] for segment in torch.cuda.memory_snapshot())
        b = a[3:]
        square = a[: 1 << 20].view(1024, 1024)
        assert (interop.add(b, b) == 2).all()
        assert (interop.add(b, interop.convert(b, "cupy")) == 2).all()
        assert interop.matmul(square, square)[5, 5] == 1024
        assert interop.asarray(b).device == "cuda:0"
        """,
        tmp_path,
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )


# pytorch/pytorch#13751: after running out of memory, the next, innocent launch reported the old error.
def test_b152_out_of_memory_and_the_call_after_it(torch, tmp_path):
    alone.run(
        """
        import torch

        torch.cuda.set_per_process_memory_fraction(0.02)
        n = int(0.012 * torch.cuda.get_device_properties(0).total_memory) // 4
        a = torch.ones(n, device="cuda")
        for call in (lambda: interop.add(a, a), lambda: interop.matmul(a[: n // 2, None], a[None, :64])):
            try:
                call()
            except torch.OutOfMemoryError as error:
                assert "out of memory" in str(error), error
            else:
                raise AssertionError("there is no room for the result")
        x = torch.ones(n // 4, device="cuda")
        assert (interop.add(x, x) == 2).all()
        del x
        torch.cuda.empty_cache()
        # Cached blocks that are too small, and no room beside them: they are given back, and tried first.
        blocks = [torch.empty(n // 8, device="cuda") for _ in range(4)]
        del blocks
        assert torch.cuda.memory_reserved() > 1.4 * 4 * n
        assert (interop.add(a[: n // 2], a[: n // 2])[::1000] == 2).all()
        """,
        tmp_path,
    )


# numba/numba#7248: a cache that could not be written was an error at the first kernel.
def test_b154_a_cache_folder_that_cannot_be_written(torch, compiler, monkeypatch):
    monkeypatch.setenv("INTEROP_CACHE_DIR", "/proc/no/such")
    x = torch.ones(8, device="cuda")
    assert (interop.elementwise("x * 7 + 2")(x) == 9).all()
    source = TWICE.replace("2 * a[i]", "2 * a[i] + 5")  # which no other test has compiled
    assert (interop.kernel(source, "twice", threads="a").returning(c="a")(x, 8) == 7).all()


# NVIDIA/DALI#3671: a fork after CUDA was used: initialization errors, or a hang.
def test_b155_a_fork_after_cuda_was_used(torch, tmp_path):
    alone.run(
        """
        import os
        import time
        import warnings

        import torch

        warnings.simplefilter("ignore")  # of forking beside threads
        x = torch.ones(4, device="cuda")
        interop.add(x, x)
        torch.cuda.synchronize()
        child = os.fork()
        if child == 0:
            right = interop.add(np.ones(2), 1)[0] == 2
            try:
                interop.matmul(np.eye(2), np.eye(2), execution="cuda")
            except RuntimeError:
                os._exit(7 if right else 2)
            os._exit(1)
        ended = status = 0
        for _ in range(600):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            time.sleep(0.05)
        assert ended, "the child hangs"
        assert os.waitstatus_to_exitcode(status) == 7
        assert (interop.add(x, x) == 2).all()
        """,
        tmp_path,
    )
