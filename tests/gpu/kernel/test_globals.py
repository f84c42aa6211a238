"""`Kernel.globals` on the GPU: variables of kernels, written and read in order with their launches; who shares them."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import threading

import numpy as np
import pytest
from helpers import device, graphs

import interop
from interop._cuda import nvrtc

SOURCE = """
namespace demo {
__constant__ float filter[3] = {1, 2, 3};
}
__device__ int counter = 5;
__managed__ int everywhere = 7;
__device__ float table[1 << 20];
static __device__ float hidden[2];

__global__ void load_filter(float* y) { y[threadIdx.x] = demo::filter[threadIdx.x]; }
__global__ void double_filter(float* y) { y[threadIdx.x] = 2 * demo::filter[threadIdx.x]; }
__global__ void count(int* y) { y[0] = ++counter; y[1] = ++everywhere; }
__global__ void load_table(float* y) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < 1 << 20; i += gridDim.x * blockDim.x) y[i] = table[i];
}
__global__ void load_hidden(float* y) { y[threadIdx.x] = hidden[threadIdx.x]; }
template <typename T> __global__ void load_as(T* y) { y[threadIdx.x] = demo::filter[threadIdx.x]; }
"""
NEW = np.array([4, 5, 6], "float32")
OLD = np.array([1, 2, 3], "float32")


def make(name="load_filter", source=SOURCE, block=3):
    return interop.kernel(source, name, grid=1, block=block)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "globals.cu"
    file.write_text(SOURCE)
    return file


@pytest.fixture
def streams(cupy):
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]


# ---- values ----


def test_a_constant_from_arrays_of_every_library(device_library):
    kernel = make()
    kernel.globals["demo::filter"] = device_library.make(NEW)
    np.testing.assert_array_equal(kernel.globals["filter"].get("float32"), NEW)
    if device_library.name != "jax":  # whose arrays no kernel writes
        y = device_library.make(np.zeros(3, "float32"))
        kernel(y)
        np.testing.assert_array_equal(device_library.to_numpy(y), NEW)


def test_a_constant_from_the_host(cupy):
    kernel, y = make(), cupy.zeros(3, "float32")
    kernel(y)
    assert y.tolist() == [1, 2, 3]
    values = NEW.copy()
    kernel.globals["filter"] = values
    values[:] = 0
    kernel(y)
    assert y.tolist() == [4, 5, 6]
    assert kernel.globals["filter"].nbytes == 12
    assert kernel.globals["filter"].get("float32").tolist() == [4, 5, 6]


def test_pinned_memory_may_change_at_once(torch, cupy):
    kernel, y = interop.kernel(SOURCE, "load_table", grid=64, block=256), cupy.zeros(1 << 20, "float32")
    pinned = torch.full((1 << 20,), 4.0).pin_memory()  # few bytes the driver would take at once by itself
    kernel(y)
    stream = cupy.cuda.Stream(non_blocking=True)
    device.delay(stream.ptr)
    kernel.globals["table"].set(pinned, stream=stream)
    pinned.zero_()
    kernel(y, stream=stream)
    stream.synchronize()
    assert bool((y == 4).all())


def test_variables_that_the_kernel_writes(cupy):
    kernel, y = make("count", block=1), cupy.zeros(2, "int32")
    for _ in range(3):
        kernel(y)
    assert kernel.globals["counter"].get("int32").tolist() == [8]
    assert kernel.globals["everywhere"].get("int32", ()).tolist() == 10
    kernel.globals["counter"] = np.int32(100)
    kernel.globals["everywhere"] = np.array(200, "int32")
    kernel(y)
    assert y.tolist() == [101, 201]
    assert kernel.globals["everywhere"].get("int32").tolist() == [201]


def test_a_static_variable(cupy):
    kernel, y = make("load_hidden", block=2), cupy.ones(2, "float32")
    kernel.globals["hidden"] = np.array([8, 9], "float32")
    kernel(y)
    assert y.tolist() == [8, 9]


def test_variables_of_a_cubin_and_of_ptx(tmp_path, cupy):
    major, minor = interop._core.machine_info()["devices"][0]["compute_capability"]
    image, _ = nvrtc.compile_source("a test", SOURCE, [], {}, f"sm_{major}{minor}")
    (tmp_path / "x.cubin").write_bytes(image)
    first, second = (make(name, tmp_path / "x.cubin") for name in ("_Z11load_filterPf", "double_filter"))
    y = cupy.zeros(3, "float32")
    first.globals["demo::filter"] = NEW
    second(y)
    assert y.tolist() == [8, 10, 12]
    ptx = """
        .version 7.0
        .target sm_75
        .address_size 64
        .visible .global .align 4 .f32 value = 0f40400000;
        .visible .entry _Z3getPf(.param .u64 to)
        {
            .reg .u64 %a;
            .reg .f32 %x;
            ld.param.u64 %a, [to];
            cvta.to.global.u64 %a, %a;
            ld.global.f32 %x, [value];
            st.global.f32 [%a], %x;
            ret;
        }
    """
    get, y = interop.kernel(ptx, "get", grid=1, block=1), cupy.zeros(1, "float32")
    get(y)
    assert y.tolist() == [3]
    get.globals["value"] = np.float32(4)
    get(y)
    assert y.tolist() == [4]


# ---- the order of writes and launches ----


@pytest.mark.parametrize("of_device", [False, True])
def test_a_write_waits_for_a_launch_on_another_stream(cupy, streams, of_device):
    kernel, y, z = make(), cupy.zeros(3, "float32"), cupy.zeros(3, "float32")
    kernel(y)  # which loads it
    values = cupy.asarray(NEW) if of_device else NEW
    cupy.cuda.Device().synchronize()
    first, second, third = streams
    device.delay(first.ptr)
    kernel(y, stream=first)
    kernel.globals["filter"].set(values, stream=second)
    kernel(z, stream=third)
    assert not first.done  # the host has waited for none of it
    assert not third.done
    third.synchronize()
    assert z.tolist() == [4, 5, 6]
    first.synchronize()
    assert y.tolist() == [1, 2, 3]


def test_a_launch_waits_for_a_write_on_another_stream(cupy, streams):
    kernel, y = make(), cupy.zeros(3, "float32")
    kernel(y)
    cupy.cuda.Device().synchronize()
    first, second, third = streams
    device.delay(first.ptr)
    kernel.globals["filter"].set(NEW, stream=first)
    kernel(y, stream=second)
    kernel(y, stream=second)  # behind it already
    assert not second.done
    second.synchronize()
    assert y.tolist() == [4, 5, 6]
    device.delay(first.ptr)
    kernel.globals["filter"].set(OLD, stream=first)
    kernel.globals["filter"].set(NEW, stream=third)
    assert kernel.globals["filter"].get("float32").tolist() == [4, 5, 6]


def test_a_read_waits_for_launches_on_every_stream(cupy, streams):
    kernel, y = make("count", block=1), cupy.zeros(2, "int32")
    kernel(y)
    for stream in streams:  # one after the other, since they count without atomics
        kernel(y, stream=stream)
        stream.synchronize()
    device.delay(streams[1].ptr)
    kernel(y, stream=streams[1])
    assert kernel.globals["counter"].get("int32").tolist() == [10]


def test_the_writes_of_current_streams(torch, cupy):
    """Without `stream=`: on the current stream of the array's library, or of this package for host arrays."""
    kernel, y = make(), torch.zeros(3, device="cuda")
    kernel(y)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        device.delay(side.cuda_stream)
        kernel.globals["filter"] = torch.tensor([4.0, 5.0, 6.0]).cuda(non_blocking=True)
    kernel(y)
    assert y.tolist() == [4, 5, 6]
    kernel.globals["filter"] = OLD
    z = cupy.zeros(3, "float32")
    kernel(z)
    assert z.tolist() == [1, 2, 3]


def test_threads_never_see_half_of_a_write(cupy):
    kernel = interop.kernel(SOURCE, "load_table", grid=64, block=256)
    variable = kernel.globals["table"]
    variable.set(cupy.zeros(1 << 20, "float32"))
    wrong, stop = [], threading.Event()

    def reads():
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            y = cupy.empty(1 << 20, "float32")
            while not stop.is_set():
                kernel(y)
                if not bool((y == y[0]).all()):
                    wrong.append(cupy.unique(y).tolist())

    threads = [threading.Thread(target=reads) for _ in range(4)]
    for thread in threads:
        thread.start()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for value in range(200):
            variable.set(cupy.full(1 << 20, value, "float32"))
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- captures ----


def test_a_captured_write_keeps_the_values_of_the_host(torch):
    kernel, y = make(), torch.zeros(3, device="cuda")
    values = NEW.copy()
    with graphs.captured(torch) as graph:
        kernel.globals["filter"].set(values, stream=torch.cuda.current_stream())
        kernel(y)
    assert kernel.globals["filter"].get("float32").tolist() == [1, 2, 3]
    values[:] = 0
    del values
    gc.collect()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert y.tolist() == [4, 5, 6]
        kernel.globals["filter"] = OLD
        kernel(y)
        assert y.tolist() == [1, 2, 3]


def test_a_captured_write_from_the_device(torch):
    kernel, y = make(), torch.zeros(3, device="cuda")
    values = torch.tensor([4.0, 5.0, 6.0], device="cuda")
    with graphs.captured(torch) as graph:
        kernel.globals["filter"] = values
        kernel(y)
    for factor in (1, 2):
        values.copy_(factor * torch.tensor([4.0, 5.0, 6.0]))
        graph.replay()
        assert y.tolist() == [4 * factor, 5 * factor, 6 * factor]


def test_a_captured_launch_sees_a_write_before_the_capture(torch, cupy):
    kernel, y = make(), torch.zeros(3, device="cuda")
    kernel(y)
    side = cupy.cuda.Stream(non_blocking=True)
    device.delay(side.ptr)
    kernel.globals["filter"].set(NEW, stream=side)
    with graphs.captured(torch) as graph:
        kernel(y)
    graph.replay()
    assert y.tolist() == [4, 5, 6]


def test_streams_that_a_capture_has_forked_are_ordered(torch):
    kernel, y = make(), torch.zeros(3, device="cuda")
    main, side = torch.cuda.Stream(), torch.cuda.Stream()
    with graphs.captured(torch, stream=main) as graph:
        side.wait_stream(main)
        device.delay(side.cuda_stream, 50)
        kernel.globals["filter"].set(NEW, stream=side)
        kernel(y)  # on the capture's stream, which waits for the write
        main.wait_stream(side)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [4, 5, 6]


def test_a_captured_stream_is_not_read(torch):
    kernel = make()
    with graphs.captured(torch):
        with pytest.raises(ValueError, match="is being captured into a CUDA graph, and reading waits for it; accepted"):
            kernel.globals["filter"].get("float32", stream=torch.cuda.current_stream())
        torch.zeros(1, device="cuda").add_(1)
    assert kernel.globals["filter"].get("float32").tolist() == [1, 2, 3]


# ---- who shares ----


@pytest.mark.parametrize("compiler", ["nvrtc", "nvcc"])
def test_kernels_of_one_file_share(file, cupy, compiler, monkeypatch, tmp_path):
    if compiler == "nvcc":
        usual = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"])
        if shutil.which("nvcc", path=usual) is None or shutil.which("g++") is None:
            pytest.skip("needs nvcc and a host compiler")
        monkeypatch.setenv("INTEROP_CACHE_DIR", str(tmp_path / "cache"))
    load, double, instance = (
        interop.kernel(file, name, grid=1, block=3, compiler=compiler)
        for name in ("load_filter", "double_filter", "load_as<float>")
    )
    y = cupy.zeros(3, "float32")
    load.globals["filter"] = NEW
    double(y)
    assert y.tolist() == [8, 10, 12]
    instance(y)
    assert y.tolist() == [1, 2, 3]
    instance.globals["filter"] = NEW
    instance(y)
    assert y.tolist() == [4, 5, 6]
    again = pickle.loads(pickle.dumps(load))
    again(y)
    assert y.tolist() == [1, 2, 3]
    load(y)
    assert y.tolist() == [4, 5, 6]


def test_kernels_of_a_text_do_not_share(cupy):
    first, second, y = make(), make(), cupy.zeros(3, "float32")
    first.globals["filter"] = NEW
    second(y)
    assert y.tolist() == [1, 2, 3]
    first(y)
    assert y.tolist() == [4, 5, 6]


@pytest.mark.multi_gpu
def test_each_device_has_its_own(two_cuda_devices, cupy):
    kernel = make()
    kernel.globals["filter"].set(NEW, device=1)
    kernel.globals["filter"].set(2 * NEW)
    for number, expected in ((0, 2 * NEW), (1, NEW)):
        with cupy.cuda.Device(number):
            y = cupy.zeros(3, "float32")
            kernel(y)
            np.testing.assert_array_equal(y.get(), expected)
        np.testing.assert_array_equal(kernel.globals["filter"].get("float32", device=number), expected)


# ---- refusals: nothing is written ----


@pytest.mark.parametrize(
    ("name", "values", "error", "message"),
    [
        (
            "filter",
            np.zeros(4, "float32"),
            ValueError,
            "the array has 16 bytes, and the variable 12; accepted: an array",
        ),
        ("filter", np.zeros((3, 2), "float32")[:, 0], ValueError, "contiguous"),
        ("absent", NEW, KeyError, "there is no such variable; accepted: .*demo::filter .12 bytes."),
        ("filter", 2.0, TypeError, "the array is "),
    ],
)
def test_what_is_refused(cupy, name, values, error, message):
    kernel = make()
    on_device = cupy.zeros((3, 2), "float32")[:, 0] if message == "contiguous" else cupy.asarray(values)
    for given in (values, on_device) if isinstance(values, np.ndarray) else (values,):
        with pytest.raises(error, match=message):
            kernel.globals[name] = given
    assert kernel.globals["filter"].get("float32").tolist() == [1, 2, 3]


def test_jax_arrays_are_read_and_traced_ones_refused(jax):
    kernel = make()
    kernel.globals["filter"] = jax.numpy.asarray(NEW)
    assert kernel.globals["filter"].get("float32").tolist() == [4, 5, 6]

    @jax.jit
    def traced(x):
        kernel.globals["filter"] = x
        return x

    with pytest.raises(TypeError, match="trace"):
        traced(jax.numpy.zeros(3))
