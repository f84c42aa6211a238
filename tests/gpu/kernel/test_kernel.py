"""`interop.kernel` on the GPU: kernels written once, of arrays of every library, on their streams; and faults."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import device, graphs
from helpers.kernels import ADD, MULTIPLY, A, B, N

import interop
from interop import _program

# ---- values ----


def test_sum_of_every_library(add, device_library):
    result = add.returning(c="a")(device_library.make(A), device_library.make(B), N)
    assert device_library.is_ours(result)
    np.testing.assert_array_equal(device_library.to_numpy(result), A + B)


def test_a_given_array_is_written(add, device_view_library):
    a, b, c = (device_view_library.make(x) for x in (A, B, np.zeros(N, "float32")))
    assert add(a, b, c, N) is None
    np.testing.assert_array_equal(device_view_library.to_numpy(c), A + B)
    assert add.returning(c="a")(a, b, N, c=b) is b
    np.testing.assert_array_equal(device_view_library.to_numpy(b), A + B)


def test_libraries_in_one_call(add, torch, cupy, jax):
    a, b, c = torch.from_numpy(A).cuda(), jax.numpy.asarray(B), cupy.zeros(N, "float32")
    add(a, b, c, N)
    np.testing.assert_array_equal(c.get(), A + B)


def test_several_results(cupy):
    source = """
    __global__ void split(const double* x, double* low, long long* high) {
      const int i = threadIdx.x;
      high[i] = (long long)floor(x[i]);
      low[i] = x[i] - high[i];
    }
    """
    split = interop.kernel(source, "split", grid=1, block=3).returning(high=lambda x: x.shape, low="x")
    x = cupy.asarray([1.25, -0.5, 7.0])
    low, high = split(x)
    assert low.tolist() == [0.25, 0.5, 0.0]
    assert high.tolist() == [1, -1, 7]
    given = cupy.zeros(3, "int64")
    low, high = split(x, high=given)
    assert high is given
    assert given.tolist() == [1, -1, 7]


# ---- streams, captures, lifetime ----


def test_it_runs_on_the_callers_stream(add, cupy):
    a, b, c = cupy.zeros(N, "float32"), cupy.asarray(B), cupy.zeros(N, "float32")
    ones = cupy.asarray(A)
    add(a, b, c, N)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        device.delay(stream.ptr, 50)
        a[...] = ones  # behind the delay: the sum must be, too
        add(a, b, c, N)
    assert not stream.done
    stream.synchronize()
    np.testing.assert_array_equal(c.get(), A + B)


def test_stream_is_given(add, torch):
    stream = torch.cuda.Stream()
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    result = add.returning(c="a")(a, b, N, stream=stream)
    stream.synchronize()
    np.testing.assert_array_equal(result.cpu().numpy(), A + B)


def test_inputs_may_go_at_once(add, jax):
    result = add.returning(c="a")(jax.numpy.asarray(A), jax.numpy.asarray(B), N)
    np.testing.assert_array_equal(np.asarray(result), A + B)
    assert isinstance(result, jax.Array)


def test_a_first_call_in_a_capture(torch):
    source = ADD.replace("a[i] + b[i]", "a[i] * b[i] + 3")  # which no other test has compiled
    multiply = interop.kernel(source, "add", threads="a").returning(c="a")
    a, b = torch.from_numpy(A).cuda(), torch.from_numpy(B).cuda()
    with graphs.captured(torch) as graph:
        c = multiply(a, b, N)
    a.fill_(2)
    graph.replay()
    assert (c == 2 * b + 3).all()


def test_kernels_are_loaded_from_the_cache(tmp_path, cupy):
    code = textwrap.dedent("""
        import cupy, interop
        from interop._cuda import nvrtc
        if {cached}:
            nvrtc.compile_source = None
        f = interop.kernel("__global__ void f(int* x) {{ *x = 7; }}", "f", grid=1, block=1)
        x = cupy.zeros(1, "int32")
        f(x)
        assert x.item() == 7
    """)
    environment = {**os.environ, "INTEROP_CACHE_DIR": str(tmp_path)}
    for cached in (False, True):
        command = [sys.executable, "-c", code.format(cached=cached)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr


def test_explain(add, cupy):
    c = cupy.zeros(N, "float32")
    plan = interop.explain(add, cupy.asarray(A), cupy.asarray(B), c, N, block=128)
    assert plan.function == "interop.kernel('add')"
    assert [argument.name for argument in plan.arguments] == ["a", "b", "c"]
    assert plan.algorithm.startswith("add(const float* a, ")
    assert plan.algorithm.endswith(", grid (8, 1, 1), block (128, 1, 1)")
    assert not c.any()
    made = interop.explain(add.returning(c="a"), cupy.asarray(A), cupy.asarray(B), N, threads=lambda a, b, n: n)
    assert made.result_shape == (N,)
    assert "grid (4, 1, 1)" in made.algorithm


# ---- faults ----


def test_a_fault_is_reported_as_what_it_is(tmp_path, cupy):
    code = textwrap.dedent("""
        import os, time, cupy, interop
        source = 'extern "C" __global__ void bad(long long* x) { *(int*)1234567890123456ll = 1; }'
        bad = interop.kernel(source, "bad", grid=1, block=1)
        good = interop.kernel("__global__ void good(long long* x) { *x = 3; }", "good", grid=1, block=1)
        x = cupy.zeros(1, "int64")
        good(x)
        bad(x)
        time.sleep(0.5)
        for call in (lambda: good(x), lambda: interop.add(x, x, out=x)):
            try:
                call()
            except interop.CudaError as error:
                message = str(error)
                assert "an earlier asynchronous error: CUDA_ERROR_ILLEGAL_ADDRESS" in message, message
                assert "(the last kernel that a user wrote was interop.kernel('bad'))" in message, message
                assert "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer" in message, message
                assert "the context can run nothing more" in message, message
            else:
                raise AssertionError("no error")
        print("reported", flush=True)
        os._exit(0)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "reported\n"


@pytest.mark.multi_gpu
def test_it_runs_on_the_device_of_the_arrays(add, cupy, two_cuda_devices):
    for k in (*two_cuda_devices, two_cuda_devices[0]):
        with cupy.cuda.Device(k):
            result = add.returning(c="a")(cupy.asarray(A), cupy.asarray(B), N)
            assert result.device.id == k
            np.testing.assert_array_equal(result.get(), A + B)


# ---- tensor cores ----


@pytest.mark.usefixtures("_cuda_headers")
def test_tensor_cores_by_their_header(cupy):
    if not any(Path(folder, "crt/mma.h").is_file() for folder in _program.cuda_headers()):
        pytest.skip("nvidia-cuda-crt is not installed")
    a, b = (cupy.arange(256, dtype="float16").reshape(16, 16) % n for n in (5, 7))
    multiply = interop.kernel(MULTIPLY, "multiply", grid=1, block=32).returning(c="a")
    np.testing.assert_array_equal(multiply(a, b).get(), a.get().astype("float32") @ b.get().astype("float32"))
