"""INTEROP_CHECKED=1 for the indexes of views, on the GPU: what is found, where such an access goes, what goes on."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import device, elements, graphs, libraries
from helpers.kernels import ADD, TRANSPOSE, A, B, N

import interop

SOURCE = """
#include <interop/view.cuh>
using interop::View;

// Each thread reads and writes its own element, and that of thread `at` the one `by` further on.
template <typename T>
__global__ void shift(View<const T, 1> x, View<T, 1> y, int at, long long by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < x.size(0)) y(i == at ? i + by : i) = x(i);
}
__global__ void read(View<const float, 1> x, View<float, 1> y, int at, long long by) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < x.size(0)) y(i) = x(i == at ? i + by : i);
}
__global__ void late(View<const float, 1> x, View<float, 1> y) {
  long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < 50000000);
  y(0) = x(x.size(0));
}
__global__ void place(View<float, 3> y) {
  if (blockIdx.x == 3 && blockIdx.y == 1 && blockIdx.z == 2 && threadIdx.x == 7 && threadIdx.y == 2 && threadIdx.z == 1)
    y(1, -1, 9) = 1;
}
__global__ void count(View<int, 1> y) { atomicAdd(&y(blockIdx.x * blockDim.x + threadIdx.x), 1); }
__global__ void part(View<float, 1> y) {
  View<float, 1> half = y;
  half.sizes[0] /= 2;
  half(threadIdx.x) = 1;
}
"""


def of(name, **launch):
    return interop.kernel(SOURCE, name, **(launch or {"threads": "x"}))


@pytest.fixture(autouse=True)
def _checked(monkeypatch):
    monkeypatch.setenv("INTEROP_CHECKED", "1")


def beyond(text, size):
    accepted = f"0 to {size - 1}" if size else "none"
    return rf" {text} is out of bounds: dimension \d has size {size}; accepted: {accepted}; the first such access was "


# ---- what is found ----


def test_every_library(device_view_library):
    """The arrays lie within larger ones, whose other elements stay; and the next call works."""
    library = device_view_library
    shift, x, whole = of("shift<float>"), library.make(A), library.make(np.zeros(3 * N, "float32"))
    y = whole[N : 2 * N]
    for by in (N, -N):
        with pytest.raises(IndexError, match=r"^interop.kernel\('shift<float>'\):" + beyond(rf"y\({7 + by}\)", N)):
            shift(x, y, 7, by)
        values = library.to_numpy(whole)
        assert not values[:N].any()
        assert not values[2 * N :].any()
        np.testing.assert_array_equal(np.delete(values[N : 2 * N], 7), np.delete(A, 7))
    shift(x, y, 0, 0)
    np.testing.assert_array_equal(library.to_numpy(y), A)


def test_arrays_of_jax(jax):
    read = of("read").returning(y="x")
    with pytest.raises(IndexError, match=beyond(r"x\(1000\)", N)):
        read(jax.numpy.asarray(A), 999, 1)
    made = read(jax.numpy.asarray(A), 999, 0)
    assert isinstance(made, jax.Array)
    np.testing.assert_array_equal(np.asarray(made), A)


def test_in_programs_of_jax_nothing_is_asked(jax):
    """Such a kernel is right within bounds, eager and compiled."""
    read = of("read").returning(y="x")
    x = jax.numpy.asarray(A)
    for f in (lambda x: read(x, 5, 1), jax.jit(lambda x: read(x, 5, 1))):
        np.testing.assert_array_equal(np.asarray(f(x)), np.where(np.arange(N) == 5, 6, A))


@pytest.mark.parametrize("dtype", ["int8", "float16", "bfloat16", "float64", "complex64", "complex128"])
def test_elements_of_every_size(torch, dtype):
    c_types = {
        "int8": "signed char", "float16": "__half", "bfloat16": "__nv_bfloat16", "float64": "double",
        "complex64": "cuComplex", "complex128": "cuDoubleComplex",
    }  # fmt: skip
    headers = "#include <cuComplex.h>\n#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n"
    shift = interop.kernel(headers + SOURCE, f"shift<{c_types[dtype]}>", threads="x")
    library = libraries.by_name("torch", "cuda")
    values = np.arange(8).astype(elements.dtype_of(dtype))
    x, y = library.make(values), library.make(np.zeros_like(values))
    with pytest.raises(IndexError, match=beyond(r"y\(9\)", 8)):
        shift(x, y, 4, 5)
    np.testing.assert_array_equal(np.delete(library.to_numpy(y), 4), np.delete(values, 4))


def test_block_and_thread(cupy):
    y = cupy.zeros((2, 3, 4), "float32")
    with pytest.raises(IndexError) as caught:
        of("place", grid=(4, 2, 3), block=(8, 4, 2))(y)
    assert str(caught.value) == (
        "interop.kernel('place'): y(1, -1, 9) is out of bounds: dimension 1 has size 3; accepted: 0 to 2; the first "
        "such access was in block (3, 1, 2), thread (7, 2, 1), and what the call has written is undefined"
    )
    assert not y.any()


def test_many_threads_beyond_one_array(cupy):
    """One of them is told; atomic operations go to the same place."""
    y = cupy.zeros(1000, "int32")
    with pytest.raises(IndexError) as caught:
        of("count", grid=4096, block=256)(y)
    index = int(str(caught.value).partition("y(")[2].partition(")")[0])
    assert 1000 <= index < 4096 * 256
    assert f"block ({index // 256}, 0, 0), thread ({index % 256}, 0, 0)" in str(caught.value)
    assert (y == 1).all()


def test_strides_do_not_matter(cupy):
    """An index is within bounds or not, whatever lies there."""
    x, whole = cupy.asarray(A)[::-2], cupy.zeros(N, "float32")
    y = whole[1::2]
    with pytest.raises(IndexError, match=beyond(r"y\(500\)", 500)):
        of("shift<float>")(x, y, 499, 1)
    assert not whole[::2].any()
    of("shift<float>")(x, y, 0, 0)
    assert (y == x).all()


def test_an_array_without_elements(cupy):
    with pytest.raises(IndexError, match=beyond(r"x\(0\)", 0)):
        of("late", grid=1, block=1)(cupy.zeros(0, "float32"), cupy.zeros(1, "float32"))


def test_a_changed_copy_of_a_view(cupy):
    y = cupy.zeros(8, "float32")
    with pytest.raises(IndexError, match=beyond(r"y\([4-7]\)", 4)):
        of("part", grid=1, block=8)(y)
    assert y.tolist() == [1] * 4 + [0] * 4


def test_without_a_fault_the_values_are_as_ever(device_view_library):
    library = device_view_library
    transpose = interop.kernel(TRANSPOSE, "transpose<float>", threads=lambda x: x.shape, block=(16, 8))
    x = library.make(A.reshape(20, 50))
    y = transpose.returning(y=lambda x: (50, 20))(x)
    np.testing.assert_array_equal(library.to_numpy(y), A.reshape(20, 50).T)


# ---- the call ----


def test_it_waits_for_the_calls_stream(side):
    """What the kernel does late is found, too."""
    x, y = side.make(A), side.make(A)
    with side.current():
        device.delay(side.handle)
        with pytest.raises(IndexError, match=beyond(r"x\(1000\)", N)):
            of("late", grid=1, block=1)(x, y)
    np.testing.assert_array_equal(side.library.to_numpy(y)[1:], A[1:])


def test_arrays_of_the_host():
    """They have what the kernel has written within bounds."""
    y = np.zeros(N, "float32")
    with pytest.raises(IndexError, match=beyond(r"y\(1007\)", N)):
        of("shift<float>")(A, y, 7, N, execution="cuda")
    np.testing.assert_array_equal(y, np.where(np.arange(N) == 7, 0, A))


def test_it_is_not_captured(torch):
    x, y = torch.arange(float(N), device="cuda"), torch.zeros(N, device="cuda")
    shift, add = of("shift<float>"), interop.kernel(ADD, "add", threads="a")
    shift(x, y, 0, 0)
    add(x, x, y, N)
    torch.cuda.synchronize()
    with graphs.captured(torch) as graph:
        for call in (shift, lambda *args: interop.explain(shift, *args)):
            with pytest.raises(ValueError, match=r"being captured into a CUDA graph, and INTEROP_CHECKED=1 .* x, y "):
                call(x, y, 0, 0)
        add(x, x, y, N)  # has no view
    y.zero_()
    graph.replay()  # the capture was not broken
    torch.cuda.synchronize()
    assert (y == 2 * x).all()


def test_reads_are_compared_beside_it(cupy):
    source = SOURCE + "__global__ void both(View<float, 1> x, float* a, int at) { x(at) = 1; a[0] = 5; }"
    both = interop.kernel(source, "both", grid=1, block=1, reads=("a",))
    x, a = cupy.zeros(3, "float32"), cupy.asarray(B)
    with pytest.raises(IndexError, match=beyond(r"x\(3\)", 3)):
        both(x, a, 3)
    a[0] = 0
    with pytest.raises(ValueError, match="a is only read, as reads= says, but has changed"):
        both(x, a, 0)


def test_a_kernel_that_was_made_without_it(cupy, monkeypatch):
    monkeypatch.delenv("INTEROP_CHECKED")
    plain = of("shift<float>")
    monkeypatch.setenv("INTEROP_CHECKED", "1")
    x, whole = cupy.asarray(A), cupy.zeros(2 * N, "float32")
    plain(x, whole[:N], 7, N)  # within the memory that this test has
    assert whole[N + 7] == 7
