"""Where arrays lie decides where the work runs: several GPUs, managed and pinned memory, host memory, contexts."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from helpers import device, machine
from helpers.device import synchronize
from helpers.dlpack import MANAGED, PINNED, Cai, Fake
from helpers.libraries import on_gpu

import interop

N = 64
ONES = np.ones((N, N), "float32")


# ---- host and device arrays in one call ----


def test_host_and_device_arrays_do_not_mix(device_library):
    a = device_library.make(ONES)
    for host in (ONES, memoryview(ONES)):
        with pytest.raises(
            TypeError, match=r"^interop.matmul: a is on cuda:0 and b is in host memory; accepted: all on one"
        ):
            interop.matmul(a, host)
        with pytest.raises(TypeError, match=r"^interop.matmul: b is on cuda:0 and a is in host memory"):
            interop.matmul(host, a)
    if device_library.writable:
        out = np.full((N, N), 7, "float32")
        with pytest.raises(TypeError, match=r"a is on cuda:0 and out is in host memory"):
            interop.matmul(a, a, out=out)
        assert (out == 7).all()
        with pytest.raises(TypeError, match=r"out is on cuda:0 and a is in host memory"):
            interop.matmul(ONES, ONES, out=a)
        assert (device_library.to_numpy(a) == 1).all()


def test_torch_tensors_of_two_devices_do_not_mix(torch):
    a = torch.ones(N, N)
    with pytest.raises(TypeError, match="b is on cuda:0 and a is in host memory"):
        interop.matmul(a, a.cuda())


# ---- managed and pinned memory ----


@pytest.fixture
def managed(cupy):
    """A CuPy array in managed memory."""
    memory = cupy.cuda.malloc_managed(ONES.nbytes)
    array = cupy.ndarray((N, N), "float32", memory)
    array.fill(2)
    synchronize()
    return array


def test_managed_memory_is_device_memory(managed, torch, cupy):
    for other in (torch.ones(N, N, device="cuda"), cupy.ones((N, N), "float32"), managed):
        c = interop.matmul(other, managed)
        assert type(c) is type(other)
        assert (c == (4 * N if other is managed else 2 * N)).all()
    fake = Fake(managed, device_type=MANAGED)
    c = interop.matmul(fake, fake)
    assert type(c) is interop.Array
    assert c.__dlpack_device__() == (2, 0)  # handed out as plain device memory, which every consumer takes
    assert (torch.from_dlpack(c) == 4 * N).all()
    out = cupy.ndarray((N, N), "float32", cupy.cuda.malloc_managed(ONES.nbytes))
    interop.matmul(fake, managed, out=Fake(out, device_type=MANAGED))
    synchronize()
    assert (out == 4 * N).all()


def test_pinned_memory_joins_device_arrays(torch):
    a = torch.ones(N, N, device="cuda")
    pinned = torch.full((N, N), 2.0).pin_memory()
    c = interop.matmul(a, pinned)
    assert c.is_cuda
    assert (c == 2 * N).all()
    assert (interop.matmul(a, pinned.t()) == 2 * N).all()
    fake = Fake(pinned, device_type=PINNED)
    assert (interop.matmul(a, fake) == 2 * N).all()


def test_pinned_out_is_ready_after_the_stream(torch):
    a = torch.ones(N, N, device="cuda")
    out = torch.zeros(N, N).pin_memory()
    assert interop.matmul(a, a, out=out) is out
    torch.cuda.current_stream().synchronize()
    assert (out == N).all()


def test_pinned_arrays_alone_are_host_arrays(torch, cupy):
    pinned = torch.full((N, N), 2.0).pin_memory()
    c = interop.matmul(pinned, pinned)
    assert not c.is_cuda
    assert (c == 4 * N).all()
    memory = cupy.cuda.alloc_pinned_memory(ONES.nbytes)
    array = np.frombuffer(memory, "float32", ONES.size).reshape(N, N)
    array[...] = 2
    c = interop.matmul(array, array)
    assert type(c) is np.ndarray
    assert (c == 4 * N).all()


def test_numpy_views_of_pinned_memory_join_device_arrays(cupy):
    memory = cupy.cuda.alloc_pinned_memory(ONES.nbytes)
    array = np.frombuffer(memory, "float32", ONES.size).reshape(N, N)
    array[...] = 2
    c = interop.matmul(cupy.ones((N, N), "float32"), array)
    assert (c == 2 * N).all()


# ---- the caller's context and device are left as they were ----


def test_the_current_context_is_left_alone(device_library):
    a = device_library.make(ONES)
    before = machine.current_context()
    interop.matmul(a, a)
    assert machine.current_context() == before
    with pytest.raises(ValueError, match="inner dimensions"):
        interop.matmul(a, device_library.make(np.ones((3, 3), "float32")))
    with pytest.raises(ValueError, match="backend"):
        interop.matmul(a, a, backend="none")
    assert machine.current_context() == before


@pytest.mark.parametrize("kind", ["array interface", "dlpack", "execution"])
def test_a_thread_without_a_context_stays_so(cupy, kind):
    x = cupy.ones((N, N), "float32")
    synchronize()
    a = {"array interface": Cai(x), "dlpack": Fake(x), "execution": ONES}[kind]
    seen = []

    def work():
        before = machine.current_context()
        c = interop.matmul(a, a, execution="cuda")
        seen.extend([before, machine.current_context(), c])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    before, after, c = seen
    assert (before, after) == (0, 0)
    assert (cupy.asarray(c) == N).all()


def test_another_context_of_the_device_is_kept(cupy):
    """A context that is not the primary one: the work runs in it, where its memory and its streams are."""
    driver = machine.driver()
    context = ctypes.c_void_p()
    create = getattr(driver, "cuCtxCreate_v2", None)
    assert create(ctypes.byref(context), ctypes.c_uint(0), ctypes.c_int(0)) == 0
    try:
        pointer = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(ONES.nbytes)) == 0
        assert driver.cuMemsetD32_v2(pointer, ctypes.c_uint(0x3F800000), ctypes.c_size_t(ONES.size)) == 0
        interface = {"shape": (N, N), "typestr": "<f4", "data": (pointer.value, False), "version": 3}
        out = ctypes.c_uint64()
        assert driver.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(ONES.nbytes)) == 0
        a = Cai(None, **interface)
        interop.matmul(a, a, out=Cai(None, **{**interface, "data": (out.value, False)}), backend="tiled")
        assert machine.current_context() == context.value
        values = np.empty((N, N), "float32")
        target = ctypes.c_void_p(values.ctypes.data)
        assert driver.cuMemcpyDtoH_v2(target, out, ctypes.c_size_t(values.nbytes)) == 0
        assert (values == N).all()
        assert device.eventually(lambda: interop._core.held_count() == 0)
    finally:
        driver.cuCtxDestroy_v2(context)


def test_empty_arrays_name_no_device(torch, cupy):
    """Their pointers are null: they join whatever device the others are on."""
    empty = Cai(cupy.empty((0, 4), "float32"))
    assert empty.__cuda_array_interface__["data"][0] == 0
    c = interop.matmul(empty, cupy.ones((4, 3), "float32"))
    assert c.shape == (0, 3)
    c = interop.matmul(torch.ones(3, 0, device="cuda"), Cai(cupy.empty((0, 4), "float32")))
    assert (c == 0).all()
    assert c.shape == (3, 4)


# ---- two GPUs ----


def torch_on(index):
    torch = on_gpu("torch").module
    return torch.ones(N, N, device=f"cuda:{index}")


def cupy_on(index):
    cupy = on_gpu("cupy").module
    with cupy.cuda.Device(index):
        return cupy.ones((N, N), "float32")


def jax_on(index):
    jax = on_gpu("jax").module
    return jax.device_put(ONES, jax.devices("cuda")[index])


def numba_on(index):
    cuda = on_gpu("numba").module
    with cuda.gpus[index]:
        return on_gpu("numba").make(ONES)


ON = {"torch": torch_on, "cupy": cupy_on, "jax": jax_on, "numba": numba_on}


def index_of(x):
    pointer = {"torch": lambda: x.data_ptr(), "cupy": lambda: x.data.ptr, "jax": lambda: x.unsafe_buffer_pointer()}
    name = type(x).__module__.split(".")[0]
    address = pointer.get(name.replace("jaxlib", "jax"), lambda: x.__cuda_array_interface__["data"][0])()
    ordinal = ctypes.c_int()
    assert machine.driver().cuPointerGetAttribute(ctypes.byref(ordinal), ctypes.c_int(9), ctypes.c_uint64(address)) == 0
    return ordinal.value


@pytest.mark.multi_gpu
@pytest.mark.parametrize("backend", [None, "tiled", "cublas"])
@pytest.mark.parametrize("name", ON)
def test_the_work_runs_where_the_arrays_are(two_cuda_devices, name, backend):
    torch = on_gpu("torch").module
    a = ON[name](1)
    torch.cuda.set_device(0)
    if name == "jax":
        (a + a).block_until_ready()  # XLA may leave the context of its device current: no more than that is changed
    before = machine.current_context()
    current = torch.cuda.current_device()
    c = interop.matmul(a, a, backend=backend)
    assert machine.current_context() == before
    assert torch.cuda.current_device() == current
    assert index_of(c) == 1
    synchronize(1)
    if name == "numba":
        with on_gpu("numba").module.gpus[1]:
            values = on_gpu(name).to_numpy(c)
    else:
        values = on_gpu(name).to_numpy(c)
    assert (values == N).all()


@pytest.mark.multi_gpu
@pytest.mark.parametrize("second", ON)
@pytest.mark.parametrize("first", ON)
def test_arrays_of_two_gpus_do_not_mix(two_cuda_devices, first, second):
    a, b = ON[first](0), ON[second](1)
    with pytest.raises(ValueError, match="a is on cuda:0 and b is on cuda:1"):
        interop.matmul(a, b)


@pytest.mark.multi_gpu
def test_out_on_another_gpu_is_refused(two_cuda_devices):
    out = torch_on(1)
    with pytest.raises(ValueError, match="a is on cuda:0 and out is on cuda:1"):
        interop.matmul(torch_on(0), torch_on(0), out=out)
    assert (out == 1).all()


@pytest.mark.multi_gpu
def test_two_gpus_at_once(two_cuda_devices):
    results = {}

    def work(index):
        a = torch_on(index)
        for _ in range(100):
            results[index] = interop.matmul(a, a)

    threads = [threading.Thread(target=work, args=(index,)) for index in two_cuda_devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, c in results.items():
        assert c.device.index == index
        assert (c == N).all()


@pytest.mark.multi_gpu
def test_execution_on_the_second_gpu(two_cuda_devices):
    c = interop.matmul(ONES, ONES, execution="cuda:1")
    assert type(c) is np.ndarray
    assert (c == N).all()


# ---- an error on the device ----

FAULT = """
    import cupy, interop
    fault = cupy.RawKernel("extern \\"C\\" __global__ void fault(int* p) { *p = 1; }", "fault")
    a = cupy.ones((64, 64), "float32")
    interop.matmul(a, a)
    fault((1,), (1,), (cupy.uint64(8),))
    try:
        cupy.cuda.Device().synchronize()
    except Exception as error:
        assert "illegal" in str(error).lower(), error
    try:
        interop.matmul(a, a)
    except interop.CudaError as error:
        assert "earlier" in str(error), error
    except Exception as error:  # CuPy's own allocator may meet it first
        assert "illegal" in str(error).lower(), error
    else:
        raise AssertionError("no error")
    import numpy
    x = numpy.eye(2)
    assert (interop.matmul(x, x) == x).all()  # host arrays go on
    print("done")
"""


def test_an_earlier_fault_is_named_as_such(tmp_path, cupy):
    code = textwrap.dedent(FAULT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert "done" in done.stdout, done.stderr
