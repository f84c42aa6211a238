"""`interop.asarray`, `interop.convert` and the exports of `interop.Array` on a GPU: all in order, held while in use.

These tests watch the card's time, and want it alone. Which memory a conversion gives, of any layout:
test_convert_pairs.py. Conversions in a graph: test_capture.py.
"""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from helpers import device, dlpack
from helpers.conversions import convert, own_pointer, pointer_of, values
from helpers.device import Side, Snapshot, delay, eventually, fill, is_busy, slow_in_jax, synchronize
from helpers.dlpack import CPU, CUDA, Cai, Fake, read_capsule
from helpers.libraries import on_gpu
from helpers.races import COUNT, ONES, WITH_STREAMS, N

import interop

IS_COPIED = 2

PAIRS = pytest.mark.parametrize(
    ("source", "target"), [(x, y) for x in WITH_STREAMS for y in ("torch", "cupy", "numba") if x != y]
)


def current_handle(name, side):
    """The stream on which `name` takes a converted array: its side stream, or Numba's default stream."""
    return device.LEGACY if name == "numba" else side.handle


# ---- the target waits for the producer ----


@PAIRS
def test_the_target_waits_for_the_producers_stream(source, target):
    one, two = Side(on_gpu(source)), Side(on_gpu(target))
    x = one.make(ONES)
    snapshot = Snapshot((N, N))
    with one.current(), two.current():
        convert(x, target)
        synchronize()
        delay(one.handle)
        fill(one.library.pointer(x), 2, COUNT, one.handle)
        y = convert(x, target)
        snapshot.take(two.library.pointer(y), current_handle(target, two))
        assert is_busy(one.handle)  # and the host has not waited
    assert (snapshot.values() == 2).all()


@pytest.mark.parametrize("source", WITH_STREAMS)
def test_jax_waits_for_the_producers_stream(source):
    side, jax = Side(on_gpu(source)), on_gpu("jax")
    x = side.make(ONES)
    with side.current():
        jax.to_numpy(convert(x, "jax") + 1)
        delay(side.handle)
        fill(side.library.pointer(x), 2, COUNT, side.handle)
        y = convert(x, "jax") + 1
        assert is_busy(side.handle)
    assert (jax.to_numpy(y) == 3).all()


@pytest.mark.parametrize("target", ["torch", "cupy", "numba"])
def test_the_target_waits_for_a_pending_jax_array(jax, target):
    side = Side(on_gpu(target))
    slow = slow_in_jax(jax)
    x = on_gpu("jax").make(ONES)
    slow(x, 3.0).block_until_ready()
    snapshot = Snapshot((N, N))
    with side.current():
        y = convert(slow(x, 2.0), target)
        snapshot.take(side.library.pointer(y), current_handle(target, side))
    assert (snapshot.values() == 2).all()


@pytest.mark.parametrize("target", ["torch", "cupy"])
def test_arrays_with_an_interface_name_their_stream(cupy, target):
    stream = cupy.cuda.Stream(non_blocking=True)
    side = Side(on_gpu(target))
    x = cupy.ones((N, N), "float32")
    snapshot = Snapshot((N, N))
    synchronize()
    with side.current():
        delay(stream.ptr)
        fill(x.data.ptr, 2, COUNT, stream.ptr)
        y = convert(Cai(x, stream=stream.ptr), target)
        snapshot.take(side.library.pointer(y), side.handle)
    assert (snapshot.values() == 2).all()


def test_unknown_producers_are_told_a_stream(cupy, torch):
    fake = Fake(cupy.ones((N, N), "float32"))
    synchronize()
    view = interop.asarray(fake)
    (asked,) = fake.asked
    assert asked["stream"] == view.stream > 2  # interop's own
    fake.asked.clear()
    stream = torch.cuda.Stream()
    interop.convert(fake, "cupy", stream=stream)
    assert fake.asked[0]["stream"] == stream.cuda_stream


def test_what_comes_after_the_view_is_waited_for_too(torch, cupy):
    """The producer's current stream is asked for at every use."""
    side = Side(on_gpu("torch"))
    x = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        view = interop.asarray(x)
        cupy.from_dlpack(view)
        synchronize()
        delay(side.handle)
        fill(x.data_ptr(), 2, COUNT, side.handle)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            y = cupy.from_dlpack(view)
        snapshot.take(y.data.ptr, stream.ptr)
    assert (snapshot.values() == 2).all()


def test_the_stream_of_the_moment_is_remembered(torch, cupy):
    side = Side(on_gpu("torch"))
    x = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        delay(side.handle)
        fill(x.data_ptr(), 2, COUNT, side.handle)
        view = interop.asarray(x)
    assert view.stream == side.handle
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:  # torch is back on its default stream
        y = cupy.from_dlpack(view)
    snapshot.take(y.data.ptr, stream.ptr)
    assert is_busy(side.handle)
    assert (snapshot.values() == 2).all()


# ---- stream= ----


@pytest.mark.parametrize("target", ["torch", "cupy", "numba", "interop"])
def test_a_given_stream_is_where_the_result_is_ready(torch, cupy, target):
    side = Side(on_gpu("torch" if target != "torch" else "cupy"))
    x = side.make(ONES)
    given = cupy.cuda.Stream(non_blocking=True)
    snapshot = Snapshot((N, N))
    with side.current():
        convert(x, target, stream=given)
        synchronize()
        delay(side.handle)
        fill(side.library.pointer(x), 2, COUNT, side.handle)
        y = convert(x, target, stream=given)
        snapshot.take(own_pointer(y), given.ptr)
        assert is_busy(side.handle)
        assert not is_busy(device.LEGACY)  # the target's own stream does not wait
    assert (snapshot.values() == 2).all()


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_a_given_stream_waits_for_an_array_of_the_same_library(cupy, name):
    side = Side(on_gpu(name))
    x = side.make(ONES)
    given = cupy.cuda.Stream(non_blocking=True)
    snapshot = Snapshot((N, N))
    with side.current():
        delay(side.handle)
        fill(side.library.pointer(x), 2, COUNT, side.handle)
        assert convert(x, name, stream=given) is x
        snapshot.take(side.library.pointer(x), given.ptr)
    assert (snapshot.values() == 2).all()


def test_a_numba_array_is_bound_to_the_stream_it_is_ready_on(torch, numba, cupy):
    x = torch.ones(3, device="cuda")
    given = cupy.cuda.Stream(non_blocking=True)
    assert convert(x, "numba").__cuda_array_interface__["stream"] == 1
    assert convert(x, "numba", stream=given).__cuda_array_interface__["stream"] == given.ptr


# ---- views in calls ----


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_a_call_led_by_a_view_goes_on_its_librarys_stream(name):
    side = Side(on_gpu(name))
    x = side.make(ONES)
    with side.current():
        view = interop.asarray(x)
        interop.matmul(view, view)
        synchronize()
        delay(side.handle)
        fill(side.library.pointer(x), 2, COUNT, side.handle)
        c = interop.matmul(view, view)
        assert type(c) is interop.Array
        assert c.stream == side.handle
    assert (values(c) == 4 * N).all()


@pytest.mark.parametrize("name", WITH_STREAMS)
def test_a_view_as_out_is_joined_both_ways(cupy, name):
    lead, side = Side(on_gpu("torch" if name != "torch" else "cupy")), Side(on_gpu(name))
    a, out = lead.make(ONES), side.make(ONES)
    pointer = side.library.pointer(out)
    snapshot = Snapshot((N, N))
    with lead.current(), side.current():
        view = interop.asarray(out)
        interop.matmul(a, a, out=view)
        synchronize()
        delay(side.handle)
        fill(pointer, 7, COUNT, side.handle)  # before the product: must not overwrite it
        delay(lead.handle)
        assert interop.matmul(a, a, out=view) is view
        snapshot.take(pointer, side.handle)  # after it, on the library's own stream
        fill(pointer, 9, COUNT, side.handle)
    assert (snapshot.values() == N).all()


# ---- pinned and managed memory ----


def test_managed_memory_is_everybodys(cupy, torch, jax):
    pool = cupy.cuda.MemoryPool(cupy.cuda.malloc_managed)
    with cupy.cuda.using_allocator(pool.malloc):
        x = cupy.ones((N, N), "float32")
    side = Side(on_gpu("cupy"))
    synchronize()
    with side.current():
        delay(side.handle)
        fill(x.data.ptr, 2, COUNT, side.handle)
        on_host = interop.convert(x, "numpy")  # ready on return
        assert not is_busy(side.handle)
    assert (on_host == 2).all()
    assert on_host.__array_interface__["data"][0] == x.data.ptr
    for target in ("torch", "jax", "numba", "interop"):
        assert pointer_of(convert(x, target)) == x.data.ptr
    shown = Fake(x, device_type=dlpack.MANAGED)
    assert pointer_of(interop.convert(shown, "torch")) == x.data.ptr
    assert np.from_dlpack(interop.asarray(shown), device="cpu").sum() == 2 * COUNT
    assert (interop.asarray(shown).device, interop.asarray(shown).memory) == ("cuda:0", "managed")
    capsule = interop.asarray(shown).__dlpack__(dl_device=(CPU, 0))
    assert read_capsule(capsule).tensor.data == x.data.ptr


def test_pinned_memory_is_the_hosts_and_the_gpus(torch, cupy, numba):
    x = torch.ones(N, N).pin_memory()
    assert interop.convert(x, "numpy").ctypes.data == x.data_ptr()
    for target in ("cupy", "numba"):
        y = convert(x, target)
        assert own_pointer(y) == x.data_ptr()
    assert float(interop.convert(x, "cupy").sum()) == COUNT
    shown = Fake(x, device_type=dlpack.PINNED)
    assert interop.convert(shown, "torch").data_ptr() == x.data_ptr()
    assert interop.convert(shown, "cupy").data.ptr == x.data_ptr()


# ---- __dlpack__ on a GPU ----


def test_a_copy_is_made_on_the_stream_that_is_named(cupy, torch):
    side = Side(on_gpu("torch"))
    x = side.make(ONES)
    given = cupy.cuda.Stream(non_blocking=True)
    snapshot = Snapshot((N, N))
    with side.current():
        view = interop.asarray(x)
        del_capsule = view.__dlpack__(copy=True, stream=given.ptr)  # warm
        del del_capsule
        synchronize()
        delay(side.handle)
        fill(x.data_ptr(), 2, COUNT, side.handle)
        capsule = view.__dlpack__(copy=True, stream=given.ptr, max_version=(1, 0))
        managed = read_capsule(capsule)
        assert managed.flags == IS_COPIED
        assert managed.tensor.data != x.data_ptr()
        assert (managed.tensor.device.type, managed.tensor.device.id) == (CUDA, 0)
        snapshot.take(managed.tensor.data, given.ptr)
        assert is_busy(side.handle)
    synchronize()
    fill(x.data_ptr(), 9, COUNT, side.handle)
    assert (snapshot.values() == 2).all()


@pytest.mark.parametrize("copy", [None, True])
def test_a_host_copy_is_ready_on_return(cupy, copy):
    side = Side(on_gpu("cupy"))
    x = side.make(ONES)
    with side.current():
        view = interop.asarray(x)
        delay(side.handle)
        fill(x.data.ptr, 2, COUNT, side.handle)
        capsule = view.__dlpack__(dl_device=(CPU, 0), copy=copy, max_version=(1, 0))
    assert read_capsule(capsule).flags == IS_COPIED
    assert (np.asarray(interop.asarray(capsule)) == 2).all()


def test_host_copies_keep_the_layout(cupy):
    x = cupy.arange(24, dtype="float32").reshape(4, 6)
    for view in (x, x.T, x[::-1, ::2], cupy.broadcast_to(x[0], (3, 6)), x[:0], x[1, 2]):
        assert np.array_equal(np.from_dlpack(interop.asarray(view), device="cpu"), view.get())


def test_what_an_export_refuses(cupy):
    view = interop.asarray(cupy.ones(3))
    for keywords in (
        {"dl_device": (CPU, 0), "copy": False},
        {"dl_device": (CUDA, 7)},
        {"dl_device": (dlpack.PINNED, 0)},
    ):
        with pytest.raises(BufferError, match="interop.Array.__dlpack__: "):
            view.__dlpack__(**keywords)
    with pytest.raises(ValueError, match="stream is -2; accepted: None, -1, 1, 2 or"):
        view.__dlpack__(stream=-2)
    with pytest.raises(TypeError, match="stream is str"):
        view.__dlpack__(stream="1")
    with pytest.raises(ValueError, match="accepted for host memory: None"):
        view.__dlpack__(dl_device=(CPU, 0), stream=1)


@pytest.mark.parametrize("stream", [None, 0, 1])
def test_the_default_stream_waits_where_it_is_meant(cupy, stream):
    side = Side(on_gpu("cupy"))
    x = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        view = interop.asarray(x)
        delay(side.handle)
        fill(x.data.ptr, 2, COUNT, side.handle)
        capsule = view.__dlpack__(stream=stream)
        snapshot.take(x.data.ptr, device.LEGACY)
        assert is_busy(side.handle)
    assert (snapshot.values() == 2).all()
    del capsule


def test_minus_one_queues_nothing(cupy):
    side = Side(on_gpu("cupy"))
    x = side.make(ONES)
    with side.current():
        view = interop.asarray(x)
        delay(side.handle)
        capsule = view.__dlpack__(stream=-1)
        assert not is_busy(device.LEGACY)
    del capsule


def test_the_interface_names_a_stream_that_has_waited(cupy):
    side = Side(on_gpu("cupy"))
    x = side.make(ONES)
    snapshot = Snapshot((N, N))
    with side.current():
        view = interop.asarray(x)
        delay(side.handle)
        fill(x.data.ptr, 2, COUNT, side.handle)
        interface = view.__cuda_array_interface__
        assert interface["version"] == 3
        assert interface["stream"] not in (0, None)
        snapshot.take(interface["data"][0], interface["stream"])
    assert (snapshot.values() == 2).all()


# ---- the C exchange API ----


def test_consumers_of_the_table_work_on_a_stream_that_has_waited(cupy):
    api = dlpack.exchange_api_of(interop.Array)
    side = Side(on_gpu("cupy"))
    x = side.make(ONES)
    before, after = Snapshot((N, N)), Snapshot((N, N))
    stream, tensor = ctypes.c_void_p(), dlpack.Tensor()
    given = cupy.cuda.Stream(non_blocking=True)
    with side.current():
        view = interop.asarray(x)
        assert api.current_work_stream(CUDA, 0, ctypes.byref(stream)) == 0
        delay(side.handle)
        fill(x.data.ptr, 2, COUNT, side.handle)
        assert api.view_from_py(view, ctypes.byref(tensor)) == 0
        before.take(tensor.data, stream.value)  # the consumer reads,
        delay(stream.value)
        fill(tensor.data, 3, COUNT, stream.value)  # and writes: whoever uses the array next waits for that
        with given:
            y = cupy.from_dlpack(view)
        after.take(y.data.ptr, given.ptr)
    assert (before.values() == 2).all()
    assert (after.values() == 3).all()


def test_the_tables_allocator_gives_device_memory():
    api = dlpack.exchange_api_of(interop.Array)
    shape = (ctypes.c_int64 * 2)(3, 5)
    prototype = dlpack.Tensor(None, dlpack.Device(CUDA, 0), 2, dlpack.DataType(2, 32, 1), shape, None, 0)
    managed, made = ctypes.c_void_p(), ctypes.c_void_p()
    assert api.allocator(ctypes.byref(prototype), ctypes.byref(managed), None, None) == 0
    assert api.managed_to_py(managed, ctypes.byref(made)) == 0
    array = ctypes.cast(made, ctypes.py_object).value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))
    assert (array.shape, array.device, array.dtype) == ((3, 5), "cuda:0", "float32")


# ---- lifetime ----


@pytest.mark.parametrize("target", ["torch", "cupy", "numba", "interop"])
def test_memory_is_held_until_the_gpu_has_finished(cupy, target):
    fake = Fake(cupy.ones((N, N), "float32"))
    y = convert(fake, target)
    synchronize()
    delay(device.LEGACY, device.COLLECTION_MS)
    del y
    gc.collect()
    assert is_busy(device.LEGACY)
    assert not fake.balanced
    synchronize()
    assert eventually(lambda: fake.balanced)


def test_memory_is_held_for_the_side_streams_of_its_readers(cupy, torch):
    fake = Fake(cupy.ones((N, N), "float32"))
    stream = torch.cuda.Stream()
    synchronize()
    with torch.cuda.stream(stream):
        y = interop.convert(fake, "torch")
        delay(stream.cuda_stream, device.COLLECTION_MS)
    del y
    gc.collect()
    assert is_busy(stream.cuda_stream)
    assert not fake.balanced
    synchronize()
    assert eventually(lambda: fake.balanced)


def test_a_view_keeps_the_memory_from_its_librarys_allocator(torch):
    x = torch.full((N, N), 3.0, device="cuda")
    y = interop.convert(x, "cupy")
    del x
    junk = [torch.full((N, N), -1.0, device="cuda") for _ in range(50)]
    assert (values(y) == 3).all()
    del junk
