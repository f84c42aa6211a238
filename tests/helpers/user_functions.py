"""Functions such as users write, in C and in CUDA C++: each gives a copy of its array, `f(a, a's size)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import interop
from helpers import c_functions

_SOURCE = r"""
#include <dlfcn.h>
#include <string.h>

typedef int (*Copy)(unsigned long long to, unsigned long long from, unsigned long bytes, void* stream);

int copy_on_device(const float* a, float* c, int n, void* stream) {  // by the driver, so that it needs no nvcc
  static Copy copy = 0;
  if (!copy) copy = (Copy)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpyDtoDAsync_v2");
  return copy((unsigned long long)c, (unsigned long long)a, 4ul * n, stream);
}
void copy_on_host(const float* a, float* c, int n) { memcpy(c, a, 4ul * n); }
"""
_DECLARATIONS = """
    cudaError_t copy_on_device(device const float* a, device float* c, int n, cudaStream_t stream);
    void copy_on_host(host const float* a, host float* c, int n);
"""
_KERNEL = """
__global__ void copy(const float* a, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i];
}
"""


def c_function(folder: Path, on_gpu: bool) -> Any:
    """Compile it in `folder`; skip where there is no compiler."""
    loaded = interop.load(c_functions.build(_SOURCE, folder / "copy.so", "-ldl"), _DECLARATIONS)
    return (loaded.copy_on_device if on_gpu else loaded.copy_on_host).returning(c="a")


def kernel() -> Any:
    return interop.kernel(_KERNEL, "copy", threads="a").returning(c="a")
