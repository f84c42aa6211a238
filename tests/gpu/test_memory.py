"""Memory of interop's own on a GPU: what is in it, who sees it, and when.

On a driver that is played: tests/exchange/test_memory.py. These tests watch the card's time and memory, and want it
alone.
"""

from __future__ import annotations

import gc
import operator
import threading

import ml_dtypes
import numpy as np
import pytest
from helpers import device
from helpers.device import delay, eventually, is_busy, synchronize
from helpers.graphs import captured
from helpers.layouts import pointer_of
from helpers.libraries import on_gpu

import interop

MEMORIES = ["device", "managed", "pinned", "host"]
VISIBLE = ["managed", "pinned"]
DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "complex64",
          "complex128", "float8_e5m2"]  # fmt: skip
VALUES = np.arange(4 * 6 * 10, dtype="float32").reshape(4, 6, 10)
LAYOUTS = {
    "compact": np.s_[...],
    "rows": np.s_[:, :, :8],
    "planes": np.s_[:, 1:4],
    "strided": np.s_[:, ::2, ::3],
    "reversed": np.s_[::-1, :, ::-1],
    "one column": np.s_[..., 3],
    "empty": np.s_[:, :0],
}


def numpy_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def kind_of(name):
    return "f" if name == "bfloat16" else numpy_dtype(name).kind


def values_of(x):
    """By way of a copy to plain memory."""
    return np.asarray(interop.copy(x, memory="host"))


# ---- new arrays ----


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_filled_arrays(memory, dtype):
    wanted = numpy_dtype(dtype)
    for shape in ((), (5,), (3, 0), (17, 33)):
        for make, value in ((interop.zeros, 0), (interop.ones, 1)):
            x = make(shape, dtype, memory=memory)
            assert x.memory == memory
            got = values_of(x)
            assert got.dtype == wanted
            np.testing.assert_array_equal(got.astype("c16"), np.full(shape, value))
    x = interop.empty((5, 7), dtype, memory=memory)
    x[1:4, ::2] = 1
    x[0] = x[4] = x[1:4, 1::2] = False
    expected = np.zeros((5, 7))
    expected[1:4, ::2] = 1
    np.testing.assert_array_equal(values_of(x).astype("c16"), expected)


@pytest.mark.parametrize("memory", ["device", "managed"])
@pytest.mark.parametrize("dtype", [*DTYPES, None])
def test_arange_has_numpys_bits(memory, dtype):
    wanted = None if dtype is None else numpy_dtype(dtype)
    for arguments in (
        (0,), (1,), (2,), (3, 2), (7, 5, -2), (5,), (0.5, 100, 0.1), (-1e-3, 1e-3, 1e-6), (np.float32(0.1), 3, 0.3),
        (1000, -1000, -3), (1e9, 1e9 + 4096), (-50, 50, np.int8(3)), (1 << 24,), (0, 3, 1e-7),
    ):  # fmt: skip
        try:
            with np.errstate(over="ignore"):
                expected = np.arange(*arguments, dtype=wanted)
        except (TypeError, ValueError, OverflowError) as error:
            with pytest.raises(type(error), match=r"^interop\.arange: "):
                interop.arange(*arguments, dtype=dtype, memory=memory)
            continue
        with np.errstate(over="ignore"):
            x = interop.arange(*arguments, dtype=dtype, memory=memory)
        assert x.memory == memory
        got = values_of(x)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if got.dtype.kind in "fcV":  # one NaN is as good as another: the host's has a sign
            nan = np.isnan(expected)
            assert (np.isnan(got) == nan).all()
            got[nan] = expected[nan] = 0
        assert got.tobytes() == expected.tobytes(), arguments


def test_new_arrays_are_made_on_the_device(torch):
    """A copy from plain memory of the host would be refused in a capture."""
    with captured(torch) as graph:
        stream = torch.cuda.current_stream()
        made = [
            (interop.arange(0, 5, 0.5, "float32", stream=stream), np.arange(0, 5, 0.5, "float32")),
            (interop.zeros((3, 4), "int8", stream=stream), np.zeros((3, 4), "int8")),
            (interop.ones(3, "complex64", stream=stream), np.ones(3, "complex64")),
            (interop.full(3, np.float32(0.1), "float64", stream=stream), np.full(3, np.float32(0.1), "float64")),
            (interop.full_like(torch.zeros(3, device="cuda"), 7, stream=stream), np.full(3, 7, "float32")),
        ]
    graph.replay()
    synchronize()
    for x, expected in made:
        np.testing.assert_array_equal(values_of(x), expected)


@pytest.mark.parametrize("memory", MEMORIES)
def test_scalars_of_numpy_are_cast_as_numpy_casts_them(memory):
    x = interop.zeros(4, "float32", memory=memory)
    x[1:] = np.float64(0.1)
    x[2] = np.int8(-3)
    assert values_of(x).tolist() == [0, np.float32(0.1), -3, np.float32(0.1)]
    with pytest.raises(TypeError, match="value is complex128, and the array is float32"):
        x[0] = np.complex128(1)


@pytest.mark.parametrize("memory", MEMORIES)
def test_every_library_takes_it_where_it_is(memory):
    """And writes to it: the array has what they wrote."""
    for name in ("torch", "cupy", "numba", "jax"):
        if memory == "host" and name in ("cupy", "numba"):
            continue
        library = on_gpu(name)
        x = interop.full((4, 6), 3, "float32", memory=memory)
        y = interop.convert(x, name)
        address = library.pointer(y) if memory != "host" else None
        if name == "torch":
            assert y.is_cuda == (memory in ("device", "managed"))
            y += 1
        elif name == "cupy":
            y += 1
        synchronize()
        assert address is None or address == x.__cuda_array_interface__["data"][0]
        del y
        assert (values_of(x) == (4 if name in ("torch", "cupy") else 3)).all()


def test_managed_memory_is_the_gpus_to_who_does_not_ask(torch, cupy):
    x = interop.full(6, 2, "float32", memory="managed")
    assert x.__dlpack_device__() == (2, 0)
    assert (x.device, x.memory) == ("cuda:0", "managed")
    t = torch.from_dlpack(x)
    assert t.is_cuda
    assert t.tolist() == [2] * 6
    c = cupy.from_dlpack(x)
    address = np.asarray(x).ctypes.data
    assert t.data_ptr() == c.data.ptr == address
    assert np.from_dlpack(x, device="cpu").ctypes.data == address
    for asked in ((13, 0), (1, 0), (2, 0)):
        x.__dlpack__(max_version=(1, 0), dl_device=asked)


def test_cupy_makes_the_same_array_of_either_type_of_managed_memory(cupy):
    x = interop.full(6, 2, "float32", memory="managed")
    address = np.asarray(x).ctypes.data
    for c in (interop.convert(x, "cupy"), cupy.from_dlpack(interop._core.Export(x, (13, 0)))):
        assert (c.data.ptr, c.data.device_id) == (address, 0)
        assert c.__dlpack_device__() == (13, 0)
        c += 1
    synchronize()
    assert (np.asarray(x) == 4).all()


# ---- the host sees what the GPU wrote ----


@pytest.mark.parametrize("memory", VISIBLE)
def test_a_view_waits_when_it_is_taken_and_a_later_one_for_later_work(memory, torch):
    x = interop.zeros(1 << 20, "float32", memory=memory)
    ten = interop.full(1 << 20, 10, "float32")  # on the GPU: pinned arrays alone are the host's
    early = np.asarray(x)
    stream = torch.cuda.Stream()
    for round_ in range(1, 4):
        early[:] = round_  # the host writes,
        delay(stream.cuda_stream)
        interop.add(ten, x, out=x, stream=stream)  # the device reads and writes,
        assert is_busy(stream.cuda_stream)
        assert early[0] == round_  # a view from before shows what is there now
        if round_ == 1:
            assert (np.asarray(x) == round_ + 10).all()  # and the host reads
        elif round_ == 2:
            assert memoryview(x)[-1] == round_ + 10
        else:
            x.synchronize()
            assert (early == round_ + 10).all()


@pytest.mark.parametrize("memory", VISIBLE)
def test_several_streams_and_views(memory, torch):
    x = interop.zeros((4, 1 << 16), "float32", memory=memory)
    more = interop.copy(np.arange(1, 5, dtype="float32"), memory="device")
    streams = [torch.cuda.Stream() for _ in range(4)]
    for k, stream in enumerate(streams):
        delay(stream.cuda_stream, 50 * (4 - k))
        interop.add(more[k], x[k], out=x[k], stream=stream)
    np.testing.assert_array_equal(np.asarray(x)[:, 0], [1, 2, 3, 4])
    assert (np.asarray(x) == np.arange(1, 5)[:, None]).all()


def test_values_are_waited_for(torch):
    x = interop.zeros(1 << 20, "float32")
    torch.from_dlpack(x)  # starts torch's stream
    stream = torch.cuda.Stream()
    for read in (
        lambda: float(x[7]),
        lambda: x[:1].item(),
        lambda: x[:2].tolist()[1],
        lambda: int(x[5:6]),
        lambda: x[3],
    ):
        x[...] = 0
        delay(stream.cuda_stream)
        interop.add(x, 3, out=x, stream=stream)
        assert read() == 3


@pytest.mark.parametrize("memory", MEMORIES)
def test_printing(memory):
    x = interop.asarray(VALUES[0]).to(memory=memory)
    assert repr(x).startswith("interop.Array([[ 0.,  1.,  2.,")
    assert ("memory=" + memory in repr(x)) == (memory in VISIBLE)
    big = interop.arange(1 << 22, memory=memory)
    taken = []
    for _ in range(5):  # other processes take memory of the card, too
        before = device.free_bytes()
        assert "[      0,       1,       2, ..., 4194301, 4194302, 4194303]" in repr(big)
        taken.append(before - device.free_bytes())
    assert min(taken) < 8 << 20


def test_device_memory_has_no_host_view():
    x = interop.ones(3, "float32")
    with pytest.raises(TypeError, match=r"accepted: x\.to\(memory='host'\)"):
        np.asarray(x)
    with pytest.raises(BufferError, match="device memory has no buffer"):
        memoryview(x)


@pytest.mark.parametrize("memory", ["device", "managed"])
def test_astype_converts_as_numpy_does(memory):
    for source, values in (
        ("int32", [-300, -1, 0, 1, 255, 70000]),
        ("uint64", [0, 1, 2**40, 2**64 - 1]),
        ("bool", [True, False]),
        ("float32", [-1.5, 0, 1e30, np.nan]),
        ("bfloat16", [-1.5, 0, 3]),
        ("complex64", [1 + 2j, 0]),
    ):
        x = np.array(values, numpy_dtype(source))
        for target in DTYPES[:-1]:
            made = interop.copy(x, memory=memory)
            before, after = kind_of(source), kind_of(target)
            if after not in "bc" and (before == "c" or (before == "f" and after != "f")):
                with pytest.raises(TypeError, match="which no kernel converts; accepted: integers to integers"):
                    made.astype(target)
                continue
            with np.errstate(all="ignore"):
                expected = x.astype(numpy_dtype(target))
            got = made.astype(target)
            assert got.memory == memory
            got = values_of(got)
            assert got.dtype == expected.dtype
            same = (got == expected) | ((got != got) & (expected != expected))  # NumPy's own knows no NaN of bfloat16
            assert same.all(), (source, target)


# ---- operators ----


@pytest.mark.parametrize("memory", ["device", "managed"])
def test_operators_compute_on_the_gpu(memory):
    x, y = interop.asarray(VALUES[0]).to(memory=memory), interop.asarray(VALUES[1]).to(memory=memory)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "eq", "ne", "lt", "le", "gt", "ge"):
        compute = getattr(operator, name)
        got = compute(x, y)
        assert got.device == "cuda:0"
        np.testing.assert_array_equal(values_of(got), compute(VALUES[0], VALUES[1]))
    np.testing.assert_allclose(values_of(x @ y.T), VALUES[0] @ VALUES[1].T)
    same = x
    x += 2
    assert x is same
    np.testing.assert_array_equal(values_of(x), VALUES[0] + 2)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_operators_beside_arrays_of_libraries(name):
    library = on_gpu(name)
    x, y = interop.ones((2, 3), "float32"), library.make(np.full((2, 3), 2, "float32"))
    assert type(x + y) is interop.Array
    assert type(y + x) is type(y)
    np.testing.assert_array_equal(library.to_numpy(y * x), np.full((2, 3), 2))


# ---- allocation ----


@pytest.mark.parametrize("memory", ["device", *VISIBLE])
def test_memory_is_used_again_only_behind_its_work(memory, torch):
    """Torch's kernel still writes when the last array is gone; what is made next elsewhere has its own values."""
    side = torch.cuda.Stream()
    for _ in range(5):
        x = interop.zeros(1 << 20, "float32", memory=memory)
        t = interop.convert(x, "torch") if memory != "pinned" else None
        synchronize()
        delay(side.cuda_stream, 30)
        if t is None:
            interop.add(x, 9, out=interop.zeros(1 << 20, "float32"), stream=side)
        else:
            with torch.cuda.stream(side):
                t2 = torch.from_dlpack(x)
                t2 += 9
                del t2
        del x, t
        y = interop.full(1 << 20, 4, "float32", memory=memory)
        synchronize()
        assert (values_of(y) == 4).all()


def test_many_threads_and_streams(torch):
    pool = interop.memory_pool()
    wrong = []
    before = pool.reserved_bytes  # by tests of this process before

    def work(number):
        streams = [torch.cuda.Stream() for _ in range(4)]
        for i in range(500):
            x = interop.empty(1000 + i % 7, "float32", stream=streams[i % 4])
            interop.copyto(x, number, stream=streams[i % 4])
            if i % 100 == 0 and not (values_of(x) == number).all():
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert eventually(lambda: pool.used_bytes < 1 << 20)
    assert pool.reserved_bytes - before < 256 << 20


def test_out_of_memory_is_an_error_that_leaves_all_usable():
    x = interop.ones(4, "float32")
    with pytest.raises(interop.CudaError, match=r"^interop\.empty: allocating .* CUDA_ERROR_OUT_OF_MEMORY"):
        interop.empty(1 << 50, "uint8")
    with pytest.raises(interop.CudaError, match=r"bytes of managed memory: cuda:0 may have"):
        interop.empty(1 << 45, "uint8", memory="managed")
    assert (values_of(x + interop.ones(4, "float32")) == 2).all()


def test_the_pool_keeps_what_it_may():
    pool = interop.memory_pool()
    try:
        x = interop.empty(64 << 20, "uint8")
        assert pool.used_bytes >= 64 << 20
        del x
        synchronize()
        assert pool.reserved_bytes >= 64 << 20
        pool.trim()
        assert pool.reserved_bytes < 64 << 20
        pool.release_threshold = 0
        x = interop.empty(64 << 20, "uint8")
        del x
        synchronize()
        assert pool.reserved_bytes < 64 << 20
    finally:
        pool.release_threshold = 2**64 - 1


def test_new_memory_in_a_capture_is_the_graphs(torch):
    with captured(torch) as graph:
        x = interop.empty(1 << 16, "float32", stream=torch.cuda.current_stream())
        interop.copyto(x, 5, stream=torch.cuda.current_stream())
    pointer = x.__cuda_array_interface__["data"][0]
    del x
    graph.replay()
    synchronize()
    assert interop.empty(1 << 16, "float32").__cuda_array_interface__["data"][0] != pointer


def test_hints():
    x = interop.ones(1 << 20, "float32", memory="managed")
    x.advise("preferred_location")
    x.advise("read_mostly")
    x.advise("read_mostly", value=False)
    x.prefetch("host")
    x.prefetch()
    assert (values_of(x + 1) == 2).all()
    with pytest.raises(TypeError, match="device memory; accepted: managed"):
        interop.ones(3, "int8").prefetch()


def test_pinned_memory_of_interop_is_pinned_to_torch(torch):
    x = interop.zeros(10, "float32", memory="pinned")
    t = interop.convert(x, "torch")
    assert t.device.type == "cpu"
    assert t.is_pinned()
    assert t.data_ptr() == pointer_of(np.asarray(x))


@pytest.mark.parametrize("memory", ["device", *VISIBLE])
def test_resize_is_behind_the_work_on_the_memory(memory, torch):
    x = interop.zeros(1 << 18, "float32", memory=memory)
    side = torch.cuda.Stream()
    three = interop.full(1 << 18, 3, "float32")
    interop.multiply(three, x, out=x, stream=side)
    synchronize()
    delay(side.cuda_stream)
    interop.add(three, x, out=x, stream=side)
    x.resize(1 << 20)
    if memory == "device":
        assert is_busy(side.cuda_stream)
    got = values_of(x)
    assert (got[: 1 << 18] == 3).all()
    assert not got[1 << 18 :].any()


# ---- another allocator ----


@pytest.mark.parametrize("name", ["torch", "cupy", "rmm"])
def test_pools_of_libraries_give_the_memory(name):
    if name == "rmm":
        statistics = pytest.importorskip("rmm.statistics")
        statistics.enable_statistics()
    else:
        on_gpu(name)
    used = {
        "torch": lambda: on_gpu("torch").module.cuda.memory_allocated(),
        "cupy": lambda: on_gpu("cupy").module.get_default_memory_pool().used_bytes(),
        "rmm": lambda: statistics.get_statistics().current_bytes,
    }[name]
    own = interop.memory_pool().used_bytes
    before = used()
    interop.set_allocator(name)
    try:
        x = interop.ones((1000, 1000), "float32")
        assert x.memory == "device"
        assert (values_of(x + x) == 2).all()
        assert interop.memory_pool().used_bytes == own
        assert used() - before >= 4_000_000
        for k in range(20):
            y = interop.full(1 << 20, k, "float32")
            y += 1
            assert float(y[-1]) == k + 1
        del x, y
        gc.collect()
        synchronize()
        assert eventually(lambda: used() <= before)  # less where what tests before have left is gone by now
    finally:
        interop.set_allocator(None)


def test_memory_of_cupys_pool_waits_for_no_other_stream(cupy):
    pool = cupy.get_default_memory_pool()
    side = cupy.cuda.Stream(non_blocking=True)
    before = pool.used_bytes()
    interop.set_allocator("cupy")
    try:
        interop.full(3, 1, "float32")  # the pool keeps its memory
        synchronize()
        assert eventually(lambda: pool.used_bytes() == before)
        with side:
            delay(side.ptr)
            x = interop.full(3, 2, "float32")
            assert (values_of(x) == 2).all()
            assert is_busy(side.ptr)
    finally:
        interop.set_allocator(None)


def test_memory_of_an_allocator_is_aligned():
    interop.set_allocator(lambda count, device, stream: on_gpu("cupy").module.empty(count + 4, "uint8")[4:])
    try:
        with pytest.raises(ValueError, match="asked for 4 bytes"):
            interop.empty(1, "float32")
    finally:
        interop.set_allocator(None)
