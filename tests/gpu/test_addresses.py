"""Addresses that are no multiple of the element's size, by every protocol: a GPU that reads one ends the context."""

from __future__ import annotations

import types

import numpy as np
import pytest
from helpers import machine
from helpers.boxes import new_box, unpack
from helpers.dlpack import CUDA, Cai, Fake
from helpers.exchange_api import Exchange

import interop

N = 8
REFUSED = "starts at an address that is not a multiple of {} bytes"
TWICE = """
__global__ void twice(const float* a, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = 2 * a[i];
}
"""
EXCHANGE = Exchange()


Box = new_box(name="boxes of test_addresses", export=unpack)


def beyond(cupy, dtype, offset=1):
    """N elements of a dtype, so many bytes beyond an aligned address. Made by CuPy, which lets one."""
    size = N * np.dtype(dtype).itemsize
    x = cupy.zeros(size + 32, "u1")[offset : offset + size].view(dtype)
    assert x.data.ptr % np.dtype(dtype).itemsize
    return x


WAYS = {
    "cupy": lambda x: x,
    "interface": Cai,
    "dlpack": Fake,
    "byte_offset": lambda x: Fake(x, data=x.data.ptr - 8, byte_offset=8),
    "capsule": lambda x: Fake(x).capsule(),
    "exchange api": EXCHANGE.array,
    "registered": Box,
    "registered capsule": lambda x: Box(Fake(x)),
}


@pytest.fixture
def works(cupy):
    """The context is alive after each test."""
    yield
    assert interop.add(cupy.ones(3), 1).tolist() == [2, 2, 2]
    EXCHANGE.fakes.clear()


@pytest.mark.parametrize("way", WAYS)
def test_misaligned_operands_are_refused_by_every_function(way, cupy, works):
    make, x = WAYS[way], beyond(cupy, "f4")
    words = REFUSED.format(4)
    good = cupy.ones(N, "f4")
    calls = {
        "interop.add: a": lambda: interop.add(make(x), good),
        "interop.add: b": lambda: interop.add(good, make(x)),
        "interop.add: out": lambda: interop.add(good, 1, out=make(x)),
        "interop.less: a": lambda: interop.less(make(x), 1),
        "interop.matmul: a": lambda: interop.matmul(make(x), good),
        "interop.matmul: b": lambda: interop.matmul(good, make(x)),
        r"interop.elementwise\('p \* q'\): q": lambda: interop.elementwise("p * q")(good, make(x)),
        "interop.asarray: x": lambda: interop.asarray(make(x)),
        "interop.convert: x": lambda: interop.convert(make(x), "torch"),
    }
    for label, call in calls.items():
        with pytest.raises(ValueError, match=f"^{label} {words}"):
            call()
    with pytest.raises(ValueError, match=f"^interop.add: a {words}"):
        interop.explain(interop.add, make(x), good)
    assert not x.view("u1").any()


def test_b143_misaligned_arguments_of_kernels(cupy, works):
    machine.need("nvrtc")
    machine.need("cuda_core")
    twice = interop.kernel(TWICE, "twice", threads="a").returning(c="a")
    x, good = beyond(cupy, "f4"), cupy.ones(N, "f4")
    for make in WAYS.values():
        with pytest.raises(ValueError, match="a " + REFUSED.format(4)):
            twice(make(x), N)
        with pytest.raises(ValueError, match="c " + REFUSED.format(4)):
            twice(good, N, c=make(x))
    assert (twice(good, N) == 2).all()


@pytest.mark.parametrize(
    ("dtype", "offsets", "taken"),
    [
        ("u1", (), (1, 3)),
        ("f2", (1,), (2, 6)),
        ("f8", (1, 2, 4), (8,)),
        ("i8", (4,), (8,)),
        ("c8", (1, 4), (8,)),  # both parts of a complex number are read at once
        ("c16", (1, 4, 8), (16,)),
    ],
)
def test_an_element_is_aligned_to_its_size(dtype, offsets, taken, cupy, works):
    item = np.dtype(dtype).itemsize
    for offset in offsets:
        with pytest.raises(ValueError, match=rf"{REFUSED.format(item)} \(it lies {offset % item} beyond one\)"):
            interop.add(beyond(cupy, dtype, offset), 1)
    for offset in taken:
        x = cupy.zeros(N * item + 32, "u1")[offset : offset + N * item].view(dtype)
        assert (interop.add(x, 1) == 1).all()
        assert (interop.elementwise("p + 1")(x) == 1).all()
        if dtype != "u1":
            assert interop.matmul(x, x) == 0


def test_what_has_no_element_may_lie_anywhere(cupy, works):
    x = cupy.zeros(0, "f4")
    for pointer in (1, 3, 4095):
        shown = types.SimpleNamespace(
            __cuda_array_interface__={**x.__cuda_array_interface__, "data": (pointer, False), "shape": (0, 3)}
        )
        assert interop.matmul(shown, cupy.ones((3, 2), "f4")).shape == (0, 2)
        assert interop.add(Fake(x, data=pointer), 1).shape == (0,)


def test_misaligned_pinned_memory_beside_device_arrays(cupy, works):
    memory = cupy.cuda.alloc_pinned_memory(64)
    pinned = np.frombuffer(memory, "u1", 64)[1:33].view("f4")
    pinned[:] = 1
    with pytest.raises(ValueError, match="^interop.add: b " + REFUSED.format(4)):
        interop.add(cupy.ones(8, "f4"), pinned)
    assert (interop.add(pinned, 1) == 2).all()  # a host call, which NumPy computes


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "i2"])
def test_misaligned_host_arrays_are_copied_to_the_gpu(dtype, works):
    item = np.dtype(dtype).itemsize
    x = np.zeros(6 * item + 1, "u1")[1:].view(dtype).reshape(2, 3)
    x[:] = [[1, 2, 3], [4, 5, 6]]
    out = np.zeros(6 * item + 1, "u1")[1:].view(dtype).reshape(2, 3)
    assert not x.flags.aligned
    assert np.array_equal(interop.add(x, x, execution="cuda"), x + x)
    assert np.array_equal(interop.add(x.T, 1, execution="cuda"), x.T + 1)
    assert np.array_equal(interop.add(x[:, ::2], 1, execution="cuda"), x[:, ::2] + 1)
    assert interop.add(x, 1, out=out, execution="cuda") is out
    assert np.array_equal(out, x + 1)
    assert np.array_equal(interop.matmul(x, x.T.copy(), execution="cuda"), x @ x.T)


def test_steps_that_are_no_whole_elements(cupy, works):
    x = cupy.ones((4, 4), "f4")
    with pytest.raises((TypeError, BufferError), match="^interop.add: a.*multiple"):
        interop.add(Cai(x, strides=(17, 4)), 1)


# ---- devices that are not there ----


@pytest.mark.parametrize("device", [99, 31, 32, 2**31 - 1])
def test_devices_that_this_machine_has_not(device, cupy, works):
    x = cupy.ones(N, "f4")
    count = cupy.cuda.runtime.getDeviceCount()
    if device < count:
        pytest.skip("this machine has so many")
    words = rf"says it is on cuda:{device}; this machine has {count} CUDA device"
    for make in (Fake, lambda x, **fields: Fake(x, **fields).capsule(), EXCHANGE.array):
        with pytest.raises(BufferError, match=f"^interop.add: a: .* {words}"):
            interop.add(make(x, device_type=CUDA, device_id=device), 1)
    for make in (Fake, EXCHANGE.array):
        with pytest.raises(BufferError, match=f"^interop.asarray: x: .* {words}"):
            interop.asarray(make(x, device_type=CUDA, device_id=device))


# ---- as many dimensions as the library has ----


@pytest.mark.parametrize("ndim", [33, 63, 64])
def test_arrays_of_many_dimensions(ndim, torch, works):
    shape = (2,) + (1,) * (ndim - 2) + (3,)
    x = torch.arange(6.0, device="cuda").reshape(shape)
    y = torch.arange(2.0, device="cuda").reshape((2,) + (1,) * (ndim - 1))
    rows, column = x.reshape(2, 3), y.reshape(2, 1)  # as torch's own kernels have fewer dimensions
    assert torch.equal(interop.add(x, y).reshape(2, 3), rows + column)
    assert torch.equal(interop.elementwise("x * y + x")(x, y).reshape(2, 3), rows * column + rows)
    out = torch.zeros_like(x)
    assert interop.add(x, 1, out=out) is out
    assert torch.equal(out.reshape(2, 3), rows + 1)
    product = interop.matmul(x, torch.ones((3, 4), device="cuda"))
    assert torch.equal(product.reshape(2, 4), rows @ torch.ones((3, 4), device="cuda"))
    assert interop.asarray(x).shape == shape
    assert interop.add(x, 1, out=x) is x
    assert torch.equal(out.reshape(2, 3), rows)


def test_many_dimensions_that_do_not_collapse(torch, works):
    """Each array is broadcast along every second dimension, so no two of them are one."""
    x = torch.rand([2, 1] * 10, device="cuda").expand([2] * 20)
    y = torch.rand([1, 2] * 10, device="cuda")
    assert torch.equal(interop.add(x, y), x + y)
    assert torch.equal(interop.elementwise("x * y - y")(x, y), x * y - y)


@pytest.mark.parametrize("ndim", [65, 66])
def test_too_many_dimensions_on_a_device(ndim, torch, cupy, works):
    x = torch.ones((1,) * ndim, device="cuda")
    words = f"has {ndim} dimensions; accepted: up to 64"
    shown = types.SimpleNamespace(
        __cuda_array_interface__={**cupy.ones(1).__cuda_array_interface__, "shape": (1,) * ndim, "strides": None}
    )
    for array in (x, shown, Fake(cupy.ones(1), shape=(1,) * ndim, strides=None)):
        for label, call in {
            "interop.add: a": lambda array=array: interop.add(array, 1),
            "interop.matmul: a": lambda array=array: interop.matmul(array, array),
            r"interop.elementwise\('x \+ 1'\): x": lambda array=array: interop.elementwise("x + 1")(array),
            "interop.asarray: x": lambda array=array: interop.asarray(array),
        }.items():
            with pytest.raises(ValueError, match=f"^{label} {words}"):
                call()


# ---- what a registered `export` returns, on a device ----


def test_an_exported_temporary_is_held_until_the_work_is_done(cupy, works):
    from helpers import device

    stream = device.new_stream()
    kind = type("Copies", (Box,), {})
    interop.register(kind, name="copies", export=lambda box: box.inside.copy(), current_stream=lambda ordinal: stream)
    x = cupy.arange(1 << 20, dtype="f4")
    cupy.cuda.Device().synchronize()
    box = kind(x)
    cupy.cuda.Device().synchronize()
    first = interop.add(box, 0)
    cupy.cuda.Device().synchronize()
    device.delay(stream)
    second = interop.add(box, 0)
    assert interop._core.held_count() >= 1
    junk = [cupy.full(1 << 20, 7, "f4") for _ in range(8)]  # of CuPy's pool: not the memory that is still read
    device.synchronize()
    del first, junk
    assert (interop.convert(second, "cupy") == x).all()


def test_writing_to_an_exported_copy_on_a_device(cupy, works):
    kind = type("Copies", (Box,), {})
    interop.register(kind, name="copies too", export=lambda box: box.inside.copy())
    x = cupy.zeros(N)
    with pytest.raises(BufferError, match="`export` of copies too returns a copy .* writing would be lost"):
        interop.add(cupy.ones(N), 1, out=kind(x))
    assert not x.view("u1").any()
    kind = type("Views", (Box,), {})
    interop.register(kind, name="views", export=lambda box: box.inside[:])
    out = kind(x)
    assert interop.add(cupy.ones(N), 1, out=out) is out
    assert (x == 2).all()
