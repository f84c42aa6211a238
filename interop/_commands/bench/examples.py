"""`interop bench examples`: the worked examples of the pages, each beside the way people did it before."""

from __future__ import annotations

import ctypes
import functools
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

import interop
from interop import _core
from interop._commands.bench.compiled import compiled
from interop._commands.bench.measure import Candidates, Row, host_times, try_import

__all__ = ["run"]

# What nvcc compiles. The functions with "by_copies" are what they replace: host pointers, and all else in the call.
_SOURCE = r"""
#include <chrono>

namespace {

__global__ void sum_kernel(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

constexpr int kSide = 16;

// A tile of c for each block, of matrices whose sides are multiples of kSide.
__global__ void product_kernel(const float* a, const float* b, float* c, int n) {
  __shared__ float left[kSide][kSide], right[kSide][kSide];
  const int row = blockIdx.y * kSide + threadIdx.y, column = blockIdx.x * kSide + threadIdx.x;
  float sum = 0;
  for (int first = 0; first < n; first += kSide) {
    left[threadIdx.y][threadIdx.x] = a[row * n + first + threadIdx.x];
    right[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * n + column];
    __syncthreads();
    for (int k = 0; k < kSide; ++k) sum += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

template <class Launch>
cudaError_t by_copies(const float* a, const float* b, float* c, size_t bytes, Launch launch) {
  float* memory[3] = {};
  for (float*& one : memory) cudaMalloc(&one, bytes);
  cudaMemcpy(memory[0], a, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(memory[1], b, bytes, cudaMemcpyHostToDevice);
  launch(memory[0], memory[1], memory[2]);
  cudaMemcpy(c, memory[2], bytes, cudaMemcpyDeviceToHost);
  for (float* one : memory) cudaFree(one);
  return cudaGetLastError();
}

}  // namespace

extern "C" {

cudaError_t sum(const float* a, const float* b, float* c, int n, cudaStream_t stream) {
  sum_kernel<<<(n + 255) / 256, 256, 0, stream>>>(a, b, c, n);
  return cudaGetLastError();
}

cudaError_t sum_by_copies(const float* a, const float* b, float* c, int n) {
  return by_copies(a, b, c, n * sizeof(float), [n](const float* x, const float* y, float* z) {
    sum_kernel<<<(n + 255) / 256, 256>>>(x, y, z, n);
  });
}

cudaError_t product_by_copies(const float* a, const float* b, float* c, int n) {
  return by_copies(a, b, c, sizeof(float) * n * n, [n](const float* x, const float* y, float* z) {
    product_kernel<<<dim3(n / kSide, n / kSide), dim3(kSide, kSide)>>>(x, y, z, n);
  });
}

int add(int a, int b) { return a + b; }

double seconds_of_add(int count) {
  int (*volatile function)(int, int) = add;  // called, not inlined
  int sum = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) sum = function(sum, 1);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
}

}  // extern "C"
"""

_DECLARATIONS = """
    cudaError_t sum(device const float* a, device const float* b, device float* c, int n, cudaStream_t stream);
    int add(int a, int b);
    double seconds_of_add(int count);
"""

_SIDES = (16, 64, 256, 512, 1024, 2048, 4096)  # of the matrices of NumPy; their sums have as many elements
_SMALL = 1000  # elements of the vectors whose sums show the host's time
_SECONDS = 2.0  # for each table of calls that wait for their result


def run(torch: Any) -> Iterable[Row]:
    """Time the examples: of each the ratio to its first row, which is how it was done before."""
    cupy = try_import("cupy")
    with compiled(_SOURCE) as path:
        if path:
            c = ctypes.CDLL(str(path))
            for function in (c.sum_by_copies, c.product_by_copies):
                function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int]
            c.sum.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int, ctypes.c_void_p]
            lib = interop.load(path, _DECLARATIONS)
        for n in _SIDES:
            yield from _products_of_numpy(torch, cupy, c.product_by_copies if path else None, n)
        if path:
            for n in _SIDES:
                yield from _sum_of_numpy(c, lib, n * n)
            yield from _sum_of_tensors(torch, c, lib)
            if cupy:
                yield from _sum_of_cupy(cupy, c, lib)
                yield from _sum_of_managed(cupy, c, lib)
            yield from _calculator(c, lib)
    yield from _protocols(torch, cupy)


def _table(title: str, times: dict[str, float]) -> Iterable[Row]:
    """Print and yield microseconds, and their ratio to those of the first row."""
    print(f"{title:<60}{'us':>10}{'ratio':>8}")
    first = next(iter(times.values()))
    for name, microseconds in times.items():
        ratio = microseconds / first
        print(f"  {name:<58}{microseconds:>10.3f}{ratio:>8.2f}")
        yield {"example": title, "row": name, "microseconds": microseconds, "ratio": ratio}
    print()


def _medians(calls: Candidates) -> dict[str, float]:
    """Return the median microseconds of calls that wait for their result, in turn with each other."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    started = time.perf_counter()
    while len(next(iter(samples.values()))) < 5 or time.perf_counter() - started < _SECONDS:
        for name, call in calls.items():
            before = time.perf_counter_ns()
            call()
            samples[name].append((time.perf_counter_ns() - before) / 1000)
    return {name: statistics.median(values) for name, values in samples.items()}


def _check(calls: Candidates, expected: Any) -> None:
    for name, call in calls.items():
        if not np.allclose(_on_host(call()), expected, rtol=1e-4):
            raise AssertionError(f"interop bench: {name} is wrong; nothing was timed")


def _on_host(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x.cpu() if hasattr(x, "cpu") else x


def _products_of_numpy(torch: Any, cupy: Any, by_copies: Any, n: int) -> Iterable[Row]:
    rng = np.random.default_rng(0)
    x, y = rng.random((n, n), np.float32), rng.random((n, n), np.float32)
    calls: Candidates = {}
    if by_copies:

        def in_c() -> Any:
            result = np.empty_like(x)
            _succeeded(by_copies(x.ctypes.data, y.ctypes.data, result.ctypes.data, n))
            return result

        calls["ctypes: cudaMalloc, copies, a tiled kernel, in each call"] = in_c
    if cupy:
        calls["(cupy.asarray(x) @ cupy.asarray(y)).get()"] = lambda: (cupy.asarray(x) @ cupy.asarray(y)).get()
    calls["torch: .cuda(), matmul, .cpu().numpy()"] = lambda: (
        (torch.from_numpy(x).cuda() @ torch.from_numpy(y).cuda()).cpu().numpy()
    )
    calls['interop.matmul(x, y, execution="cuda")'] = lambda: interop.matmul(x, y, execution="cuda")
    backends: list[Literal["tiled", "cublas"]] = ["tiled"]
    if _core.machine_info()["cublas"]:
        backends.append("cublas")
    for backend in backends:
        name = f'interop.matmul(x, y, execution="cuda", backend="{backend}")'
        calls[name] = functools.partial(interop.matmul, x, y, execution="cuda", backend=backend)
    _check(calls, x @ y)
    yield from _table(f"product of NumPy arrays on the GPU, {n} x {n} float32", _medians(calls))


def _succeeded(status: int) -> None:
    if status:
        raise RuntimeError(f"interop bench: CUDA error {status}")


def _sum_of_numpy(c: Any, lib: Any, n: int) -> Iterable[Row]:
    rng = np.random.default_rng(0)
    x, y = rng.random(n, np.float32), rng.random(n, np.float32)
    add = lib.sum.returning(c="a")

    def by_ctypes() -> Any:
        result = np.empty_like(x)
        _succeeded(c.sum_by_copies(x.ctypes.data, y.ctypes.data, result.ctypes.data, n))
        return result

    calls: Candidates = {
        "ctypes: cudaMalloc, copies, the kernel, in each call": by_ctypes,
        'interop.load, execution="cuda"': lambda: add(x, y, n, execution="cuda"),
        'interop.add(x, y, execution="cuda")': lambda: interop.add(x, y, execution="cuda"),
    }
    _check(calls, x + y)
    yield from _table(f"sum of NumPy arrays on the GPU, {n} float32", _medians(calls))


def _sum_of_tensors(torch: Any, c: Any, lib: Any) -> Iterable[Row]:
    x = torch.rand(_SMALL, device="cuda")
    add = lib.sum.returning(c="a")

    def by_ctypes(a: Any, b: Any) -> Any:
        result = torch.empty_like(a)
        stream = torch.cuda.current_stream().cuda_stream
        _succeeded(c.sum(a.data_ptr(), b.data_ptr(), result.data_ptr(), _SMALL, stream))
        return result

    def by_interop(a: Any, b: Any) -> Any:
        return add(a, b, _SMALL)

    def operator(name: str, function: Callable[[Any, Any], Any]) -> Any:
        schema = "(Tensor a, Tensor b) -> Tensor"
        return torch.library.custom_op(f"interop_bench::{name}", function, mutates_args=(), schema=schema)

    operators = operator("by_ctypes", by_ctypes), operator("by_interop", by_interop)
    calls: Candidates = {
        "ctypes: data_ptr() of each tensor, torch's stream": lambda: by_ctypes(x, x),
        "interop.load": lambda: by_interop(x, x),
        "operator of PyTorch around ctypes": lambda: operators[0](x, x),
        "operator of PyTorch around interop.load": lambda: operators[1](x, x),
        "torch.add": lambda: torch.add(x, x),
    }
    _check(calls, (x + x).cpu())
    times = host_times(calls, torch.cuda.synchronize)
    yield from _table(f"sum of tensors on torch's stream, {_SMALL} float32, host time", times)


def _sum_of_cupy(cupy: Any, c: Any, lib: Any) -> Iterable[Row]:
    x = cupy.random.rand(_SMALL, dtype=cupy.float32)
    add = lib.sum.returning(c="a")
    source = _SOURCE[_SOURCE.index("__global__ void sum_kernel") : _SOURCE.index("constexpr int kSide")]
    kernel = cupy.RawKernel(f'extern "C" {source}', "sum_kernel")

    def by_ctypes() -> Any:
        result = cupy.empty_like(x)
        _succeeded(c.sum(x.data.ptr, x.data.ptr, result.data.ptr, _SMALL, cupy.cuda.get_current_stream().ptr))
        return result

    def by_raw_kernel() -> Any:
        result = cupy.empty_like(x)
        kernel(((_SMALL + 255) // 256,), (256,), (x, x, result, np.int32(_SMALL)))
        return result

    calls: Candidates = {
        "ctypes: data.ptr of each array, CuPy's stream": by_ctypes,
        "cupy.RawKernel": by_raw_kernel,
        "interop.load": lambda: add(x, x, _SMALL),
    }
    _check(calls, (x + x).get())
    times = host_times(calls, cupy.cuda.runtime.deviceSynchronize)
    yield from _table(f"sum of CuPy arrays on CuPy's stream, {_SMALL} float32, host time", times)


def _sum_of_managed(cupy: Any, c: Any, lib: Any) -> Iterable[Row]:
    """Time sums that the host reads at once: vectors in managed memory, as libraries of such vectors make them."""

    def vector() -> Any:
        memory = cupy.cuda.malloc_managed(4 * _SMALL)
        x = cupy.ndarray(_SMALL, cupy.float32, memptr=memory)
        x[...] = cupy.random.rand(_SMALL, dtype=cupy.float32)
        return x

    x, y, z = vector(), vector(), vector()
    wait = cupy.cuda.get_current_stream().synchronize

    def by_ctypes() -> Any:
        _succeeded(c.sum(x.data.ptr, y.data.ptr, z.data.ptr, _SMALL, cupy.cuda.get_current_stream().ptr))
        wait()
        return z

    def by_load() -> Any:
        lib.sum(x, y, z, _SMALL)
        wait()
        return z

    def by_add() -> Any:
        interop.add(x, y, out=z)
        wait()
        return z

    calls: Candidates = {
        "ctypes: data.ptr of each vector, and a wait": by_ctypes,
        "interop.load, and a wait": by_load,
        "interop.add(out=), and a wait": by_add,
    }
    _check(calls, (x + y).get())
    yield from _table(f"sum of vectors in managed memory, {_SMALL} float32", _medians(calls))


def _calculator(c: Any, lib: Any) -> Iterable[Row]:
    calls: Candidates = {"ctypes": lambda: c.add(2, 3), "interop.load": lambda: lib.add(2, 3)}
    _check(calls, 5)
    times = {"a call in C++": lib.seconds_of_add(10**7) * 1e6} | host_times(calls, lambda: None)
    yield from _table("calculator: add(2, 3)", times)


class _Interface:
    """An array that has `__cuda_array_interface__` alone."""

    def __init__(self, tensor: Any) -> None:
        self._tensor, self._interface = tensor, tensor.__cuda_array_interface__

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._interface  # type: ignore[no-any-return]


class _DLPack:
    """An array that has `__dlpack__` alone."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def _protocols(torch: Any, cupy: Any) -> Iterable[Row]:
    tensor = torch.rand(16, 16, device="cuda")
    buffer = np.ones((16, 16), np.float32).data
    interface, dlpack = _Interface(tensor), _DLPack(tensor)
    tables: dict[str, Candidates] = {
        "the buffer protocol": {
            "numpy.asarray": lambda: np.asarray(buffer),
            "interop.asarray": lambda: interop.asarray(buffer),
        },
        "__cuda_array_interface__": {
            "torch.as_tensor": lambda: torch.as_tensor(interface, device="cuda"),
            **({"cupy.asarray": lambda: cupy.asarray(interface)} if cupy else {}),
            "interop.asarray": lambda: interop.asarray(interface),
        },
        "__dlpack__ of a tensor": {
            "torch.from_dlpack": lambda: torch.from_dlpack(dlpack),
            **({"cupy.from_dlpack": lambda: cupy.from_dlpack(dlpack)} if cupy else {}),
            "interop.asarray": lambda: interop.asarray(dlpack),
            "interop.asarray, of the tensor itself": lambda: interop.asarray(tensor),
        },
    }
    for protocol, calls in tables.items():
        for name, call in calls.items():
            if tuple(call().shape) != (16, 16):
                raise AssertionError(f"interop bench: {name} of {protocol} is wrong; nothing was timed")
        yield from _table(f"one array read by {protocol}", host_times(calls, torch.cuda.synchronize))
