"""Operators of kernels on the GPU: with the arrays of every library, on their streams."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import device, graphs

import interop

SOURCE = r"""
#include <interop/view.cuh>

__global__ void scale(const float* x, const float* s, float by, float* y, long long rows, int n) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x)
    y[i] = x[i] * s[i % n] * by;
}
__global__ void transpose(interop::View<const double, 2> x, double* y, int m, int n) {
  for (int i = threadIdx.x; i < m * n; i += blockDim.x) y[i] = x(i % m, i / m);
}
__global__ void split(const float* x, float* low, int* high) {
  const int i = threadIdx.x;
  high[i] = (int)floorf(x[i]);
  low[i] = x[i] - high[i];
}
"""
X = np.arange(24, dtype="float32").reshape(2, 3, 4)
S = np.arange(4, dtype="float32")


def make_scale(**launch):
    kernel = interop.kernel(SOURCE, "scale", **(launch or {"threads": "x"}))
    sizes = {"rows": lambda leading: leading}
    return interop.operator("tests::scale_gpu", kernel, "x[..., n], s[n], by -> y[..., n]", sizes=sizes)


@pytest.fixture(scope="module")
def scale():
    return make_scale()


def test_arrays_of_every_library(scale, device_library):
    for shape in ((2, 3, 4), (24, 1), (1, 24)):
        x, s = X.reshape(shape), S[: shape[-1]] if shape[-1] <= 4 else np.arange(24, dtype="float32")
        for _ in range(2):  # the second time as it is kept
            result = scale(device_library.make(x), device_library.make(s), 2)
            assert device_library.is_ours(result)
            np.testing.assert_array_equal(device_library.to_numpy(result), x * s * 2)


def test_no_elements(scale, cupy):
    assert scale(cupy.zeros((0, 4), "float32"), cupy.zeros(4, "float32"), 1).shape == (0, 4)
    assert scale(cupy.zeros((3, 0), "float32"), cupy.zeros(0, "float32"), 1).shape == (3, 0)


LAUNCHES = [{"grid": 2}, {"grid": lambda x, s, by, rows, n: rows, "block": 32}, {"threads": lambda *args: args[0].size}]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_launches_of_each_kind(launch, cupy):
    scale = make_scale(**launch)
    for _ in range(2):
        assert (scale(cupy.asarray(X), cupy.asarray(S), 3).get() == X * S * 3).all()


def test_views_have_any_strides(cupy):
    kernel = interop.kernel(SOURCE, "transpose", grid=1)
    transpose = interop.operator("tests::transpose_gpu", kernel, "x[m, n] -> [n, m]")
    x = cupy.arange(12.0).reshape(3, 4)
    assert (transpose(x).get() == x.get().T).all()
    assert (transpose(x.T[::2]).get() == x.get().T[::2].T).all()


def test_several_results_by_name(cupy):
    split = interop.operator(
        "tests::split_gpu", interop.kernel(SOURCE, "split", grid=1, block=3), "x[n] -> high[n], [n]"
    )
    high, low = split(cupy.asarray([1.25, -0.5, 7.0], "float32"))
    assert (high.tolist(), high.dtype) == ([1, -1, 7], "int32")
    assert (low.tolist(), low.dtype) == ([0.25, 0.5, 0.0], "float32")


def test_it_runs_on_the_callers_stream(scale, cupy):
    x, s, twos = cupy.zeros((2, 4), "float32"), cupy.ones(4, "float32"), cupy.full((2, 4), 2, "float32")
    scale(x, s, 1)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device.delay(stream.ptr, 50)
        x[...] = twos  # behind the delay: the product must be, too
        result = scale(x, s, 3)
    assert not stream.done
    stream.synchronize()
    assert (result.get() == 6).all()


def test_stream_and_execution_are_handed_on(scale, torch):
    stream = torch.cuda.Stream()
    x, s = torch.from_numpy(X).cuda(), torch.from_numpy(S).cuda()
    torch.cuda.synchronize()
    result = scale(x, s, 2, stream=stream)
    stream.synchronize()
    assert (result.cpu().numpy() == X * S * 2).all()
    assert (scale(X, S, by=2, execution="cuda") == X * S * 2).all()
    with pytest.raises(TypeError, match="x is float32 of shape .* on cpu; accepted: a float32 array on a CUDA device"):
        scale(X, S, 2)


def test_a_captured_call(scale, torch):
    x, s = torch.from_numpy(X).cuda(), torch.from_numpy(S).cuda()
    scale(x, s, 2)
    with graphs.captured(torch) as graph:
        result = scale(x, s, 2)
    x.fill_(3)
    graph.replay()
    assert (result == 6 * s).all()


def test_an_explained_call(scale, cupy):
    x, s = cupy.asarray(X), cupy.asarray(S)
    plan = interop.explain(scale, x, s, 2)
    assert (plan.result_library, plan.result_shape, plan.result_dtype) == ("cupy", X.shape, "float32")
    assert plan.function == repr(scale)
    assert plan.arguments[0].pointer == x.data.ptr
    assert plan.algorithm.startswith("scale(const float* x")
