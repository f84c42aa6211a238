"""How a kernel is launched: grid, threads and blocks, shared memory, clusters, all blocks at once; and the limits."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import graphs
from helpers.kernels import ADD, A, B, N

import interop


@pytest.mark.parametrize(
    "launch",
    [
        {"threads": "c"},
        {"threads": N},
        {"threads": (N, 1, 1), "block": (64, 1)},
        {"grid": 4},
        {"grid": (np.int64(32), 1), "block": 32},
        {"grid": lambda a, b, c, n: -(-a.shape[0] // 256)},
        {"threads": lambda a, b, c, n: (n,)},
    ],
)
def test_ways_to_launch(cupy, launch):
    for made, options in ((interop.kernel(ADD, "add", **launch), {}), (interop.kernel(ADD, "add", grid=1), launch)):
        c = cupy.zeros(N, "float32")
        made(cupy.asarray(A), cupy.asarray(B), c, N, **options)
        np.testing.assert_array_equal(c.get(), A + B)


def test_the_call_says_how_it_is_launched(cupy):
    made = interop.kernel(ADD, "add")
    a, b, c = cupy.asarray(A), cupy.asarray(B), cupy.zeros(N, "float32")
    with pytest.raises(ValueError, match="neither grid nor threads is given; accepted: one of them"):
        made(a, b, c, N)
    with pytest.raises(ValueError, match="grid and threads are given"):
        made(a, b, c, N, grid=1, threads=1)
    with pytest.raises(ValueError, match="block is 0; accepted"):
        made(a, b, c, N, grid=1, block=0)
    assert not c.any()
    made(a, b, c, N, threads=N, block=128)
    np.testing.assert_array_equal(c.get(), A + B)


def test_nothing_to_launch(add, cupy):
    empty = cupy.zeros(0, "float32")
    assert add.returning(c="a")(empty, empty, 0).shape == (0,)
    c = cupy.zeros(N, "float32")
    add(cupy.asarray(A), cupy.asarray(B), c, N, grid=(0, 3))
    assert not c.any()


SHARED = """
extern "C" __global__ void reverse(const float* x, float* y, int n) {
  extern __shared__ float kept[];
  for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = kept[n - 1 - i];
}
extern "C" __global__ void own(float* y) {
  __shared__ float kept[10000];
  for (int i = threadIdx.x; i < 10000; i += blockDim.x) kept[i] = i;
  __syncthreads();
  extern __shared__ float more[];
  more[threadIdx.x] = kept[threadIdx.x + 9000];
  __syncthreads();
  y[threadIdx.x] = more[threadIdx.x];
}
"""


def test_shared_memory_beyond_what_every_kernel_may_have(cupy):
    reverse = interop.kernel(SHARED, "reverse", grid=1)
    for n in (1000, 15000, 12500, 100):  # 60 KB are more than 48
        x = cupy.arange(n, dtype="float32")
        y = cupy.zeros(n, "float32")
        reverse(x, y, n, shared=4 * n)
        assert (y == x[::-1]).all()
    y = cupy.zeros(256, "float32")
    interop.kernel(SHARED, "own", grid=1, block=256, shared=12000)(y)  # 12000 beside 40000
    assert (y == cupy.arange(9000, 9256)).all()


def test_too_much_of_anything_is_named(add, cupy):
    x = cupy.zeros(N, "float32")
    reverse = interop.kernel(SHARED, "reverse", grid=1)
    for made, options, message in (
        (
            reverse,
            {"shared": 10**6},
            r"shared is 1000000 bytes, beside 0 that .*; accepted: up to \d+",
        ),
        (reverse, {"block": (2048, 1, 1)}, r"block is \(2048, 1, 1\); accepted: up to \(1024, 1024, 64\)"),
        (reverse, {"block": (64, 32)}, r"block is \(64, 32, 1\), 2048 threads; accepted: up to 1024"),
        (reverse, {"grid": (1, 70000)}, r"grid is \(1, 70000, 1\); accepted: up to \(2147483647, 65535, 65535\)"),
    ):
        with pytest.raises(ValueError, match=r"interop.kernel\('reverse'\): " + message):
            made(x, x, 1, **options)
    source = "__global__ void __launch_bounds__(128) f(float* x) {}"
    with pytest.raises(ValueError, match="block is .*, 256 threads; accepted: up to 128, by the device, the kernel's"):
        interop.kernel(source, "f", grid=1)(x)
    add(x, x, x, N)  # the context still works


def test_a_first_call_in_a_capture_that_needs_much_shared_memory(torch):
    reverse = interop.kernel(SHARED, "reverse", grid=1)
    x, y = torch.arange(20000, device="cuda", dtype=torch.float32), torch.zeros(20000, device="cuda")
    with graphs.captured(torch) as graph:
        reverse(x, y, 20000, shared=80000)  # compiled, loaded and allowed in the capture
    assert not y.any()
    graph.replay()
    assert (y == x.flip(0)).all()


CLUSTER = """
extern "C" __global__ void ranks(int* y) {
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  y[blockIdx.x] = 100 * size + rank;
}
"""


def has_clusters():
    info = interop._core.machine_info()["devices"][0]
    return info["compute_capability"] >= (9, 0)


def test_clusters(cupy):
    if not has_clusters():
        pytest.skip("this GPU has no clusters of thread blocks")
    y = cupy.zeros(16, "int32")
    ranks = interop.kernel(CLUSTER, "ranks", grid=16, block=32)
    ranks(y, cluster=2)
    assert y.tolist() == [200, 201] * 8
    ranks(y, cluster=(8, 1, 1))
    assert y.tolist() == [*range(800, 808)] * 2
    ranks(y, cluster=16)  # more than is portable
    assert y.tolist() == [*range(1600, 1616)]
    y.fill(-1)
    ranks(y, threads=5 * 32, cluster=4)  # 5 blocks are 2 clusters
    assert y.tolist() == [*range(400, 404)] * 2 + [-1] * 8
    with pytest.raises(ValueError, match=r"grid is \(16, 1, 1\); accepted: whole clusters, of \(3, 1, 1\) blocks"):
        ranks(y, cluster=3)
    with pytest.raises(ValueError, match=r"cluster is \(32, 1, 1\); accepted: up to 8 blocks"):
        ranks(y, grid=32, cluster=32)


COOPERATIVE = """
#include <cooperative_groups.h>
extern "C" __global__ void total(const float* x, float* partial, float* y) {
  partial[blockIdx.x] = x[blockIdx.x];
  cooperative_groups::this_grid().sync();
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    *y = 0;
    for (int i = 0; i < gridDim.x; ++i) *y += partial[i];
  }
}
"""


@pytest.mark.usefixtures("_cuda_headers")
def test_cooperative_launches(cupy):
    total = interop.kernel(COOPERATIVE, "total", cooperative=True, block=32)
    x = cupy.arange(64, dtype="float32")
    y = cupy.zeros(1, "float32")
    total(x, cupy.zeros(64, "float32"), y, grid=64)
    assert y.item() == 64 * 63 / 2
    large = cupy.zeros(10**6, "float32")
    with pytest.raises(ValueError, match=r"grid is .*1000000 blocks; accepted: up to \d+, which run at once"):
        total(large, large, y, grid=10**6)
