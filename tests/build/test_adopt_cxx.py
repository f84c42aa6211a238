"""`interop.adopt` of a function in C++ that tvm-ffi compiles, as compilers of kernels export theirs."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers import machine

import interop

SOURCE = r"""
#include <algorithm>

namespace ffi = tvm::ffi;

/// y = x reversed, through memory of the environment's allocator.
void reversed(ffi::TensorView x, ffi::TensorView y) {
  const int64_t n = x.size(0);
  const ffi::Tensor scratch = ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, ffi::Shape({n}), x.dtype(), x.device());
  auto* const between = static_cast<float*>(scratch.data_ptr());
  std::copy_n(static_cast<const float*>(x.data_ptr()), n, between);
  std::reverse_copy(between, between + n, static_cast<float*>(y.data_ptr()));
}

ffi::Tensor itself(ffi::Tensor x, double) { return x; }

void refuses(ffi::TensorView x) { TVM_FFI_THROW(ValueError) << "of " << x.ndim() << " dimensions"; }
"""


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    machine.need("tvm_ffi")
    if not shutil.which("ninja") or not shutil.which("c++"):
        pytest.skip("needs ninja and a C++ compiler")
    from tvm_ffi import cpp

    folder = tmp_path_factory.mktemp("adopted")
    names = ["reversed", "itself", "refuses"]
    return cpp.load_inline("adopted", cpp_sources=SOURCE, functions=names, build_directory=str(folder))


def test_arrays_of_each_library(functions, torch, jax):
    call = interop.adopt(functions.reversed, "x, y", writes="y").returning(y="x")
    x = np.arange(5, dtype="float32")
    for given in (x, torch.from_numpy(x), jax.numpy.asarray(x), interop.asarray(x)):
        made = call(given)
        assert type(made) is type(given)
        assert np.asarray(made).tolist() == [4, 3, 2, 1, 0]


def test_a_tensor_that_it_returns(functions, torch):
    call = interop.adopt(functions.itself, "x, scale", writes=())
    for given in (np.ones(3), torch.ones(3)):
        made = call(given, 1.5)
        assert type(made) is type(given)
        assert np.shares_memory(np.asarray(made), np.asarray(given))


def test_what_it_throws(functions, torch):
    call = interop.adopt(functions.refuses, "x", writes=())
    for given in (np.ones((2, 3)), torch.ones(2, 3)):
        with pytest.raises(ValueError, match="of 2 dimensions"):
            call(given)
