"""`interop.kernel(path, name, compiler="nvcc")` on the GPU: whole files, with host code in them."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from helpers.kernels import A, B, N

import interop
from interop._cuda import nvcc

WHOLE = """
#include <iostream>
#include <vector>
#include "half.h"

namespace demo {
template <typename T, int Times>
__global__ void add(const T* a, const T* b, T* c, std::size_t n) {
  const std::size_t i = blockIdx.x * (std::size_t)blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + Times * b[i];
}
}  // namespace demo

static __global__ void halve(float* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= HALF;
}

int main() {
  std::vector<float> nothing;
  demo::add<double, 1><<<1, 32>>>(nullptr, nullptr, nullptr, 0);
  std::cout << nothing.size() << std::endl;
}
"""


@pytest.fixture
def whole(tmp_path, monkeypatch):
    usual = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
    if shutil.which("nvcc", path=usual) is None or shutil.which("g++") is None:
        pytest.skip("needs nvcc and a host compiler")
    monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "half.h").write_text("#define HALF 0.5f\n")
    file = tmp_path / "whole.cu"
    file.write_text(WHOLE)
    return file


def test_a_template_of_a_whole_file(whole, device_library):
    add = interop.kernel(whole, "demo::add<float, 3>", threads="a", compiler="nvcc").returning(c="a")
    result = add(device_library.make(A), device_library.make(B), N)
    assert device_library.is_ours(result)
    np.testing.assert_array_equal(device_library.to_numpy(result), A + 3 * B)


def test_a_kernel_that_nothing_uses(whole, cupy, monkeypatch):
    x = cupy.asarray(A)
    halve = interop.kernel(whole, "halve", threads="x", compiler="nvcc")
    halve(x, N)
    np.testing.assert_array_equal(x.get(), A / 2)
    monkeypatch.setattr(nvcc, "compile_file", None)  # it is kept on disk
    interop.kernel(whole, "halve", threads="x", compiler="nvcc")(x, N)
    np.testing.assert_array_equal(x.get(), A / 4)


def test_a_header_that_changed(whole, cupy):
    x = cupy.asarray(A)
    interop.kernel(whole, "halve", threads="x", compiler="nvcc")(x, N)
    (whole.parent / "half.h").write_text("#define HALF 4.f\n")
    interop.kernel(whole, "halve", threads="x", compiler="nvcc")(x, N)
    np.testing.assert_array_equal(x.get(), A * 2)


def test_an_error_writes_nothing(whole, cupy):
    x = cupy.asarray(A)
    kernel = interop.kernel(whole, "halve", threads="x", compiler="nvcc")
    whole.write_text(WHOLE + "\n// changed\n")
    with pytest.raises(interop.CudaError, match="has changed since interop.kernel read it"):
        kernel(x, N)
    whole.write_text(WHOLE + "\n#error this one\n")
    with pytest.raises(interop.CudaError, match=r"whole.cu\(\d+\): error: #error this one|#error this one"):
        interop.kernel(whole, "halve", threads="x", compiler="nvcc")(x, N)
    np.testing.assert_array_equal(x.get(), A)
